"""Words for the folder of `asr export --format sherpa`."""

from asr.config import Config


def card(kind: str, config: Config) -> str:
    """Return the README of an exported model: the calls that load it."""
    return ""
