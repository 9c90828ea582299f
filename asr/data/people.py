"""Who speaks in a recording, by the cell of a table or the speaker of a manifest."""

import re
from collections.abc import Iterable, Set
from functools import lru_cache
from itertools import chain

from asr.normalization import normalize_text

_UNNAMED = {"?", "-", "unknown", "unk", "<unk>", "none", "null", "undefined", "n/a", "n.a.",
            "anonymous"}  # in place of a name, in any case  # fmt: skip
_EMPTY = {"NA", "nan", "NaN"}  # empty cells of R and Python; Na and Nan are names of people
# What spreadsheets show in place of a value, in several languages.
ERRORS = {
    "#N/A", "#NAME?", "#REF!", "#VALUE!", "#DIV/0!", "#NULL!", "#NUM!", "#SPILL!", "#CALC!",
    "#ERROR!", "#UNKNOWN!", "#NV", "#BEZUG!", "#WERT!", "#ZAHL!", "#NOM?", "#VALEUR!", "#NOMBRE!",
    "#NUL!", "#N/D", "#NOME?", "#RIF!", "#VALORE!", "#VALOR!", "#¿NOMBRE?", "#¡REF!", "#¡VALOR!",
    "#N/B", "#NAAM?", "#VERW!", "#WAARDE!", "#Н/Д", "#ИМЯ?", "#ССЫЛКА!", "#ЗНАЧ!", "#N/D!",
    "#NAZWA?", "#ADR!", "#ARG!",
}  # fmt: skip
_BETWEEN = re.compile("[;&+；＆＋、]")  # the people in one cell
_MAYBE_BETWEEN = re.compile("[;&+,/|；＆＋、，／｜]")  # the people, or the parts of one name


def person(cell: str) -> str:
    """Return the name of a person in a cell, empty if the cell holds no name."""
    name = cell.strip()
    is_none = name in _EMPTY or name in ERRORS or name.casefold() in _UNNAMED
    is_none = is_none or not normalize_text(name)  # of invisible characters alone
    return "" if is_none else name


@lru_cache(1 << 16)
def key_of_person(name: str) -> str:
    """Return the key by which a name is compared, without differences of width, case or spaces."""
    return normalize_text(name).casefold()


def people_of(cell: str, known: Set[str] = frozenset()) -> frozenset[str]:
    """Return the keys (see `key_of_person`) of the people in a cell: `ann; Bob` are two.

    A name between commas, slashes or bars is a person if its key is one of the `known`.
    """
    people = _named(cell, _BETWEEN)
    if not known:
        return people
    parts = parts_of(cell)
    return parts if parts <= known else people | (parts & known)


def everybody_of(cells: Iterable[str]) -> frozenset[str]:
    """Return the keys of the people whom cells name."""
    cells = set(cells)
    known = frozenset(chain(*map(people_of, cells)))
    return frozenset(chain(*(people_of(cell, known) for cell in cells)))


def in_both(cells: Iterable[str], others: Iterable[str]) -> frozenset[str]:
    """Return the keys of the people whom cells of both groups name."""
    cells, others = set(cells), set(others)
    known = frozenset(chain(*map(people_of, cells | others)))
    named, named_too = (chain(*(people_of(cell, known) for cell in of)) for of in (cells, others))
    return frozenset(named) & frozenset(named_too)


def parts_of(cell: str) -> frozenset[str]:
    """Return the keys of names or their parts: the same ones for `Smith, Ann` and `Ann/Smith`."""
    return _named(cell, _MAYBE_BETWEEN)


def names_all(cell: str) -> bool:
    """Tell whether a cell has names alone, and at least one: nothing like `unknown`."""
    people = [name for name in _BETWEEN.split(cell) if name.strip()]
    return bool(people) and all(map(person, people))


def _named(cell: str, between: re.Pattern[str]) -> frozenset[str]:
    return frozenset(key_of_person(name) for name in between.split(cell) if person(name))
