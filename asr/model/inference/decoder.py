"""Run the decoder's steps faster than `transformer.Decoder.step`, with the same results.

What makes it fast was measured on rows = utterances × hypotheses from 8 to 256:
- maps of one input are one product, and LEDs of one input share their first product;
- low-rank attention stores r numbers for a position in place of D (`LatentAttention`);
- steps reuse buffers, and residuals are added by the product itself: on few rows, a new tensor
  costs as much as a product;
- keys and values are written in place and never move: a mask lets a hypothesis attend to the
  positions of its own past among those of all hypotheses of its utterance.

Legend: B utterances, W hypotheses of each, R = B · W rows, D d_model, S encoder steps, P positions
that can be attended to (steps · W), X numbers stored for a position, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from asr.model.encoder import sinusoids
from asr.model.inference.attention import KeysValues, compile_attention
from asr.model.inference.linear import Map, Scratch, compile_maps
from asr.model.inference.trie import tries_of
from asr.model.layers import DecoderLayer, MultiHeadAttention
from asr.model.transformer import Decoder
from asr.model.unit import Residual

_STEPS = 32  # in the buffers at first; their size doubles when they are full


@dataclass
class FastState:
    """The state of the decoder: the encoder's keys and values for each layer, and the past.

    `past` (B, P, X) holds step t of hypothesis w at position t · W + w. `mask_BWP` is 0 where a
    hypothesis attends to a position and -inf elsewhere, `mask_B1S` likewise for encoder steps.
    """

    memory: list[KeysValues]
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
        """Keep these utterances only."""
        self.memory = [(keys[indices], values[indices]) for keys, values in self.memory]
        self.past = [past[indices] for past in self.past]
        self.mask_BWP = self.mask_BWP[indices]
        if self.mask_B1S is not None:
            self.mask_B1S = self.mask_B1S[indices]

    def reserve(self, W: int) -> None:
        """Enlarge the buffers if the next step of W hypotheses does not fit."""
        if self.position * W < self.mask_BWP.shape[2]:
            return
        n_free = max(_STEPS - self.position, self.position) * W
        self.past = [pad(past, (0, 0, 0, n_free)) for past in self.past]
        if not self.position:
            self.mask_BWP = self.mask_BWP.expand(-1, W, -1)
        self.mask_BWP = pad(self.mask_BWP, (0, n_free), value=-math.inf)


class FastDecoder(Decoder):
    """A decoder with the same modules and faster `start` and `step`; for evaluation only.

    `int8` stores the weights of larger products in 8 bits (on a CPU).
    """

    def __init__(self, decoder: Decoder, int8: bool = False) -> None:
        nn.Module.__init__(self)
        self.d_model, self.dropout = decoder.d_model, decoder.dropout
        self.embed, self.layers = decoder.embed, decoder.layers
        self.norm, self.output = decoder.norm, decoder.output
        self._steps = [_FastLayer(layer, int8) for layer in self.each_layer()]
        self._memory = compile_maps([m for s in self._steps for m in s.cross.memory])
        self._logits = compile_maps([self.output], int8)
        self._positions_TD = self._sinusoids(_STEPS)
        self._int8 = int8

    def _sinusoids(self, length: int) -> Tensor:
        weight = self.embed.weight
        return sinusoids(0, length, self.d_model, weight.device).to(weight.dtype)

    def _positions(self, length: int) -> Tensor:
        found = self._positions_TD
        if length > len(found):  # another thread may store a shorter one meanwhile
            found = self._positions_TD = self._sinusoids(2 * length)
        return found

    def start(self, memory_BSD: Tensor, mask_BS: Tensor) -> FastState:  # type: ignore[override]
        """Return the state before the first token."""
        memory_BSD = self.seen(memory_BSD)
        B, S, _ = memory_BSD.shape
        stored_RX = self._memory(memory_BSD.flatten(0, 1), Scratch(memory_BSD), "memory")
        parts = stored_RX.view(B, S, -1).split([s.cross.n_stored for s in self._steps], -1)
        memory = []
        for step, part in zip(self._steps, parts, strict=True):
            keys, values = step.cross.keys_values(part)
            memory.append((keys.contiguous(), values.contiguous()))
        mask = None
        if not mask_BS.all():
            mask = memory_BSD.new_zeros(B, 1, S).masked_fill(~mask_BS[:, None], -math.inf)
        past = [memory_BSD.new_empty(B, 0, step.own.n_stored) for step in self._steps]
        return FastState(memory, mask, past, memory_BSD.new_empty(B, 1, 0), Scratch(memory_BSD))

    def step(self, tokens_BW: Tensor, state: FastState) -> Tensor:  # type: ignore[override]
        """Return log-probabilities (B, W, V) of the next token; `state` advances by one.

        The next step overwrites the returned tensor.
        """
        B, W = tokens_BW.shape
        state.reserve(W)
        first, end = state.position * W, (state.position + 1) * W
        state.mask_BWP.diagonal(first, 1, 2)[:, :W].zero_()
        position_D = self._positions(state.position + 1)[state.position]
        logits_RV = self._compute(tokens_BW, position_D, state, state.mask_BWP[..., :end])
        state.position += 1
        logp_RV = state.scratch("logp", *logits_RV.shape)
        return torch.log_softmax(logits_RV, -1, out=logp_RV).view(B, W, -1)

    def expand(self, tokens: list[int], depths: list[int], state: FastState) -> Tensor:
        """Return logits (N, V) after the last N positions of a tree, all in one pass.

        `state.mask_BWP` (1, N, P) tells which positions, new ones included, each attends to.
        """
        tokens_BW = torch.tensor([tokens], device=self.embed.weight.device)
        positions_WD = self._positions(max(depths) + 1)[depths]
        return self._compute(tokens_BW, positions_WD, state, state.mask_BWP)

    def log_probs(self, tokens_BWU: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the log-probability (B, W, U - 1) of each token of known texts but the first.

        Texts end in EOS; values after it have no meaning. Each distinct prefix of an utterance's
        texts is one position in a single pass of the layers. The rounding of 8 bits depends on all
        positions of a pass, so with `int8` the weights are those of the trained decoder.
        """
        if self._int8:
            return super().log_probs(tokens_BWU, memory_BSD, mask_BS)
        tries, state = tries_of(tokens_BWU[..., :-1]), self.start(memory_BSD, mask_BS)
        (B, N), mask_BNN = tries.tokens_BN.shape, tries.mask_BNN.to(memory_BSD.dtype)
        state.past = [past.new_empty(B, N, past.shape[2]) for past in state.past]
        positions_RD = self._positions(tokens_BWU.shape[2])[tries.depths_BN.flatten()]
        hidden_RD = self._hidden_of(tries.tokens_BN, positions_RD, state, mask_BNN)
        found = []
        # Logits, the largest tensors of decoding, are computed for one utterance at a time.
        for hidden_ND, nodes_WU, wanted_WU in zip(
            hidden_RD.view(B, N, -1), tries.nodes_BWU, tokens_BWU[..., 1:], strict=True
        ):
            logp_NV = self._logits(hidden_ND, state.scratch, "logits").log_softmax(1)
            found.append(logp_NV[nodes_WU, wanted_WU])
        return torch.stack(found)

    def _compute(
        self, tokens_BW: Tensor, positions: Tensor, state: FastState, mask_BWP: Tensor
    ) -> Tensor:
        """Return the logits (R, V) after these tokens, which are the last W of P positions."""
        hidden_RD = self._hidden_of(tokens_BW, positions, state, mask_BWP)
        return self._logits(hidden_RD, state.scratch, "logits")

    def _hidden_of(
        self, tokens_BW: Tensor, positions: Tensor, state: FastState, mask_BWP: Tensor
    ) -> Tensor:
        """Return the output of the layers (R, D), normalized, at the last W of P positions."""
        (_, W), scratch, end = tokens_BW.shape, state.scratch, mask_BWP.shape[2]
        embedded_RD = embedding(tokens_BW.flatten(), self.embed.weight.detach())
        x_RD = torch.add(positions, embedded_RD, alpha=self.d_model**0.5)
        for layer, past_BPX, memory in zip(self._steps, state.past, state.memory, strict=True):
            x_RD = layer.attend_self(x_RD, W, past_BPX[:, :end], mask_BWP, scratch)
            x_RD = layer.attend_memory(x_RD, W, memory, state.mask_B1S, scratch)
            x_RD = layer.feed_forward(x_RD, scratch)
        hidden_RD: Tensor = self.norm(x_RD)
        return hidden_RD


def for_inference(decoder: Decoder, int8: bool = False) -> Decoder:
    """Return the fast form of a decoder, or itself if a layer does not attend to all its past."""
    if all(layer.attends_to_all_past for layer in decoder.each_layer()):
        return FastDecoder(decoder, int8)
    return decoder


class _FastLayer:
    """The three units of a decoder layer, each (R, D) to (R, D), possibly in place."""

    def __init__(self, layer: DecoderLayer, int8: bool) -> None:
        assert isinstance(layer.self_attention, MultiHeadAttention)
        self._own, self._cross = layer.self_attention.residual, layer.cross_attention.residual
        self._feed_forward = layer.feed_forward.residual
        self.own = compile_attention(layer.self_attention, True, int8)
        self.cross = compile_attention(layer.cross_attention, False, int8)
        self._inner = compile_maps([layer.feed_forward.inner], int8)
        self._outer = compile_maps([layer.feed_forward.outer], int8)

    def attend_self(
        self, x_RD: Tensor, W: int, past_BPX: Tensor, mask_BWP: Tensor, scratch: Scratch
    ) -> Tensor:
        """Attend to the past; this step is stored in the last W positions of `past_BPX`."""
        own = self.own
        first_RI = own.first(self._own.pre_norm(x_RD), scratch, "first")
        n_query = first_RI.shape[1] - own.n_stored
        past_BPX[:, -W:] = first_RI[:, n_query:].view(-1, W, own.n_stored)
        q_RX = own.query(first_RI[:, :n_query], scratch)
        found_RX = own.attend(q_RX, W, own.keys_values(past_BPX), mask_BWP, scratch)
        return _add_and_norm(self._own, x_RD, own.last, found_RX, scratch)

    def attend_memory(
        self, x_RD: Tensor, W: int, memory: KeysValues, mask_B1S: Tensor | None, scratch: Scratch
    ) -> Tensor:
        """Attend to the encoder's output."""
        cross = self.cross
        q_RX = cross.query(cross.first(self._cross.pre_norm(x_RD), scratch, "first"), scratch)
        found_RX = cross.attend(q_RX, W, memory, mask_B1S, scratch)
        return _add_and_norm(self._cross, x_RD, cross.last, found_RX, scratch)

    def feed_forward(self, x_RD: Tensor, scratch: Scratch) -> Tensor:
        """Compute max(0, x E1 D1) E2 D2 and its residual."""
        inner_RX = self._inner(self._feed_forward.pre_norm(x_RD), scratch, "feed_forward").relu_()
        return _add_and_norm(self._feed_forward, x_RD, self._outer, inner_RX, scratch)


def _add_and_norm(
    residual: Residual, x_RD: Tensor, last: Map, found_RX: Tensor, scratch: Scratch
) -> Tensor:
    """Add the output of a unit's last map to x in place, and normalize the sum if post-norm."""
    last.add_to(x_RD, found_RX, scratch)
    y_RD: Tensor = x_RD if residual.is_pre else residual.norm(x_RD)
    return y_RD
