"""Attention with weights φ(q)·φ(k), in time and memory linear in the length.

Linear attention (Katharopoulos 2020) and the Performer (Choromanski 2021) differ in φ alone.
Legend: B batch, H heads, T queries, S keys, K head dimension, M features.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import elu, pad

from asr.model.attention.full import AttentionConfig, Cache, Kernel, Stepped
from asr.model.start import is_drawn
from asr.schema import Size

_CHUNK = 64  # positions; one sum over all earlier chunks, the scores of one chunk at a time
_LEAST = 1e-20  # a sum of weights; its inverse, in gradients, is still finite


class CausalProduct(torch.autograd.Function):
    """Row i is q_i Σ_{j ≤ i} k_jᵀ v_j, linear in the length in the backward pass too.

    Only the three inputs are saved: the gradients are sums of the same form, one of them forward
    in time and two backward (Katharopoulos 2020, sec. 3.3.1).
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, q_BHTM: Tensor, k_BHTM: Tensor, v_BHTK: Tensor) -> Tensor:
        """Return the sums (B, H, T, K)."""
        ctx.save_for_backward(q_BHTM, k_BHTM, v_BHTK)
        return _causal_product(q_BHTM, k_BHTM, v_BHTK)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g_BHTK: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return the gradients of q, k, v."""
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
    """Append a 1 to each value; its weighted sum is the sum of the weights, Z."""
    return pad(v_BHSK, (0, 1), value=1.0)


def _normalized(sums: Tensor) -> Tensor:
    # Where all features underflow the result is zero.
    return sums[..., :-1] / sums[..., -1:].clamp(min=_LEAST)


def attend_by_features(q_BHTM: Tensor, k_BHSM: Tensor, v_BHSK: Tensor, causal: bool) -> Tensor:
    """Return Σ_j (q_i·k_j) v_j / Σ_j q_i·k_j over all j, or j ≤ i if causal.

    Katharopoulos 2020, eq. 5 and 9; Merali 2020.
    """
    if causal:
        sums: Tensor = CausalProduct.apply(q_BHTM, k_BHSM, _and_one(v_BHSK))  # type: ignore[no-untyped-call]
        return _normalized(sums)
    Z_BHM1 = k_BHSM.sum(2)[..., None]
    return q_BHTM @ (k_BHSM.transpose(2, 3) @ v_BHSK) / (q_BHTM @ Z_BHM1).clamp(min=_LEAST)


def step_by_features(q_BH1M: Tensor, k_BH1M: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
    """Compute one position as a recurrent network (Katharopoulos 2020, sec. 3.4).

    The cache is the sum of k_jᵀ v_j with the sum of weights beside it, of constant size.
    """
    state_BHMK = k_BH1M.transpose(2, 3) @ _and_one(v_BH1K)
    if cache:
        state_BHMK = cache[0] + state_BHMK
    return _normalized(q_BH1M @ state_BHMK), (state_BHMK,)


def _elu_plus_one(x: Tensor) -> Tensor:
    return elu(x).add_(1)


class LinearAttention(Kernel):
    """Linear attention with φ(x) = elu(x) + 1 (Katharopoulos 2020, eq. 7)."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        k_BHSM = _elu_plus_one(k_BHSK).masked_fill_(~mask_BS[:, None, :, None], 0.0)
        return attend_by_features(_elu_plus_one(q_BHTK), k_BHSM, v_BHSK, self.causal)

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Compute one position, with a cache of constant size."""
        return step_by_features(_elu_plus_one(q_BH1K), _elu_plus_one(k_BH1K), v_BH1K, cache)


class LinearAttentionConfig(AttentionConfig):
    """Attention with weights (elu(q) + 1)·(elu(k) + 1)."""

    exports = True
    kind: Literal["linear"]

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return LinearAttention(causal)


class PerformerAttention(Kernel):
    """FAVOR+: positive random features, φ(q)·φ(k) = exp(q·k / √d_k) on average.

    φ(x) = exp(ω·x' - |x'|² / 2), x' = x / d_k^¼, for directions ω that are orthogonal in groups
    of d_k (Choromanski 2021, lemma 1 and sec. 2.4). With the cosh estimator each direction gives
    the features of ω and of -ω, whose mean is cosh, of lower variance. A bundle stores one draw of
    the directions; training uses a new draw every `redraw` steps (`follow`).
    """

    omega: Tensor
    latest: Tensor | None  # the draw in use in training, if it is not the bundle's own

    def __init__(self, config: "PerformerConfig", d_head: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.redraw, self.drawn = causal, config.redraw, 0
        self.has_both_signs = config.estimator == "cosh"
        n = config.features
        omega = orthogonal_directions(n, d_head, 0) if is_drawn() else torch.empty(n, d_head)
        self.register_buffer("omega", omega)
        self.register_buffer("latest", None, persistent=False)  # a buffer moves with the module

    def follow(self, step: int) -> None:
        """Use the directions of a training step; the step's index alone determines them."""
        if self.redraw is None or step // self.redraw == self.drawn:
            return
        self.drawn, (n, d) = step // self.redraw, self.omega.shape
        drawn = orthogonal_directions(n, d, self.drawn).to(self.omega.device)
        self.latest = drawn if self.drawn else None

    def features(self, x: Tensor) -> Tensor:
        """Return log φ(x), (…, K) to (…, M)."""
        along = self._along(x)
        x = x.to(along.dtype)
        return along.sub_(x.square().sum(-1, keepdim=True) / (2 * x.shape[-1] ** 0.5))

    def _along(self, x: Tensor) -> Tensor:
        """Return ω·x', and -ω·x', in full precision: bfloat16 is too coarse for an exponent."""
        omega_MK = self.omega if self.latest is None or not self.training else self.latest
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, omega_MK.dtype)
            along: Tensor = x.to(dtype) @ (omega_MK * x.shape[-1] ** -0.25).to(dtype).t()
            return torch.cat((along, -along), -1) if self.has_both_signs else along

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        k_BHSM = self.features(k_BHSK).masked_fill_(~mask_BS[:, None, :, None], -torch.inf)
        if not self.causal:
            # A factor that all keys share cancels; causal keys cannot know the later ones.
            k_BHSM.sub_(k_BHSM.detach().amax((2, 3), keepdim=True))
        return attend_by_features(self._queries(q_BHTK), k_BHSM.exp_(), v_BHSK, self.causal)

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Compute one position, with a cache of constant size."""
        return step_by_features(self._queries(q_BH1K), self.features(k_BH1K).exp(), v_BH1K, cache)

    def _queries(self, q_BHTK: Tensor) -> Tensor:
        """Return features up to a factor of each query, which normalization cancels."""
        return self._along(q_BHTK).softmax(-1)


def orthogonal_directions(n: int, d: int, draw: int) -> Tensor:
    """Return a draw's directions (n, d), orthogonal in groups of d, with the lengths of N(0, I)."""
    rng = torch.Generator("cpu").manual_seed(draw)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64, device="cpu")

    groups = [torch.linalg.qr(normal(d, d)) for _ in range(-(-n // d))]
    # With the signs of R's diagonal, Q is uniform among rotations.
    unit: Tensor = torch.cat([Q * R.diagonal().sign() for Q, R in groups], 1).t()[:n]
    lengths: Tensor = normal(n, d).norm(dim=1, keepdim=True)
    return (unit * lengths).float().contiguous()


class PerformerConfig(AttentionConfig):
    """Attention by `features` random directions, redrawn every `redraw` steps (null: never).

    The cosh estimator has two features for each direction, exp one.
    """

    exports = True
    kind: Literal["performer"]
    features: Size = 128
    estimator: Literal["exp", "cosh"] = "exp"
    redraw: Size | None = 500

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return PerformerAttention(self, d_head, causal)
