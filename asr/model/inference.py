"""The decoder as it runs while a text is looked for: the same numbers, in fewer and larger moves.

Built once from trained modules, so that `transformer.py` can stay the page a student reads. What
makes it fast was measured on rows = utterances × hypotheses from 8 to 256:
- maps that read the same input are one product, and LEDs of one input share one thin product;
- low-rank attention needs neither the keys nor the values that its LEDs would make: with
  q = (x E^Q) D^Q + b and k = (y E^K) D^K + c, q·k is a product of x E^Q, of the r × r matrix
  D^Q_h D^K_hᵀ and of y E^K, which all heads share (c moves all scores alike and is nothing to a
  softmax); values join E^O likewise. So r numbers are held and read in place of D;
- weights lie as the product reads them, in panels of 512 outputs that fit a core's cache;
- keys and values are written in place and never move: a hypothesis sees the places of its own
  past among those of all hypotheses of its utterance through a mask, as it sees the encoder's.

Legend: B utterances, W hypotheses of each, R = B · W rows, I inputs, O outputs, D d_model, H heads,
K head dimension, S encoder steps, P places (positions · W), N layers, V vocabulary.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, pad, scaled_dot_product_attention

from asr.model.attention import FullAttention
from asr.model.layers import DecoderLayer, MultiHeadAttention, Residual
from asr.model.projection import LowRank
from asr.model.transformer import Decoder, sinusoids

_PANEL = 512
_POSITIONS = 32  # of the buffers at first; they double when they are full
# A product in int8 quantises its input first, which costs more than a small one takes.
_INT8_WEIGHTS = 1 << 17

Function = Callable[[Tensor], Tensor]


class _Product:
    """Linear maps as one function, each from its own columns of x to its own columns of y."""

    def __init__(self, maps: Sequence[nn.Linear], shared_input: bool) -> None:
        self.blocks: list[tuple[slice, slice, Tensor, Tensor | None]] = []
        i = o = 0
        for each in maps:
            columns = slice(i, i + each.in_features)
            for weight_OI, bias_O in _panels(each):
                block = (columns, slice(o, o + len(weight_OI)), weight_OI.t().contiguous(), bias_O)
                self.blocks.append(block)
                o += len(weight_OI)
            i += 0 if shared_input else each.in_features
        self.width = o

    def __call__(self, x_RI: Tensor) -> Tensor:
        y_RO = x_RI.new_empty(len(x_RI), self.width)
        for inputs, outputs, weight_IO, bias_O in self.blocks:
            if bias_O is None:
                torch.mm(x_RI[:, inputs], weight_IO, out=y_RO[:, outputs])
            else:
                torch.addmm(bias_O, x_RI[:, inputs], weight_IO, out=y_RO[:, outputs])
        return y_RO


def _panels(linear: nn.Linear) -> list[tuple[Tensor, Tensor | None]]:
    weights = linear.weight.detach().split(_PANEL)
    if linear.bias is None:
        return [(weight, None) for weight in weights]
    return list(zip(weights, linear.bias.detach().split(_PANEL), strict=True))


class _Int8Product:
    """A linear map with weights of 8 bits, a scale for each output; x is quantised as it comes."""

    def __init__(self, linear: nn.Linear) -> None:
        torch.backends.quantized.engine = "fbgemm"
        weight_OI = linear.weight.detach()
        scale_O = (weight_OI.abs().amax(1) / 127).clamp(min=1e-12)
        with warnings.catch_warnings():  # torch's successor needs a compiler, or another package
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(
                weight_OI, scale_O, torch.zeros(len(scale_O), dtype=torch.long), 0, torch.qint8
            )
        self.packed = torch.ops.quantized.linear_prepack(quantised, linear.bias)

    def __call__(self, x_RI: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x_RI, self.packed, True)


def compile_maps(maps: Sequence[nn.Module], int8: bool = False) -> Function:
    """Projections of the same input as one function of it, (R, I) to their outputs side by side."""
    maps = [_cheaper(each) for each in maps]
    dense = [each for each in maps if isinstance(each, nn.Linear)]
    if len(dense) == len(maps):
        return _linear(_stack(dense), int8)
    leds = [each for each in maps if isinstance(each, LowRank)]
    if len(leds) == len(maps):
        inner = _linear(_stack([led.E for led in leds]), int8)
        outer = _Product([led.D for led in leds], shared_input=False)
        return lambda x_RI: outer(inner(x_RI))
    return lambda x_RI: torch.cat([each(x_RI) for each in maps], -1)


def _cheaper(module: nn.Module) -> nn.Module:
    """An LED of so high a rank that its product is cheaper, multiplied out."""
    if not isinstance(module, LowRank):
        return module
    D, E = module.D, module.E
    if E.out_features * (E.in_features + D.out_features) < E.in_features * D.out_features:
        return module
    dense = nn.Linear(E.in_features, D.out_features, device=D.weight.device)
    dense.load_state_dict({"weight": module.product(), "bias": D.bias})
    return dense


def _stack(maps: Sequence[nn.Linear]) -> nn.Linear:
    first = maps[0]
    if len(maps) == 1:
        return first
    weight = torch.cat([each.weight.detach() for each in maps])
    stacked = nn.Linear(first.in_features, len(weight), bias=first.bias is not None)
    stacked.weight = nn.Parameter(weight, requires_grad=False)
    if first.bias is not None:
        bias = torch.cat([each.bias.detach() for each in maps])
        stacked.bias = nn.Parameter(bias, requires_grad=False)
    return stacked


def _linear(linear: nn.Linear, int8: bool) -> Function:
    if int8 and linear.weight.numel() >= _INT8_WEIGHTS:
        return _Int8Product(linear)
    return _Product([linear], shared_input=True)


@dataclass
class _Attention:
    """An attention's projections as functions; H heads meet `n_keys` heads of keys, K wide.

    `first` is (R, D) to what `query` makes queries of, (R, H · K); in self-attention keys and
    values of n_keys · K stand beside it. `output` joins what the heads found, (R, H · K), to
    (R, D).
    """

    n_keys: int
    width: int
    scale: float
    residual: Residual
    first: Function
    query: Function
    output: Function
    keys_values: tuple[nn.Module, nn.Module]

    @classmethod
    def build(
        cls, attention: MultiHeadAttention, is_self: bool, int8: bool, latent_keys: bool
    ) -> "_Attention":
        """With the LEDs' own numbers as keys and values (`_have_latent_keys`), or full ones."""
        query, key, value, output = (
            attention.query, attention.key, attention.value, attention.output
        )  # fmt: skip
        H = attention.n_heads
        D = attention.residual.norm.normalized_shape[0]
        scale = (D // H) ** -0.5
        if (
            latent_keys
            and isinstance(query, LowRank)
            and isinstance(key, LowRank)
            and isinstance(value, LowRank)
            and isinstance(output, LowRank)
        ):
            latent = (key.E, value.E)
            joined = _Product([_value_to_output(value, output, H)], True)
            last = _linear(output.D, int8)
            return cls(
                1, key.E.out_features, scale, attention.residual,
                compile_maps([query.E, *(latent if is_self else ())], int8),
                _Product([_query_to_key(query, key, H)], True),
                lambda x_RI: last(joined(x_RI)),
                latent,
            )  # fmt: skip
        return cls(
            H, D // H, scale, attention.residual,
            compile_maps([query, *((key, value) if is_self else ())], int8),
            lambda x_RD: x_RD,
            compile_maps([output], int8),
            (key, value),
        )  # fmt: skip

    def attend(
        self, q_RX: Tensor, W: int, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Queries of W hypotheses an utterance, (R, H · K), to what they found, (R, H · K).

        Heads that share their keys are as many queries of one head.
        """
        q_BWHK = q_RX.view(-1, W, q_RX.shape[1] // self.width, self.width)
        q = q_BWHK.flatten(1, 2)[:, None] if self.n_keys == 1 else q_BWHK.transpose(1, 2)
        heads = scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=self.scale)
        if self.n_keys > 1:
            heads = heads.transpose(1, 2)
        return heads.reshape(len(q_RX), -1)


def _have_latent_keys(layers: Sequence[DecoderLayer]) -> bool:
    """Whether LEDs' own numbers can be the keys and values: of one rank in all, and cheaper so."""
    units = [unit for layer in layers for unit in (layer.self_attention, layer.cross_attention)]
    maps = [each for unit in units for each in (unit.query, unit.key, unit.value, unit.output)]
    ranks = {each.E.out_features if isinstance(each, LowRank) else 0 for each in maps}
    wide = units[0].residual.norm.normalized_shape[0] // units[0].n_heads
    return len(ranks) == 1 and 0 < ranks.pop() <= 2 * wide


def _query_to_key(query: LowRank, key: LowRank, n_heads: int) -> nn.Linear:
    """From x E^Q to a query for each head that meets y E^K itself: D^Q_h D^K_hᵀ side by side."""
    q_HKR = query.D.weight.detach().double().unflatten(0, (n_heads, -1))
    k_HRK = key.D.weight.detach().double().unflatten(0, (n_heads, -1)).transpose(1, 2)
    bias_HK1 = query.D.bias.detach().double().view(n_heads, -1, 1)
    return _as_linear((k_HRK @ q_HKR).flatten(0, 1), (k_HRK @ bias_HK1).flatten(), query.D.weight)


def _value_to_output(value: LowRank, output: LowRank, n_heads: int) -> nn.Linear:
    """From what each head found of y E^V to (…) E^O: D^V_h E^O_h one below the other."""
    E_OD = output.E.weight.detach().double()
    v_HKR = value.D.weight.detach().double().unflatten(0, (n_heads, -1))
    E_HOK = E_OD.unflatten(1, (n_heads, -1)).transpose(0, 1)
    weight = (E_HOK @ v_HKR).transpose(0, 1).flatten(1)
    return _as_linear(weight, E_OD @ value.D.bias.detach().double(), value.D.weight)


def _as_linear(weight_OI: Tensor, bias_O: Tensor, like: Tensor) -> nn.Linear:
    linear = nn.Linear(weight_OI.shape[1], len(weight_OI))
    linear.weight = nn.Parameter(weight_OI.to(like.dtype), requires_grad=False)
    linear.bias = nn.Parameter(bias_O.to(like.dtype), requires_grad=False)
    return linear


@dataclass
class FastState:
    """What the decoder remembers; keys come before values, each tensor is for all layers.

    `past` (N, 2, B, H, P, K) holds position p of hypothesis w at place p · W + w; `mask_BWP` is 0
    where a hypothesis sees a place and -inf elsewhere; `memory` (N, 2, B, H, S, K) and `mask_B11S`
    are the encoder's. H and K are the keys' (`_Attention`).
    """

    memory: Tensor
    mask_B11S: Tensor | None
    past: Tensor
    mask_BWP: Tensor
    positions_TD: Tensor
    position: int = 0

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w of utterance b continue hypothesis `parents_BW[b, w]` of it."""
        index = parents_BW[..., None].expand(-1, -1, self.mask_BWP.shape[2])
        self.mask_BWP = self.mask_BWP.gather(1, index)

    def keep(self, utterances: Tensor) -> None:
        """Go on with these utterances only, a tensor of indices."""
        self.memory = self.memory[:, :, utterances]
        self.past = self.past[:, :, utterances]
        self.mask_BWP = self.mask_BWP[utterances]
        if self.mask_B11S is not None:
            self.mask_B11S = self.mask_B11S[utterances]

    def make_room(self, W: int) -> None:
        """Let the next position of W hypotheses fit."""
        if self.position < len(self.positions_TD):
            return
        N, _, B, H, _, K = self.past.shape
        n = max(_POSITIONS, 2 * self.position)
        past = self.past.new_empty(N, 2, B, H, n * W, K)
        past[..., : self.position * W, :] = self.past
        self.past = past
        if not self.position:
            self.mask_BWP = self.mask_BWP.expand(-1, W, -1)
        self.mask_BWP = pad(self.mask_BWP, (0, (n - self.position) * W), value=-math.inf)
        self.positions_TD = sinusoids(0, n, self.positions_TD.shape[1], past.device)


class FastDecoder(Decoder):
    """A decoder's own modules, with `start` and `step` of their own; for evaluation only.

    `int8` stores the larger products' weights in 8 bits (on a CPU).
    """

    def __init__(self, decoder: Decoder, int8: bool = False) -> None:
        nn.Module.__init__(self)
        self.d_model, self.dropout = decoder.d_model, decoder.dropout
        self.embed, self.layers = decoder.embed, decoder.layers
        self.norm, self.output = decoder.norm, decoder.output
        layers = list(self._layers())
        latent_keys = _have_latent_keys(layers)
        self._steps = [_FastLayer(layer, int8, latent_keys) for layer in layers]
        self._memory = compile_maps([m for s in self._steps for m in s.cross.keys_values])
        self._logits = compile_maps([self.output], int8)

    def start(self, memory_BSD: Tensor, keep_BS: Tensor) -> FastState:  # type: ignore[override]
        """The state before the first token."""
        B, S, D = memory_BSD.shape
        cross = self._steps[0].cross
        N, H, K = len(self._steps), cross.n_keys, cross.width
        memory = self._memory(memory_BSD.flatten(0, 1)).view(B, S, N, 2, H, K)
        mask = None
        if not keep_BS.all():
            mask = memory.new_zeros(B, 1, 1, S).masked_fill(~keep_BS[:, None, None], -math.inf)
        return FastState(
            memory.permute(2, 3, 0, 4, 1, 5).contiguous(),
            mask,
            past=memory.new_empty(N, 2, B, H, 0, K),
            mask_BWP=memory.new_empty(B, 1, 0),
            positions_TD=memory.new_empty(0, D),
        )

    def step(self, tokens_BW: Tensor, state: FastState) -> Tensor:  # type: ignore[override]
        """Log-probabilities (B, W, V) of the token after `tokens_BW`; `state` moves on by one."""
        B, W = tokens_BW.shape
        state.make_room(W)
        first, end = state.position * W, (state.position + 1) * W
        state.mask_BWP.diagonal(first, 1, 2)[:, :W].zero_()
        mask = self._steps[0].mask(state.mask_BWP[..., :end])
        x_RD = torch.add(
            state.positions_TD[state.position],
            embedding(tokens_BW.flatten(), self.embed.weight.detach()),
            alpha=self.d_model**0.5,
        )
        for layer, past, memory in zip(self._steps, state.past, state.memory, strict=True):
            x_RD = layer(x_RD, W, past[..., :end, :], mask, memory, state.mask_B11S)
        state.position += 1
        return self._logits(self.norm(x_RD)).log_softmax(-1).view(B, W, -1)


def for_inference(decoder: Decoder, int8: bool = False) -> Decoder:
    """The fast form of a trained decoder; itself where a layer does not attend to all its past."""
    layers = [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]
    kernels = [layer.self_attention.kernel for layer in layers]
    if all(type(kernel) is FullAttention for kernel in kernels):
        return FastDecoder(decoder, int8)
    return decoder


class _FastLayer:
    """A decoder layer's step."""

    def __init__(self, layer: DecoderLayer, int8: bool, latent_keys: bool) -> None:
        self.n_heads = layer.self_attention.n_heads
        self.own = _Attention.build(layer.self_attention, True, int8, latent_keys)
        self.cross = _Attention.build(layer.cross_attention, False, int8, latent_keys)
        self.residual = layer.feed_forward.residual
        self.inner = compile_maps([layer.feed_forward.inner], int8)
        self.outer = compile_maps([layer.feed_forward.outer], int8)

    def mask(self, mask_BWP: Tensor) -> Tensor:
        """What hypotheses see, as the self-attention's heads take it."""
        if self.own.n_keys == 1:
            mask_BWP = mask_BWP.repeat_interleave(self.n_heads, 1)
        return mask_BWP[:, None]

    def __call__(
        self, x_RD: Tensor, W: int, past: Tensor, mask: Tensor, memory: Tensor,
        memory_mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """(R, D) to (R, D); keys and values of this step go to the last W places of `past`."""
        own, cross = self.own, self.cross
        columns = own.n_keys * own.width
        first = own.first(_enter(own.residual, x_RD))
        new = first[:, -2 * columns :].view(-1, W, 2, own.n_keys, own.width)
        past[..., -W:, :] = new.permute(2, 0, 3, 1, 4)
        found = own.attend(own.query(first[:, : -2 * columns]), W, past[0], past[1], mask)
        x_RD = _leave(own.residual, x_RD, own.output(found))

        q_RX = cross.query(cross.first(_enter(cross.residual, x_RD)))
        found = cross.attend(q_RX, W, memory[0], memory[1], memory_mask)
        x_RD = _leave(cross.residual, x_RD, cross.output(found))

        inner = self.inner(_enter(self.residual, x_RD)).relu_()
        return _leave(self.residual, x_RD, self.outer(inner))


def _enter(residual: Residual, x_RD: Tensor) -> Tensor:
    return _norm(residual.norm, x_RD) if residual.is_pre else x_RD


def _leave(residual: Residual, x_RD: Tensor, branch_RD: Tensor) -> Tensor:
    x_RD = branch_RD.add_(x_RD)
    return x_RD if residual.is_pre else _norm(residual.norm, x_RD)


def _norm(norm: nn.LayerNorm, x_RD: Tensor) -> Tensor:
    return layer_norm(x_RD, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
