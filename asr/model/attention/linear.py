"""Attention whose weights are products of features, φ(q)·φ(k): linear in the length.

Legend: B batch, H heads, T queries, S keys, K head dimension, M features.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import elu, pad

from asr.model.attention.full import Cache, Kernel
from asr.schema import FrozenModel, Size

_CHUNK = 64  # positions; sums over earlier chunks are held once, scores within one at a time
_NOTHING = 1e-20  # its inverse, a gradient, is still finite


class CausalProduct(torch.autograd.Function):
    """Row i is q_i Σ_{j ≤ i} k_jᵀ v_j, in time and memory linear in the length, backward too.

    Nothing but the three inputs is kept: the gradients are sums of the same form, one of them
    forward in time and two of them backward (talk, how to implement causal masking).
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, q_BHTM: Tensor, k_BHTM: Tensor, v_BHTK: Tensor) -> Tensor:
        """(B, H, T, K)."""
        ctx.save_for_backward(q_BHTM, k_BHTM, v_BHTK)
        return _causal_product(q_BHTM, k_BHTM, v_BHTK)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, g_BHTK: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Of q, k, v."""
        q, k, v = ctx.saved_tensors
        grad_q = _causal_product(g_BHTK, v, k)
        q, k, v, g = (x.flip(2) for x in (q, k, v, g_BHTK))
        return grad_q, _causal_product(v, g, q).flip(2), _causal_product(k, q, g).flip(2)


def _causal_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    S = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
    chunks = []
    for q_c, k_c, v_c in zip(*(x.split(_CHUNK, 2) for x in (q, k, v)), strict=True):
        chunks.append((q_c @ k_c.transpose(2, 3)).tril() @ v_c + q_c @ S)
        S = S + k_c.transpose(2, 3) @ v_c
    return torch.cat(chunks, 2)


def _and_one(v_BHSK: Tensor) -> Tensor:
    """Values with a last number 1, whose weighted sum is the sum of the weights, Z."""
    return pad(v_BHSK, (0, 1), value=1.0)


def _normalised(sums: Tensor) -> Tensor:
    # Features that all underflow weigh nothing, and their mean is zero.
    return sums[..., :-1] / sums[..., -1:].clamp(min=_NOTHING)


def attend_by_features(q_BHTM: Tensor, k_BHSM: Tensor, v_BHSK: Tensor, causal: bool) -> Tensor:
    """Σ_j (q_i·k_j) v_j / Σ_j q_i·k_j over all j, or j ≤ i if causal (talk, linearizing)."""
    if causal:
        return _normalised(CausalProduct.apply(q_BHTM, k_BHSM, _and_one(v_BHSK)))
    Z_BHM1 = k_BHSM.sum(2)[..., None]
    return q_BHTM @ (k_BHSM.transpose(2, 3) @ v_BHSK) / (q_BHTM @ Z_BHM1).clamp(min=_NOTHING)


def step_by_features(
    q_BH1M: Tensor, k_BH1M: Tensor, v_BH1K: Tensor, cache: Cache
) -> tuple[Tensor, Cache]:
    """The same as a recurrent network (talk, Transformers as RNNs); the state is S beside Z."""
    state_BHMK = k_BH1M.transpose(2, 3) @ _and_one(v_BH1K)
    if cache:
        state_BHMK = cache[0] + state_BHMK
    return _normalised(q_BH1M @ state_BHMK), (state_BHMK,)


def _fill_padding(new_BHSM: Tensor, mask_BS: Tensor | None, value: float) -> Tensor:
    return new_BHSM if mask_BS is None else new_BHSM.masked_fill_(~mask_BS[:, None, :, None], value)


def _elu_plus_one(x: Tensor) -> Tensor:
    return elu(x).add_(1)


class LinearAttention(Kernel):
    """φ(x) = elu(x) + 1 (talk, linearizing attention)."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, K)."""
        k_BHSM = _fill_padding(_elu_plus_one(k_BHSK), mask_BS, 0.0)
        return attend_by_features(_elu_plus_one(q_BHTK), k_BHSM, v_BHSK, self.causal)

    def step(
        self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """The cache is of the same size at every position."""
        return step_by_features(_elu_plus_one(q_BH1K), _elu_plus_one(k_BH1K), v_BH1K, cache)


class LinearAttentionConfig(FrozenModel):
    """Weights are (elu(q) + 1)·(elu(k) + 1)."""

    kind: Literal["linear"]

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        """A kernel for any heads."""
        return LinearAttention(causal)


class PerformerAttention(Kernel):
    """FAVOR+: random positive features whose products are exp(q·k / √d_k) on the mean (slides).

    φ(x) = exp(ω·x' - |x'|² / 2), x' = x / d_k^¼, for M directions ω, orthogonal in groups of d_k.
    A bundle holds one draw; training takes a new one every `redraw` steps (`follow`).
    """

    omega: Tensor
    latest: Tensor | None  # the draw in use in training, if it is not the bundle's own

    def __init__(self, config: "PerformerConfig", d_head: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.redraw, self.drawn = causal, config.redraw, 0
        self.register_buffer("omega", orthogonal_directions(config.features, d_head, 0))
        self.latest = None

    def follow(self, step: int) -> None:
        """Take the directions of a training step, which follow from its number alone."""
        if self.redraw is None or step // self.redraw == self.drawn:
            return
        self.drawn, (n, d) = step // self.redraw, self.omega.shape
        drawn = orthogonal_directions(n, d, self.drawn).to(self.omega.device)
        self.latest = drawn if self.drawn else None

    def features(self, x: Tensor) -> Tensor:
        """log φ(x), (…, K) to (…, M)."""
        along = self._along(x)
        x = x.to(along.dtype)
        return along.sub_(x.square().sum(-1, keepdim=True) / (2 * x.shape[-1] ** 0.5))

    def _along(self, x: Tensor) -> Tensor:
        """ω·x', an exponent, for which 8 bits are too few."""
        omega_MK = self.omega if self.latest is None or not self.training else self.latest
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, omega_MK.dtype)
            return x.to(dtype) @ (omega_MK * x.shape[-1] ** -0.25).to(dtype).t()

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, K)."""
        k_BHSM = _fill_padding(self.features(k_BHSK), mask_BS, -torch.inf)
        if not self.causal:
            # A factor that all keys share is none; causal keys cannot know those to come.
            k_BHSM.sub_(k_BHSM.detach().amax((2, 3), keepdim=True))
        return attend_by_features(self._queries(q_BHTK), k_BHSM.exp_(), v_BHSK, self.causal)

    def step(
        self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """The cache is of the same size at every position."""
        return step_by_features(self._queries(q_BH1K), self.features(k_BH1K).exp(), v_BH1K, cache)

    def _queries(self, q_BHTK: Tensor) -> Tensor:
        """Features up to a factor of each query's own, which its normalisation takes out."""
        return self._along(q_BHTK).softmax(-1)


def orthogonal_directions(n: int, d: int, draw: int) -> Tensor:
    """The draw's (n, d) directions: lengths as of N(0, I), orthogonal in groups of d."""
    rng = torch.Generator("cpu").manual_seed(draw)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64, device="cpu")

    groups = [torch.linalg.qr(normal(d, d)) for _ in range(-(-n // d))]
    # With the signs of R's diagonal, Q is uniform among rotations.
    unit = torch.cat([Q * R.diagonal().sign() for Q, R in groups], 1).t()[:n]
    return (unit * normal(n, d).norm(dim=1, keepdim=True)).float().contiguous()


def follow_step(modules: Iterable[nn.Module], step: int) -> None:
    """Tell kernels that a training step begins; what they do of it follows from its number."""
    for module in modules:
        if isinstance(module, PerformerAttention):
            module.follow(step)


class PerformerConfig(FrozenModel):
    """So many random `features`, drawn again every `redraw` training steps (never, if null)."""

    kind: Literal["performer"]
    features: Size = 128
    redraw: Size | None = 500

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        """A kernel for heads of `d_head` numbers."""
        return PerformerAttention(self, d_head, causal)
