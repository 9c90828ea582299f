"""YAML that holds values: no tags, no aliases, no depth, no numbers of thousands of digits."""

from pathlib import Path
from typing import Any

import yaml

from asr.errors import ConfigError
from asr.runtime.files import read_bytes

# A recipe has 3 kB; a compressed bundle's list of ranks 20 kB.
_MOST_BYTES = 1 << 18
_DEPTH = 20
_DIGITS = 100


class _Loader(yaml.SafeLoader):
    """Builds values; a file of a few bytes cannot make it build many.

    Aliases multiply what they stand for, and a number's text may take long to convert and print. A
    tag calls a text what it is not: PyYAML then fails in any way.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node."""
        if self.check_event(yaml.AliasEvent):
            self._refuse("an alias (*name)")
        if tag := getattr(self.peek_event(), "tag", None):  # type: ignore[no-untyped-call]
            self._refuse(f"a tag ({tag:.60})")
        if self.depth == _DEPTH:
            self._refuse(f"more than {_DEPTH} levels")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_scalar(self, node: Any) -> Any:
        """Return the text of a scalar, from which its value is made."""
        if node.tag != "tag:yaml.org,2002:str" and len(node.value) > _DIGITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number or date of more than {_DIGITS} characters", node.start_mark
            )
        return super().construct_scalar(node)

    def _refuse(self, what: str) -> None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        raise yaml.composer.ComposerError(None, None, f"{what} is not allowed", mark)


def parse_yaml(text: str) -> Any:
    """Return the values of YAML. Raises ValueError that says what is wrong."""
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split()):.300})") from error


def read_yaml(path: Path) -> dict[Any, Any]:
    """Read a file of keys and values. Raises ConfigError if it is anything else."""
    try:
        values = parse_yaml(read_bytes(path, _MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}): give a recipe's path"
        ) from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no keys: a recipe has at least data.train and data.dev")
    return values
