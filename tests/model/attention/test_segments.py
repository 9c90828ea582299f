"""Compare Transformer-XL's and the Compressive Transformer's memory with loops over positions."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from asr.model.frontend import padding_mask
from asr.model.layers import SegmentRecurrence
from tests.helpers import build, tiny
from tests.model.attention.oracle import attention, each_head, kernel, node, qkv

COMPRESSIVE = {"segment": 4, "memory": 1, "rate": 2, "compressed": 2}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("transformer_xl", {"segment": 4, "memory": 1}),
        ("transformer_xl", {"segment": 3, "memory": 3}),
        ("transformer_xl", {"segment": 30, "memory": 2}),
        ("compressive", COMPRESSIVE),
        ("compressive", COMPRESSIVE | {"segment": 3, "memory": 2, "rate": 3, "compressed": 1}),
        ("compressive", COMPRESSIVE | {"rate": 1, "compressed": 9}),
    ],
)
@pytest.mark.parametrize("length", [23, 14])
def test_a_position_attends_to_its_segment_the_memory_and_means_of_what_was_before(
    kind: str, numbers: dict[str, int], causal: bool, length: int
) -> None:
    L, m = numbers["segment"], numbers["memory"]
    rate, compressed = numbers.get("rate", 1), numbers.get("compressed", 0)

    def one(_: int, q: Any, k: Any, v: Any) -> np.ndarray:
        rows = []
        for i in range(length):
            start = i // L * L
            groups = [[j] for j in range(max(0, start - m * L), i + 1 if causal else start + L)]
            groups = [g for g in groups if g[0] < length]
            oldest = max(0, start - (m + compressed) * L)
            firsts = range(oldest, max(0, start - m * L), rate)
            groups += [list(range(first, first + rate)) for first in firsts]
            keys, values = (np.stack([x[g].mean(0) for g in groups]) for x in (k, v))
            rows.append(attention(q[i : i + 1], keys, values)[0])
        return np.stack(rows)

    q, k, v = qkv(23)
    ours = kernel(kind, causal, **numbers)
    found = ours(q, k, v, padding_mask(torch.tensor([length, length]), 23))
    torch.testing.assert_close(found[:, :, :length], each_head(one, q, k, v))
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", ["transformer_xl", "compressive"])
def test_the_memory_is_read_but_its_inputs_get_no_gradient_and_its_projections_do(
    kind: str,
) -> None:
    numbers = COMPRESSIVE if kind == "compressive" else {"segment": 4, "memory": 2}
    model = build(tiny(attention=node(kind, **numbers))).double()
    unit = model.encoder.layers[0].self_attention
    assert isinstance(unit, SegmentRecurrence)
    x = torch.randn(1, 12, 16, dtype=torch.float64, requires_grad=True)
    last = unit(x)[:, 8:]
    last.square().sum().backward()
    assert x.grad is not None and not x.grad[:, :8].any() and x.grad[:, 8:].all()
    for first in (0, 4):
        other = x.detach().clone()
        other[:, first : first + 4] += 1
        assert not torch.allclose(unit(other)[:, 8:], last)
    # The gradient of the projection holds what it does to the memory: compare with differences.
    weight = next(unit.key.parameters())
    assert weight.grad is not None
    direction, values = torch.randn_like(weight), []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * 1e-5 * direction
            values.append(unit(x)[:, 8:].square().sum())
            weight -= sign * 1e-5 * direction
    difference = (values[0] - values[1]) / 2e-5
    torch.testing.assert_close((weight.grad * direction).sum(), difference, rtol=1e-5, atol=1e-7)


def test_steps_keep_no_more_than_the_memory_and_the_compressed_ones() -> None:
    ours = kernel("compressive", True, **COMPRESSIVE)
    cache: tuple[torch.Tensor, ...] = ()
    for t in range(40):
        _, cache = ours.step(*(x[:, :, t : t + 1] for x in qkv(40)), cache)
    assert [x.shape[2] for x in cache] == [8, 8, 4, 4]


def test_a_rate_that_does_not_divide_the_segment_is_refused() -> None:
    with pytest.raises(ValidationError, match="rate 3 does not divide the segment 4: make the"):
        node("compressive", segment=4, rate=3)
