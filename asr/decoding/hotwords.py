"""Read lists of hotwords: phrases that a text may hold, each with a weight or the default one.

No torch, so that services can use it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asr.errors import ConfigError

MOST_WEIGHT = 10.0
# Limits on the hotwords of a request to a service: phrases, and characters of a phrase.
MOST_PHRASES, MOST_CHARACTERS = 1000, 50
# A part of a prompt with more characters is a sentence and not a name.
_LONGEST_OF_PROMPT = 20
_MARKS = re.compile(r"[\n\t,，、;；.。!！?？:：\"“”()（）]+")


class Hotword(NamedTuple):
    """A phrase, and its weight: what each of its tokens but the first adds to a score.

    A weight of None stands for `decoding.hotword_weight`.
    """

    phrase: str
    weight: float | None = None


Given = str | tuple[str, float | None] | Hotword | Mapping[str, float | None]


def as_hotwords(given: Iterable[Given] | Mapping[str, float | None]) -> tuple[Hotword, ...]:
    """Return phrases, or pairs of a phrase and its weight, as hotwords; a mapping has such pairs.

    Raises ConfigError for a single string, because its characters would be the phrases, and for
    anything that is no phrase.
    """
    if isinstance(given, str):
        raise ConfigError(f"hotwords are {given!r}, expected a list of phrases: put it into one")
    found = []
    for each in given.items() if isinstance(given, Mapping) else given:
        pairs: Iterable[Any] = each.items() if isinstance(each, Mapping) else (each,)
        found += [_hotword(pair) for pair in pairs]
    return tuple(found)


def _hotword(given: Any) -> Hotword:
    phrase, *weight = given if isinstance(given, list | tuple) and given else (given,)
    if not isinstance(phrase, str) or len(weight) > 1:
        raise ConfigError(
            f"hotwords: {given!s:.80} is no phrase and no pair of a phrase and its weight: write "
            "it in quotes"
        )
    return Hotword(phrase, weight[0] if weight else None)


def parse_hotwords(text: str, name: str = "hotwords") -> tuple[Hotword, ...]:
    """Return the hotwords of a text: on each line a phrase, or `phrase<TAB>weight`.

    Empty lines and those that begin with # are left out. Raises ConfigError for a wrong weight, or
    a weight without a phrase.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        phrase, tab, weight = line.partition("\t")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not phrase.strip():
            raise ConfigError(f"{name}, line {number}: no phrase before the tab: write one there")
        found.append(Hotword(phrase.strip(), _weight(weight, name, number) if tab else None))
    return tuple(found)


def read_hotwords(path: Path) -> tuple[Hotword, ...]:
    """Return the hotwords of a file in UTF-8 (see `parse_hotwords`)."""
    try:
        return parse_hotwords(path.read_text("utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read as hotwords ({error}): give a text file in UTF-8, a phrase a "
            "line"
        ) from error


def as_text(hotwords: Iterable[Hotword]) -> str:
    """Return hotwords as a text in the format of `parse_hotwords`."""
    return "\n".join(p if w is None else f"{p}\t{w:g}" for p, w in hotwords)


def of_request(
    hotwords: str, prompt: str = "", keywords: Sequence[str] = ()
) -> tuple[Hotword, ...]:
    """Return the hotwords of a request to a service, with those of its prompt.

    `hotwords` has a phrase per line, or phrases with commas between. Each keyword is a phrase.
    Raises ConfigError where there are too many of these, or one is too long. The prompt's parts
    between punctuation are names, with the default weight. Longer parts are sentences: these are
    left out, and so are names beyond the limit on the number.
    """
    listed = parse_hotwords(re.sub("[,，、]", "\n", hotwords))
    found = (*listed, *(Hotword(keyword.strip()) for keyword in keywords if keyword.strip()))
    if len(found) > MOST_PHRASES:
        raise ConfigError(f"{len(found)} hotwords: give {MOST_PHRASES} or fewer")
    for phrase, _ in found:
        if len(phrase) > MOST_CHARACTERS:
            raise ConfigError(
                f"hotword {phrase[:MOST_CHARACTERS]}… has {len(phrase)} characters: give "
                f"{MOST_CHARACTERS} or fewer"
            )
    names = (part.strip() for part in _MARKS.split(prompt))
    more = (Hotword(name) for name in names if 0 < len(name) <= _LONGEST_OF_PROMPT)
    return tuple(dict.fromkeys((*found, *more)))[:MOST_PHRASES]


def _weight(text: str, name: str, line: int) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight <= MOST_WEIGHT:
        raise ConfigError(
            f"{name}, line {line}: the weight {text.strip()!a:.40} is no number above 0 and up to "
            f"{MOST_WEIGHT:g}: write phrase<TAB>weight"
        )
    return weight
