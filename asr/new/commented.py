"""The values of a recipe with the reasons for them, and its text with the reasons as comments."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

HEAD = "# Chosen by `asr new`. Change what you like: the same command uses the file as it is then."


@dataclass(frozen=True)
class Recipe:
    """The values of a recipe, as YAML holds them, and reasons for some of them by dotted key."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, value: object, reason: str = "") -> None:
        """Add the value of a dotted key."""
        *parents, last = key.split(".")
        values = self.values
        for parent in parents:
            values = values.setdefault(parent, {})
        values[last] = value
        if reason:
            self.reasons[key] = reason


def as_yaml(recipe: Recipe) -> str:
    """Return the text of a recipe, with a comment on each value that has a reason."""
    return "".join(f"{line}\n" for line in _lines(recipe.values, recipe.reasons))


def _lines(values: Mapping[str, Any], reasons: Mapping[str, str], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        key = f"{above}{name}"
        indent, why = "  " * key.count("."), f"  # {reasons[key]}" if key in reasons else ""
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:{why}"
            yield from _lines(value, reasons, f"{key}.")
        else:
            as_is = str(value).isprintable()  # else escaped
            flow = yaml.safe_dump(
                {name: value}, default_flow_style=True, allow_unicode=as_is, width=math.inf
            )
            yield f"{indent}{flow.strip()[1:-1]}{why}"
