"""TODO: sparse."""

import warnings

from torch import Tensor, nn

from asr.model.projection import SetSparse

_SPARSE_DENSITY, _SPARSE_PLACES = 0.05, 1 << 18


class SparseLinear(nn.Module):
    """A linear map whose weight (d_out, d_in) is held by its rows' entries (CSR)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        with warnings.catch_warnings():  # torch calls the format's API young
            warnings.simplefilter("ignore", UserWarning)
            self.weight = weight.to_sparse_csr()
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out)."""
        y_OR = self.weight @ x.flatten(0, -2).t()
        return (y_OR.t() + self.bias).unflatten(0, x.shape[:-1])


def settle(network: nn.Module, may_be_sparse: bool = True) -> None:
    """Give the sparse maps of a network that is only to be evaluated their fastest form."""
    for name, module in list(network.named_modules()):
        if isinstance(module, SetSparse):
            network.set_submodule(name, module.settled(may_be_sparse))
