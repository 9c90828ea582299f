"""The numbers of a page of `--format html`: how they are rounded, and that a page reads them."""

import base64
import shutil

import numpy as np
import pytest
import torch

from asr.export.page_weights import pack_weights
from tests.helpers import node_recognizer, page_numbers

NODE = shutil.which("node")


def some_tensors() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(6)
    kernel = torch.randn(31, 5, 3, 3, generator=rng).permute(0, 1, 3, 2)  # not contiguous
    kernel[7], kernel[8, 1:] = 0, 0
    kernel[9] *= 1e-30
    return {
        "map": 4 * torch.randn(23, 37, generator=rng),
        "kernel": kernel,
        "few": torch.randn(7, 73, generator=rng),
        "bias": torch.randn(700, generator=rng),
        "keys": torch.tensor([2**40 + 1, 3]),
    }


def test_a_weight_is_rounded_by_less_than_a_16_000th_of_the_largest_of_its_output() -> None:
    tensors = some_tensors()
    found = page_numbers(*pack_weights(tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        if name not in ("map", "kernel"):
            assert np.array_equal(found[name], tensor.numpy())
            continue
        rows, numbers = tensor.flatten(1).double().numpy(), found[name].reshape(len(tensor), -1)
        bound_O1 = np.abs(rows).max(1, keepdims=True) / 8191 / 2
        error = np.abs(numbers - rows)
        assert (error <= bound_O1 * 1.001).all()
        assert (error > bound_O1 / 2).mean() > 0.3, "an even error is half of the time above a half"
        assert (numbers[rows == 0] == 0).all()


@pytest.mark.skipif(not NODE, reason="there is no node: apt-get install nodejs")
def test_the_page_reads_them() -> None:
    blob, table = pack_weights(some_tensors())
    found = node_recognizer(
        """
        const weights = readWeights(given.weights, given.table);
        return Object.fromEntries([...weights].map(([name, { data }]) => [name, Array.from(data)]));
        """,
        weights=base64.b64encode(blob).decode(), table=table,
    )  # fmt: skip
    for name, numbers in page_numbers(blob, table).items():
        assert np.array_equal(np.reshape(found[name], numbers.shape), numbers), name
