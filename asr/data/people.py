"""Who speaks in a recording, by the cell of a table or the speaker of a manifest."""

import re

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
# People in one cell; what is between commas and slashes may be one name, as in `Smith, Ann`.
BETWEEN = re.compile("[;&+]")


def person(cell: str) -> str:
    """Return the name of a person in a cell, empty where it is none."""
    name = cell.strip()
    is_none = name in _EMPTY or name in ERRORS or name.casefold() in _UNNAMED
    is_none = is_none or not normalize_text(name)  # of invisible characters alone
    return "" if is_none else name


def key_of_person(name: str) -> str:
    """Return a name as it is compared: widths, cases and spaces are written in several ways."""
    return normalize_text(name).casefold()


def people_of(cell: str, between: re.Pattern[str] = BETWEEN) -> frozenset[str]:
    """Return the people whom a cell names, as they are compared: `ann; Bob` are two."""
    return frozenset(key_of_person(name) for name in between.split(cell) if person(name))
