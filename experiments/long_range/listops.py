"""ListOps: a nested expression over digits, whose value is its class (Nangia and Bowman 2018).

By the rules of the Long Range Arena (Tay et al. 2021, sec. 2.2.1): each argument of an operator is
an expression with probability 1/4 and a digit otherwise, an operator has 2 to 10 arguments, and
expressions nest 10 deep at most (9 by the Arena's code, which counts digits as a level). The
median of an even number of arguments is the mean of the middle two, rounded down.
"""

from collections.abc import Callable, Sequence
from random import Random
from statistics import median

import torch

from experiments.runner import Examples

N_CLASSES = 10
_NESTED, _MOST_ARGUMENTS, _DEEPEST = 0.25, 10, 10
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
# 0 is padding. The closing bracket is a token, as the opening one with its operator is.
TOKENS = ("", *map(str, range(10)), *OPERATORS, "]")


def expression(rng: Random, longest: int) -> tuple[list[str], int] | None:
    """Return the tokens of a random expression and its value, None if it has over `longest`."""
    tokens: list[str] = []
    value = _write(rng, tokens, longest, 1)
    return None if value is None else (tokens, value)


def _write(rng: Random, tokens: list[str], longest: int, depth: int) -> int | None:
    """Append an expression that begins at `depth`; return its value, None if it is too long."""
    operator = rng.choice(tuple(OPERATORS))
    tokens.append(operator)
    values = []
    for _ in range(rng.randint(2, _MOST_ARGUMENTS)):
        value: int | None
        if depth < _DEEPEST and rng.random() < _NESTED:
            value = _write(rng, tokens, longest, depth + 1)
        else:
            value = rng.randrange(10)
            tokens.append(str(value))
        if value is None or len(tokens) >= longest:
            return None
        values.append(value)
    tokens.append("]")
    return OPERATORS[operator](values)


def examples(n: int, shortest: int, longest: int, seed: int) -> Examples:
    """Return n different expressions of `shortest` to `longest` tokens with their values."""
    rng, numbers = Random(seed), {token: i for i, token in enumerate(TOKENS)}
    found: dict[tuple[str, ...], int] = {}
    while len(found) < n:
        drawn = expression(rng, longest)
        if drawn and len(drawn[0]) >= shortest:
            found[tuple(drawn[0])] = drawn[1]
    return [(torch.tensor([numbers[t] for t in tokens]), y) for tokens, y in found.items()]
