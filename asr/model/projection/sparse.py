"""Sparse maps: sparse evolutionary training, SET (Mocanu 2018; Brouns 2019)."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn.functional import linear

from asr.errors import ConfigError
from asr.model.projection.dense import Projection
from asr.model.start import is_drawn

_MOST_PLACES = 1 << 26  # numbers of a dense W, which products form: 256 MiB
_MOST_EMPTY = 100  # numbers of all dense W for each stored one, in networks with more than that


class SetSparse(nn.Module):
    """Sparse evolutionary training, SET: y = x W + b, W a random graph (Mocanu 2018; Brouns 2019).

    W has n = ε (d_in + d_out) weights, the expected number of an Erdős–Rényi graph with
    p(W_ij) = ε (d_in + d_out) / (d_in · d_out); n never changes. `values` (n,) are the weights and
    `places` (n,) are their flat indices in W (d_out, d_in); only the bias is stored beside them.
    With a `block` above 1 both are of blocks (see `BlockSparse`).
    """

    places: Tensor

    def __init__(
        self,
        d_in: int,
        d_out: int,
        epsilon: float,
        zeta: float,
        final_removal: bool = False,
        block: int = 1,
    ) -> None:
        super().__init__()
        self.d_in, self.d_out, self.zeta = d_in, d_out, zeta
        self.final_removal, self.block = final_removal, block
        if d_in * d_out > _MOST_PLACES:
            raise ConfigError(
                f"a sparse map from {d_in} to {d_out} is one of {d_in * d_out:,} numbers, "
                f"{_MOST_PLACES:,} at most: lower d_model or d_inner, or take another kind"
            )
        self.n_places = (d_in // block) * (d_out // block)
        n = max(1, min(round(epsilon * (d_in + d_out) / block**2), self.n_places))
        # If a file's values follow, it has the places too: only their number matters here.
        n_drawn = self.n_places if is_drawn() else n
        places = torch.randperm(n_drawn)[:n].sort().values
        self.register_buffer("places", places.int())
        # An output starts with the variance that a dense Xavier-initialized W gives it.
        std = (2 / (d_in + d_out) / (n / self.n_places)) ** 0.5
        self.values = nn.Parameter(torch.randn(n, *((block, block) if block > 1 else ())) * std)
        self.bias = nn.Parameter(torch.zeros(d_out))

    @property
    def density(self) -> float:
        """Return the share of W that is not zero."""
        return len(self.values) / self.n_places

    def is_sound(self) -> bool:
        """Tell whether the places are distinct and inside W."""
        order = self.places.long().sort().values
        inside = bool(order[0] >= 0 and order[-1] < self.n_places)
        return inside and bool((order.diff() > 0).all())

    def product(self) -> Tensor:
        """Return the dense W (d_out, d_in)."""
        empty = self.values.new_zeros(self.d_out * self.d_in)
        return empty.scatter(0, self.places.long(), self.values).view(self.d_out, self.d_in)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_in) to (..., d_out)."""
        return linear(x, self.product(), self.bias)

    def magnitudes(self) -> Tensor:
        """Return how far each of `values` is from zero, (n,)."""
        return self.values.detach().abs()

    def smallest(self) -> Tensor:
        """Return the indices of the share ζ of `values` that are closest to zero."""
        n_smallest = round(self.zeta * len(self.values))
        return self.magnitudes().sort(stable=True).indices[:n_smallest]

    @torch.no_grad()
    def remove_smallest(self) -> None:
        """Set the share ζ of the weights closest to zero to zero, without new ones in their place.

        If the run is continued after all, rewiring moves these same weights.
        """
        self.values[self.smallest()] = 0

    @torch.no_grad()
    def rewire(self, generator: torch.Generator) -> Tensor:
        """Move the share ζ of the weights closest to zero to random free places, with value 0.

        Returns the indices of the moved `values`: reset their optimizer state. A place that
        becomes free may be drawn again. `generator` must be a CPU generator.
        """
        moved = self.smallest()
        is_free = torch.ones(self.n_places, dtype=torch.bool)
        is_free[self.places.long().cpu()] = False
        is_free[self.places[moved].long().cpu()] = True
        free = is_free.nonzero().flatten()
        drawn = free[torch.randperm(len(free), generator=generator)[: len(moved)]]
        self.places[moved] = drawn.to(self.places)
        self.values[moved] = 0
        return moved


class BlockSparse(SetSparse):
    """Block sparsity (Gray, Radford and Kingma 2017; future work of Brouns 2019, sec. 5.0.1).

    W consists of b x b blocks. `values` (n, b, b) are the blocks with weights, in all about as many
    weights as SET has for ε. `places` (n,) are the flat indices of these blocks in the grid
    (d_out / b, d_in / b). Whole blocks evolve, by their norm, as the weights of SET do.
    """

    def magnitudes(self) -> Tensor:
        """Return the Frobenius norm of each block, (n,)."""
        norms: Tensor = self.values.detach().flatten(1).norm(dim=1)
        return norms

    def product(self) -> Tensor:
        """Return the dense W (d_out, d_in)."""
        b, n = self.block, len(self.values)
        empty = self.values.new_zeros(self.n_places, b * b)
        blocks = empty.index_copy(0, self.places.long(), self.values.reshape(n, b * b))
        grid = blocks.view(self.d_out // b, self.d_in // b, b, b)
        return grid.transpose(1, 2).reshape(self.d_out, self.d_in)


def check_density(network: nn.Module) -> None:
    """Raise ConfigError if products would take far more memory than the stored weights.

    In use, some sparse maps of a network are whole matrices in memory.
    """
    maps = [each for _, each in sparse_maps(network)]
    n_places = sum(each.d_in * each.d_out for each in maps)
    n_stored = sum(each.values.numel() for each in maps)
    if n_places > max(_MOST_PLACES, _MOST_EMPTY * n_stored):
        raise ConfigError(
            f"the sparse maps of this network have {n_stored:,} numbers of {n_places:,}: make them "
            f"denser than one of {_MOST_EMPTY}, or take fewer layers"
        )


def sparse_maps(network: nn.Module) -> Iterator[tuple[str, SetSparse]]:
    """Yield the sparse maps of a network, with their names."""
    for name, module in network.named_modules():
        if isinstance(module, SetSparse):
            yield name, module


class _SparseConfig(Projection):
    """The options of a random graph that evolves.

    `epsilon` sets the density; `zeta` is the share of the weights that is rewired after every
    epoch but the last (20 and 0.3 in Mocanu 2018 and Brouns 2019, chapter 4). With `final_removal`
    this share is removed after the last epoch too, and nothing is added (Brouns 2019, sec. 2.2).
    """

    epsilon: PositiveFloat = 20.0
    zeta: Annotated[float, Field(ge=0, le=1)] = 0.3
    final_removal: bool = False


class SetSparseConfig(_SparseConfig):
    """Sparse maps whose graph evolves (SET)."""

    kind: Literal["set_sparse"] = "set_sparse"

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """Return a map from (..., d_in) to (..., d_out)."""
        return SetSparse(d_in, d_out, self.epsilon, self.zeta, self.final_removal)


class BlockSparseConfig(_SparseConfig):
    """Sparse maps of whole blocks, of `block` x `block` weights; with `zeta: 0` they are fixed."""

    kind: Literal["block_sparse"]
    block: Annotated[int, Field(ge=2, le=1 << 16)] = 16

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """Return a map from (..., d_in) to (..., d_out).

        Raises ConfigError where blocks do not fill its weight.
        """
        if d_in % self.block or d_out % self.block:
            raise ConfigError(
                f"block_sparse: blocks of {self.block} do not fill a map from {d_in} to {d_out}: "
                "choose a block that divides both, or another kind there (model.projections)"
            )
        return BlockSparse(d_in, d_out, self.epsilon, self.zeta, self.final_removal, self.block)
