"""Read the text files that people have, whatever their encoding."""

import re
from pathlib import Path

from asr.errors import DataError
from asr.runtime.files import read_bytes

_MOST_BYTES = 1 << 30
_JUDGED = 1 << 20  # bytes, by which a language is told
_SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # xlsx, ods and numbers, and xls
_ASCII = bytes(range(128))
_KANA, _HALF_KANA = re.compile("[\u3041-\u30fe]"), re.compile("[\uff61-\uff9f]")
_FOREIGN = re.compile("[\x80-\U0010ffff]")
_RUN = re.compile("[\x80-\U0010ffff]+")
_WITHIN = re.compile(  # a run of one, after a letter or before one
    "(?<=[A-Za-z])[\x80-\U0010ffff](?![\x80-\U0010ffff])"
    "|(?<![\x80-\U0010ffff])[\x80-\U0010ffff](?=[A-Za-z])"
)


def read_text(path: Path) -> tuple[str, str]:
    """Return a file's text and its encoding: UTF-8, UTF-16, GB18030 or Shift-JIS.

    Raises DataError where it is in none of them as a whole, as in UTF-8 with a few damaged bytes.
    """
    try:
        data = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    if data.startswith(_SPREADSHEETS):
        raise DataError(
            f"{path}: is a spreadsheet or another packed file: save it as text (CSV in UTF-8), and "
            "give that"
        )
    bad = data[: len(data) - len(data.lstrip(_ASCII))].count(b"\n") + 1
    for encoding in _encodings(data):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            bad = data[: error.start].count(b"\n") + 1
            continue
        if "\0" in text:
            bad = text[: text.index("\0")].count("\n") + 1
            break
        if encoding == "gb18030" and _is_western(text):
            break
        return text, encoding.removesuffix("-sig")
    raise DataError(
        f"{path}, line {bad}: has bytes that are not text in UTF-8, UTF-16, GBK or Shift-JIS: save "
        "the whole file as UTF-8"
    )


def _is_western(text: str) -> bool:
    """Tell whether what was read as GBK is of letters with accents: single signs within words."""
    n_within, n_runs = len(_WITHIN.findall(text)), len(_RUN.findall(text))
    return n_within > n_runs / 2


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encodings(data: bytes) -> tuple[str, ...]:
    """Return the encodings that a text can have, the likeliest first."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ("utf-16",)
    n_even, n_odd = data[::2].count(0), data[1::2].count(0)
    # UTF-16 without a mark: which byte of its line breaks and Latin letters is the zero? UTF-8 with
    # a few zeros is damaged.
    if n_even + n_odd > len(data) / 8 or (n_even + n_odd and not _is_utf8(data)):
        return ("utf-16-le",) if n_odd > n_even else ("utf-16-be",)
    text = data.decode("utf-8", "replace")
    n_wrong = text.count("\ufffd")
    n_right = sum(character > "\x7f" for character in text) - n_wrong
    if n_right >= n_wrong:
        return ("utf-8-sig",)
    return ("cp932",) if _is_japanese(data) else ("gb18030",)


def _is_japanese(data: bytes) -> bool:
    """Tell whether a text makes sense as Shift-JIS: with kana, and hardly any of half the width.

    Those are what the bytes of Chinese characters in GBK would be.
    """
    text = data[:_JUDGED].decode("cp932", "replace")
    n_kana, n_half = len(_KANA.findall(text)), len(_HALF_KANA.findall(text))
    return n_kana > len(_FOREIGN.findall(text)) / 10 and n_kana > 2 * n_half
