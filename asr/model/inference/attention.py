"""Compute multi-head attention in decoding steps, in the cheaper of two forms.

Legend: B utterances, W hypotheses of each, R = B · W rows, D d_model, H heads, K head dimension
(or rank), Q = W · H queries, P positions that can be attended to, X numbers stored for a position.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from asr.model.inference.linear import Led, Map, Product, Scratch, compile_maps
from asr.model.layers import MultiHeadAttention
from asr.model.projection import LowRank

KeysValues = tuple[Tensor, Tensor]


class LatentAttention:
    """Attention between low-rank numbers of LEDs; all heads share keys and values.

    With q = (x E^Q) D^Q + b and k = (y E^K) D^K + c, q·k is a product of x E^Q, of the r × r matrix
    D^Q_h D^K_hᵀ and of y E^K (c adds the same to all scores, which softmax ignores). Likewise, the
    D^V of values is multiplied by E^O. So r numbers are stored and read for a position in place of
    D.
    """

    def __init__(self, attention: MultiHeadAttention, is_self: bool, int8: bool) -> None:
        query, key, value = attention.query, attention.key, attention.value
        output, H = attention.output, attention.n_heads
        assert isinstance(query, LowRank) and isinstance(key, LowRank)
        assert isinstance(value, LowRank) and isinstance(output, LowRank)
        self.memory: list[nn.Module] = [key.E, value.E]
        self.first = compile_maps([query.E, *(self.memory if is_self else ())], int8)
        self.n_stored, self._n_keys = key.E.out_features + value.E.out_features, key.E.out_features
        self._query = _query_to_key(query, key, H)
        self.last: Map = _values_to_output(value, output, H)

    def query(self, first_RI: Tensor, scratch: Scratch) -> Tensor:
        """Return the queries of all heads, (R, H · K)."""
        return self._query(first_RI, scratch, "query")

    def keys_values(self, stored_BPX: Tensor) -> KeysValues:
        """Return keys (B, K, P) and values (B, P, K) from what is stored."""
        keys_BKP = stored_BPX[..., : self._n_keys].transpose(1, 2)
        return keys_BKP, stored_BPX[..., self._n_keys :]

    def attend(
        self, q_RX: Tensor, W: int, stored: KeysValues, mask_BWP: Tensor | None, scratch: Scratch
    ) -> Tensor:
        """Return the input of `last` (R, X) for W hypotheses of each utterance."""
        keys, values = stored
        (B, K, P), V, R = keys.shape, values.shape[2], q_RX.shape[0]
        Q = R * q_RX.shape[1] // (B * K)
        # Views of one slot share their numbers.
        weights_BQP = torch.bmm(q_RX.view(B, Q, K), keys, out=scratch("scores", B, Q, P))
        if mask_BWP is not None:
            scratch("scores", B, W, Q // W, P).add_(mask_BWP[:, :, None])
        torch.softmax(weights_BQP, -1, out=weights_BQP)
        torch.bmm(weights_BQP, values, out=scratch("found", B, Q, V))
        return scratch("found", R, B * Q * V // R)


class HeadAttention:
    """Attention where each head has its own keys and values, for any projections."""

    def __init__(self, attention: MultiHeadAttention, is_self: bool, int8: bool) -> None:
        self.memory: list[nn.Module] = [attention.key, attention.value]
        self.first = compile_maps([attention.query, *(self.memory if is_self else ())], int8)
        self.last = compile_maps([attention.output], int8)
        self._n_heads = attention.n_heads
        self.n_stored = 2 * attention.residual.norm.normalized_shape[0]

    def query(self, first_RI: Tensor, scratch: Scratch) -> Tensor:  # noqa: ARG002
        """Return the queries of all heads, (R, H · K)."""
        return first_RI

    def keys_values(self, stored_BPX: Tensor) -> KeysValues:
        """Return keys and values (B, H, P, K) from what is stored."""
        keys, values = stored_BPX.unflatten(-1, (2, self._n_heads, -1)).unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def attend(
        self, q_RX: Tensor, W: int, stored: KeysValues, mask_BWP: Tensor | None, _: Scratch
    ) -> Tensor:
        """Return the input of `last` (R, D) for W hypotheses of each utterance."""
        H, D = self._n_heads, self.n_stored // 2
        q_BHWK = q_RX.view(-1, W, H, D // H).transpose(1, 2)
        mask = None if mask_BWP is None else mask_BWP[:, None]
        heads_BHWK = scaled_dot_product_attention(q_BHWK, *stored, attn_mask=mask)
        return heads_BHWK.transpose(1, 2).reshape(q_RX.shape[0], -1)


def compile_attention(
    attention: MultiHeadAttention, is_self: bool, int8: bool
) -> LatentAttention | HeadAttention:
    """Return the cheaper of the two forms."""
    D = attention.residual.norm.normalized_shape[0]
    maps = (attention.query, attention.key, attention.value, attention.output)
    ranks = [each.E.out_features for each in maps if isinstance(each, LowRank)]
    is_latent = len(ranks) == len(maps) and max(ranks) <= 2 * D // attention.n_heads
    return (LatentAttention if is_latent else HeadAttention)(attention, is_self, int8)


def _query_to_key(query: LowRank, key: LowRank, n_heads: int) -> Product:
    """Return the map from x E^Q to the queries of y E^K, for each head D^Q_h D^K_hᵀ / √K."""
    q_HKR = query.D.weight.detach().double().unflatten(0, (n_heads, -1))
    k_HRK = key.D.weight.detach().double().unflatten(0, (n_heads, -1)).transpose(1, 2)
    k_HRK = k_HRK * k_HRK.shape[2] ** -0.5
    bias_HK1 = query.D.bias.detach().double().view(n_heads, -1, 1)
    weight, bias = (k_HRK @ q_HKR).flatten(0, 1), (k_HRK @ bias_HK1).flatten()
    return Product(weight.to(query.D.weight.dtype), bias.to(query.D.weight.dtype))


def _values_to_output(value: LowRank, output: LowRank, n_heads: int) -> Led:
    """Return the map from weighted sums of y E^V to the output: all D^V_h E^O_h, then D^O.

    Attention weights sum to 1, so the bias of the values adds a constant to the output.
    """
    v_HKR = value.D.weight.detach().double().unflatten(0, (n_heads, -1))
    E_HOK = output.E.weight.detach().double().unflatten(1, (n_heads, -1)).transpose(0, 1)
    weight_OX = (E_HOK @ v_HKR).transpose(0, 1).flatten(1)
    bias = output.D.bias + output.D.weight @ (output.E.weight @ value.D.bias)
    return Led(weight_OX.to(value.D.weight.dtype), output.D.weight, bias)
