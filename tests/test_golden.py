"""What was computed before stays what is computed now: weights, texts, graphs, answers, features.

Floats are compared within a tolerance, since another processor may sum in another order; with
GOLDEN_EXACT=1 they must be equal. `golden_run.py` says what is computed and how it is stored.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import golden_run

EXACT = os.environ.get("GOLDEN_EXACT") == "1"
TOLERANCE, WEIGHT_TOLERANCE = 1e-4, 2e-3
# No loss depends on what is added to all keys alike: Adam makes steps of mere rounding errors here.
FREE = ("key.bias", "key.D.bias")


def differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """List where plain values differ; floats by more than the tolerance."""
    if isinstance(wanted, dict) and isinstance(found, dict) and found.keys() == wanted.keys():
        for key in wanted:
            yield from differences(found[key], wanted[key], f"{where}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        for i, pair in enumerate(zip(found, wanted, strict=True)):
            yield from differences(*pair, f"{where}/{i}")
    elif isinstance(wanted, float) and isinstance(found, float) and not EXACT:
        if not np.isclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE):
            yield f"{where}: {found} is not {wanted}"
    elif type(found) is not type(wanted) or found != wanted:
        yield f"{where}: {found!r:.200} is not {wanted!r:.200}"


def array_differences(
    found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], tolerance: float
) -> Iterator[str]:
    """List the arrays that differ in type, shape or values."""
    if found.keys() != wanted.keys():
        yield f"names: {sorted(found.keys() ^ wanted.keys())} are in one only"
    for name in wanted.keys() & found.keys():
        new, old = found[name], wanted[name]
        if (new.dtype, new.shape) != (old.dtype, old.shape):
            yield f"{name}: {new.dtype} {new.shape} is not {old.dtype} {old.shape}"
        elif EXACT or not np.issubdtype(old.dtype, np.floating):
            if not np.array_equal(new, old):
                yield f"{name}: not equal"
        elif not name.endswith(FREE) and not np.allclose(new, old, rtol=tolerance, atol=tolerance):
            yield f"{name}: differs by {np.abs(new - old).max():.1e}"


@pytest.mark.parametrize("name", golden_run.ARRAYS)
def test_arrays_are_as_before(name: str, tmp_path: Path) -> None:
    """Compare weights, outputs of graphs, features."""
    if name == "weights_set_sparse" and "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("on this processor rounding decides otherwise which of two weights is dropped")
    found = golden_run.ARRAYS[name](tmp_path)
    tolerance = WEIGHT_TOLERANCE if name.startswith("weights") else TOLERANCE
    assert not list(array_differences(found, golden_run.read(name), tolerance))


@pytest.mark.parametrize("name", golden_run.VALUES)
def test_texts_and_scores_are_as_before(name: str, tmp_path: Path) -> None:
    """Compare texts, scores, times and the service's answers."""
    found = golden_run.VALUES[name](tmp_path)
    assert not list(differences(found, golden_run.read(name)))[:20]
