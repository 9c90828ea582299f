"""The tasks are what their papers say, by independent readings of each sequence."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from experiments.long_range import duplication, listops, pathfinder


def value_of(tokens: list[str]) -> int:
    """Evaluate an expression from its tokens with a stack; fail if it is none."""
    stack: list[list[str | int]] = [[]]
    for token in tokens:
        if token.startswith("["):
            stack.append([token])
        elif token == "]":
            operator, *values = stack.pop()
            numbers = sorted(int(v) for v in values)
            assert 2 <= len(numbers) <= 10
            results = {
                "[MIN": numbers[0], "[MAX": numbers[-1], "[SM": sum(numbers) % 10,
                "[MED": int(np.median(numbers)),
            }  # fmt: skip
            stack[-1].append(results[str(operator)])
        else:
            stack[-1].append(int(token))
    ((value,),) = stack
    return int(value)


@pytest.mark.parametrize(
    ("arguments", "value"), [((7, 2), 4), ((9, 0, 1, 4), 2), ((5, 3, 5, 4), 4), ((8, 1, 3), 3)]
)
def test_a_median_of_an_even_number_is_the_mean_of_the_middle_two_without_its_half(
    arguments: tuple[int, ...], value: int
) -> None:
    found = listops.OPERATORS["[MED"](arguments)
    assert found == value and type(found) is int


def test_an_expression_has_its_value_and_length() -> None:
    found = listops.examples(200, 30, 90, seed=3)
    deepest = 0
    for tokens_S, value in found:
        tokens = [listops.TOKENS[i] for i in tokens_S]
        assert 30 <= len(tokens) <= 90 and value_of(tokens) == value
        depths = torch.tensor([(t.startswith("[")) - (t == "]") for t in tokens]).cumsum(0)
        deepest = max(deepest, int(depths.max()))
    assert 3 <= deepest <= 10 and {value for _, value in found} == set(range(10))
    assert len({tuple(tokens.tolist()) for tokens, _ in found}) == 200
    again = listops.examples(200, 30, 90, seed=3)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(found, again, strict=True))


def test_two_dots_are_joined_by_dashes_or_are_not() -> None:
    for pixels_S, is_joined in pathfinder.examples(60, 24, seed=3):
        ink = pixels_S.reshape(24, 24).numpy() > 0
        # Within a path ink is two pixels from ink at most, paths are further from one another.
        points = np.argwhere(ink)
        _, parts = connected_components(cdist(points, points, "chebyshev") <= 2)
        part_of = {(r, c): part for (r, c), part in zip(points.tolist(), parts, strict=True)}
        squares = {
            part_of[r, c]
            for r, c in product(range(22), repeat=2)
            if ink[r : r + 3, c : c + 3].all()
        }
        assert len(squares) == (1 if is_joined else 2)


def test_the_text_is_there_twice_and_only_the_second_counts() -> None:
    tokens_BU = duplication.sequences(4, 8, 10, torch.Generator().manual_seed(1))
    assert tokens_BU.shape == (4, 16) and torch.equal(tokens_BU[:, :8], tokens_BU[:, 8:])
    assert (tokens_BU[:, 0] == 0).all() and 1 <= tokens_BU[:, 1:8].min() <= tokens_BU.max() <= 10

    class Copier(torch.nn.Module):
        def forward(self, tokens_BU: torch.Tensor) -> torch.Tensor:
            """Know the token of seven positions before, which is right in the second half alone."""
            before = torch.roll(tokens_BU, 7, 1)
            return 50.0 * torch.nn.functional.one_hot(before, 11).float()

    assert duplication.loss_of(Copier(), tokens_BU) < 1e-6  # type: ignore[arg-type]
