"""Convert sparse maps (SET) to their fastest form for inference, CSR or dense."""

import warnings

from torch import Tensor, nn

from asr.model.projection import SetSparse, sparse_maps

# benchmarks/sparse.py on a CPU: the sparse product is faster for 2^18 entries or more of which at
# most 5 % are not zero.
_MAX_DENSITY, _MIN_ENTRIES = 0.05, 1 << 18


class SparseLinear(nn.Module):
    """A linear map with a weight (d_out, d_in) in compressed sparse rows (CSR)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        with warnings.catch_warnings():  # torch warns that its CSR format is in beta
            warnings.simplefilter("ignore", UserWarning)
            self.weight = weight.to_sparse_csr()
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_in) to (..., d_out)."""
        y_OR = self.weight @ x.flatten(0, -2).t()
        y: Tensor = (y_OR.t() + self.bias).unflatten(0, x.shape[:-1])
        return y


def prepare_for_inference(network: nn.Module, may_be_sparse: bool = True) -> None:
    """Replace the sparse maps of a trained network by their fastest form, in place."""
    for name, module in list(sparse_maps(network)):
        network.set_submodule(name, fastest_form(module, may_be_sparse))


def fastest_form(module: SetSparse, may_be_sparse: bool = True) -> nn.Module:
    """Return the same map for evaluation: CSR where that is faster, else dense."""
    weight = module.product().detach()
    is_large = may_be_sparse and weight.numel() >= _MIN_ENTRIES
    if is_large and module.density <= _MAX_DENSITY and weight.device.type == "cpu":
        return SparseLinear(weight, module.bias.detach())
    dense = nn.Linear(module.d_in, module.d_out, device="meta")
    dense.load_state_dict({"weight": weight, "bias": module.bias.detach()}, assign=True)
    return dense
