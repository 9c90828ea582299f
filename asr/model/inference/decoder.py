"""The decoder as it runs while a text is looked for: the same numbers, in fewer and larger moves.

Built once from trained modules, so that `transformer.py` can stay the page a student reads. What
makes it fast was measured on rows = utterances × hypotheses from 8 to 256:
- maps that read the same input are one product, and LEDs of one input share one thin product;
- low-rank attention needs neither the keys nor the values that its LEDs would make: with
  q = (x E^Q) D^Q + b and k = (y E^K) D^K + c, q·k is a product of x E^Q, of the r × r matrix
  D^Q_h D^K_hᵀ and of y E^K, which all heads share (c moves all scores alike and is nothing to a
  softmax); values join E^O likewise. So r numbers are held and read in place of D;
- what a step makes is written where the step before wrote it, and residuals are added by the
  product itself: on few rows, a tensor made anew costs as much as a product;
- keys and values are written in place and never move: a hypothesis sees the places of its own
  past among those of all hypotheses of its utterance through a mask, as it sees the encoder's.

Legend: B utterances, W hypotheses of each, R = B · W rows, D d_model, H heads, K head dimension
(or rank), Q = W · H queries, S encoder steps, P places (positions · W), X numbers that a place
holds, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad, scaled_dot_product_attention

from asr.model.attention import FullAttention
from asr.model.inference.linear import Led, Map, Product, Scratch, compile_maps
from asr.model.layers import DecoderLayer, FeedForward, MultiHeadAttention, Residual
from asr.model.projection import LowRank
from asr.model.transformer import Decoder, sinusoids

_POSITIONS = 32  # of the buffers at first; they double when they are full


class _Attention(Protocol):
    """An attention's projections and kernel, as a step uses them."""

    first: Map  # (R, D) to what `query` reads; beside it, in self-attention, what a place holds
    n_place: int
    memory: list[nn.Module]  # (…, D) of what is attended to, to what a place holds

    def query(self, first_RI: Tensor, scratch: Scratch) -> Tensor:
        """What meets the keys, (R, H · K)."""

    def keys_values(self, places_BPX: Tensor) -> tuple[Tensor, Tensor]:
        """What the places hold, as `attend` takes it."""

    def attend(
        self, q_RX: Tensor, W: int, keys: Tensor, values: Tensor, mask_BWP: Tensor | None,
        scratch: Scratch,
    ) -> Tensor:  # fmt: skip
        """What W hypotheses an utterance find, as `last` takes it."""

    last: Map


class _LatentAttention:
    """Keys and values are the LEDs' own numbers, shared by all heads: H · W queries of one head."""

    def __init__(self, attention: MultiHeadAttention, is_self: bool, int8: bool) -> None:
        query, key, value, output = (
            attention.query, attention.key, attention.value, attention.output
        )  # fmt: skip
        assert isinstance(query, LowRank) and isinstance(key, LowRank)
        assert isinstance(value, LowRank) and isinstance(output, LowRank)
        H = attention.n_heads
        self.memory: list[nn.Module] = [key.E, value.E]
        self.first = compile_maps([query.E, *(self.memory if is_self else ())], int8)
        self.n_place, self._n_keys = key.E.out_features + value.E.out_features, key.E.out_features
        self._query = _query_to_key(query, key, H)
        self.last: Map = _values_to_output(value, output, H)

    def query(self, first_RI: Tensor, scratch: Scratch) -> Tensor:
        return self._query(first_RI, scratch, "query")

    def keys_values(self, places_BPX: Tensor) -> tuple[Tensor, Tensor]:
        keys_BKP = places_BPX[..., : self._n_keys].transpose(1, 2)
        return keys_BKP, places_BPX[..., self._n_keys :]

    def attend(
        self, q_RX: Tensor, W: int, keys: Tensor, values: Tensor, mask_BWP: Tensor | None,
        scratch: Scratch,
    ) -> Tensor:  # fmt: skip
        (B, K, P), V, R = keys.shape, values.shape[2], len(q_RX)
        Q = R * q_RX.shape[1] // (B * K)
        # The views of a slot are of the same numbers.
        weights_BQP = torch.bmm(q_RX.view(B, Q, K), keys, out=scratch("scores", B, Q, P))
        if mask_BWP is not None:
            scratch("scores", B, W, Q // W, P).add_(mask_BWP[:, :, None])
        torch.softmax(weights_BQP, -1, out=weights_BQP)
        torch.bmm(weights_BQP, values, out=scratch("found", B, Q, V))
        return scratch("found", R, B * Q * V // R)


class _HeadAttention:
    """Each head has its own keys and values, whatever the projections are."""

    def __init__(self, attention: MultiHeadAttention, is_self: bool, int8: bool) -> None:
        self.memory: list[nn.Module] = [attention.key, attention.value]
        self.first = compile_maps([attention.query, *(self.memory if is_self else ())], int8)
        self.last = compile_maps([attention.output], int8)
        self._n_heads = attention.n_heads
        self.n_place = 2 * attention.residual.norm.normalized_shape[0]

    def query(self, first_RI: Tensor, scratch: Scratch) -> Tensor:  # noqa: ARG002
        return first_RI

    def keys_values(self, places_BPX: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = places_BPX.unflatten(-1, (2, self._n_heads, -1)).unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def attend(
        self, q_RX: Tensor, W: int, keys: Tensor, values: Tensor, mask_BWP: Tensor | None,
        scratch: Scratch,  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        H, D = self._n_heads, self.n_place // 2
        q_BHWK = q_RX.view(-1, W, H, D // H).transpose(1, 2)
        mask = None if mask_BWP is None else mask_BWP[:, None]
        heads_BHWK = scaled_dot_product_attention(q_BHWK, keys, values, attn_mask=mask)
        return heads_BHWK.transpose(1, 2).reshape(len(q_RX), -1)


def _compile_attention(attention: MultiHeadAttention, is_self: bool, int8: bool) -> _Attention:
    """The cheaper of the two forms."""
    D = attention.residual.norm.normalized_shape[0]
    maps = (attention.query, attention.key, attention.value, attention.output)
    leds = [each for each in maps if isinstance(each, LowRank)]
    widest = max((led.E.out_features for led in leds), default=0)
    if len(leds) == len(maps) and widest <= 2 * D // attention.n_heads:
        return _LatentAttention(attention, is_self, int8)
    return _HeadAttention(attention, is_self, int8)


def _query_to_key(query: LowRank, key: LowRank, n_heads: int) -> Product:
    """From x E^Q to a query for each head that meets y E^K itself: D^Q_h D^K_hᵀ / √K."""
    q_HKR = query.D.weight.detach().double().unflatten(0, (n_heads, -1))
    k_HRK = key.D.weight.detach().double().unflatten(0, (n_heads, -1)).transpose(1, 2)
    k_HRK = k_HRK * k_HRK.shape[2] ** -0.5
    bias_HK1 = query.D.bias.detach().double().view(n_heads, -1, 1)
    weight, bias = (k_HRK @ q_HKR).flatten(0, 1), (k_HRK @ bias_HK1).flatten()
    return Product(weight.to(query.D.weight.dtype), bias.to(query.D.weight.dtype))


def _values_to_output(value: LowRank, output: LowRank, n_heads: int) -> Led:
    """From what each head found of y E^V to the output: D^V_h E^O_h one below the other, then D^O.

    Attention weights sum to 1, so what the values' bias does to the output is a constant.
    """
    v_HKR = value.D.weight.detach().double().unflatten(0, (n_heads, -1))
    E_HOK = output.E.weight.detach().double().unflatten(1, (n_heads, -1)).transpose(0, 1)
    weight_OX = (E_HOK @ v_HKR).transpose(0, 1).flatten(1)
    bias = output.D.bias + output.D.weight @ (output.E.weight @ value.D.bias)
    return Led(weight_OX.to(value.D.weight.dtype), output.D.weight, bias)


@dataclass
class FastState:
    """What the decoder remembers: for each layer the encoder's keys and values, and the past.

    `past` (B, P, X) holds position p of hypothesis w at place p · W + w; `mask_BWP` is 0 where a
    hypothesis sees a place and -inf elsewhere, `mask_B1S` likewise the encoder's steps.
    """

    memory: list[tuple[Tensor, Tensor]]
    mask_B1S: Tensor | None
    past: list[Tensor]
    mask_BWP: Tensor
    scratch: Scratch
    position: int = 0

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w of utterance b continue hypothesis `parents_BW[b, w]` of it."""
        index = parents_BW[..., None].expand(-1, -1, self.mask_BWP.shape[2])
        self.mask_BWP = self.mask_BWP.gather(1, index)

    def select(self, indices: Tensor) -> None:
        """Go on with these utterances only, a tensor of indices."""
        self.memory = [(keys[indices], values[indices]) for keys, values in self.memory]
        self.past = [past[indices] for past in self.past]
        self.mask_BWP = self.mask_BWP[indices]
        if self.mask_B1S is not None:
            self.mask_B1S = self.mask_B1S[indices]

    def make_room(self, W: int) -> None:
        """Let the next position of W hypotheses fit."""
        if self.position * W < self.mask_BWP.shape[2]:
            return
        n_free = max(_POSITIONS - self.position, self.position) * W
        self.past = [pad(past, (0, 0, 0, n_free)) for past in self.past]
        if not self.position:
            self.mask_BWP = self.mask_BWP.expand(-1, W, -1)
        self.mask_BWP = pad(self.mask_BWP, (0, n_free), value=-math.inf)


class FastDecoder(Decoder):
    """A decoder's own modules, with `start` and `step` of their own; for evaluation only.

    `int8` stores the larger products' weights in 8 bits (on a CPU).
    """

    def __init__(self, decoder: Decoder, int8: bool = False) -> None:
        nn.Module.__init__(self)
        self.d_model, self.dropout = decoder.d_model, decoder.dropout
        self.embed, self.layers = decoder.embed, decoder.layers
        self.norm, self.output = decoder.norm, decoder.output
        self._steps = [_FastLayer(layer, int8) for layer in self._layers()]
        self._memory = compile_maps([m for s in self._steps for m in s.cross.memory])
        self._logits = compile_maps([self.output], int8)
        self._positions_TD = self._sinusoids(_POSITIONS)  # follow from the place alone

    def _sinusoids(self, length: int) -> Tensor:
        weight = self.embed.weight
        return sinusoids(0, length, self.d_model, weight.device).to(weight.dtype)

    def _position(self, position: int) -> Tensor:
        if position >= len(self._positions_TD):
            self._positions_TD = self._sinusoids(2 * position)
        return self._positions_TD[position]

    def start(self, memory_BSD: Tensor, mask_BS: Tensor) -> FastState:  # type: ignore[override]
        """The state before the first token."""
        B, S, _ = memory_BSD.shape
        places_BSX = self._memory(memory_BSD.flatten(0, 1), Scratch(memory_BSD), "memory")
        parts = places_BSX.view(B, S, -1).split([s.cross.n_place for s in self._steps], -1)
        memory = [
            tuple(part.contiguous() for part in step.cross.keys_values(places))
            for step, places in zip(self._steps, parts, strict=True)
        ]
        mask = None
        if not mask_BS.all():
            mask = memory_BSD.new_zeros(B, 1, S).masked_fill(~mask_BS[:, None], -math.inf)
        return FastState(
            memory,  # type: ignore[arg-type]
            mask,
            past=[memory_BSD.new_empty(B, 0, step.own.n_place) for step in self._steps],
            mask_BWP=memory_BSD.new_empty(B, 1, 0),
            scratch=Scratch(memory_BSD),
        )

    def step(self, tokens_BW: Tensor, state: FastState) -> Tensor:  # type: ignore[override]
        """Log-probabilities (B, W, V) of the token after `tokens_BW`; `state` moves on by one.

        The next step writes over them.
        """
        B, W = tokens_BW.shape
        state.make_room(W)
        first, end = state.position * W, (state.position + 1) * W
        state.mask_BWP.diagonal(first, 1, 2)[:, :W].zero_()
        mask_BWP, scratch = state.mask_BWP[..., :end], state.scratch
        x_RD = torch.add(
            self._position(state.position),
            embedding(tokens_BW.flatten(), self.embed.weight.detach()),
            alpha=self.d_model**0.5,
        )
        for layer, past_BPX, memory in zip(self._steps, state.past, state.memory, strict=True):
            x_RD = layer.attend_self(x_RD, W, past_BPX[:, :end], mask_BWP, scratch)
            x_RD = layer.attend_memory(x_RD, W, memory, state.mask_B1S, scratch)
            x_RD = layer.feed_forward(x_RD, scratch)
        state.position += 1
        logits_RV = self._logits(self.norm(x_RD), scratch, "logits")
        logp_RV = scratch("logp", *logits_RV.shape)
        return torch.log_softmax(logits_RV, -1, out=logp_RV).view(B, W, -1)


def for_inference(decoder: Decoder, int8: bool = False) -> Decoder:
    """The fast form of a trained decoder; itself where a layer does not attend to all its past."""
    layers = [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]
    kernels = [layer.self_attention.kernel for layer in layers]
    if all(type(kernel) is FullAttention for kernel in kernels):
        return FastDecoder(decoder, int8)
    return decoder


class _FastLayer:
    """A decoder layer's step: its three units, each (R, D) to (R, D), which may be in place."""

    def __init__(self, layer: DecoderLayer, int8: bool) -> None:
        assert isinstance(layer.self_attention, MultiHeadAttention)
        self.own = _compile_attention(layer.self_attention, True, int8)
        self.cross = _compile_attention(layer.cross_attention, False, int8)
        self._around_own = _AddNorm(layer.self_attention.residual)
        self._around_cross = _AddNorm(layer.cross_attention.residual)
        self._around_feed_forward = _AddNorm(layer.feed_forward.residual)
        feed_forward: FeedForward = layer.feed_forward
        self._inner = compile_maps([feed_forward.inner], int8)
        self._outer = compile_maps([feed_forward.outer], int8)

    def attend_self(
        self, x_RD: Tensor, W: int, past_BPX: Tensor, mask_BWP: Tensor, scratch: Scratch
    ) -> Tensor:
        """The places of this step are the last W of `past_BPX`: they are written here."""
        own = self.own
        first_RI = own.first(self._around_own.enter(x_RD), scratch, "first")
        n_query = first_RI.shape[1] - own.n_place
        past_BPX[:, -W:] = first_RI[:, n_query:].view(-1, W, own.n_place)
        q_RX = own.query(first_RI[:, :n_query], scratch)
        found = own.attend(q_RX, W, *own.keys_values(past_BPX), mask_BWP, scratch)
        return self._around_own.leave(x_RD, own.last, found, scratch)

    def attend_memory(
        self, x_RD: Tensor, W: int, memory: tuple[Tensor, Tensor], mask_B1S: Tensor | None,
        scratch: Scratch,
    ) -> Tensor:  # fmt: skip
        """What the encoder made of the audio."""
        cross = self.cross
        first_RI = cross.first(self._around_cross.enter(x_RD), scratch, "first")
        found = cross.attend(cross.query(first_RI, scratch), W, *memory, mask_B1S, scratch)
        return self._around_cross.leave(x_RD, cross.last, found, scratch)

    def feed_forward(self, x_RD: Tensor, scratch: Scratch) -> Tensor:
        """max(0, x E1 D1) E2 D2."""
        inner = self._inner(self._around_feed_forward.enter(x_RD), scratch, "inner").relu_()
        return self._around_feed_forward.leave(x_RD, self._outer, inner, scratch)


class _AddNorm:
    """A unit's residual and normalisation."""

    def __init__(self, residual: Residual) -> None:
        norm = residual.norm
        self._is_pre = residual.is_pre
        self._shape, self._epsilon = norm.normalized_shape, norm.eps
        self._weight, self._bias = norm.weight.detach(), norm.bias.detach()

    def enter(self, x_RD: Tensor) -> Tensor:
        return self._norm(x_RD) if self._is_pre else x_RD

    def leave(self, x_RD: Tensor, last: Map, found: Tensor, scratch: Scratch) -> Tensor:
        last.add_to(x_RD, found, scratch)
        return x_RD if self._is_pre else self._norm(x_RD)

    def _norm(self, x_RD: Tensor) -> Tensor:
        return torch.layer_norm(x_RD, self._shape, self._weight, self._bias, self._epsilon)
