"""Read the text files that people have, whatever their encoding."""

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from charset_normalizer import from_bytes

from asr.errors import DataError
from asr.runtime.files import read_bytes

_MOST_BYTES = 1 << 30
_MOST_SEEN = 1 << 20  # bytes of lines beyond ASCII that are used to find an encoding
_FEW = 120  # bytes beyond ASCII, which tell little: they make sense in many encodings
_SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # xlsx, ods and numbers, and xls
_ASCII = bytes(range(128))
_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16
_EAST_ASIAN = ("gb18030", "cp932", "big5hkscs", "cp949")
_OF_ONE_BYTE = ("cp1252", "cp1251")  # stand for all such: a text hardly shows which it is in
_KANA, _HALF_KANA = re.compile("[\u3041-\u30fe]"), re.compile("[\uff61-\uff9f]")
_FOREIGN = re.compile("[\x80-\U0010ffff]")
_WIDE, _BY_CHANCE = re.compile("[\u0800-\U0010ffff]"), 0.001  # 3 bytes in UTF-8; share of lines
_RUN = re.compile("[\x80-\U0010ffff]+")
_WITHIN = re.compile(  # a single character, after a Latin letter or before one
    "(?<=[A-Za-z])[\x80-\U0010ffff](?![\x80-\U0010ffff])"
    "|(?<![\x80-\U0010ffff])[\x80-\U0010ffff](?=[A-Za-z])"
)


def read_text(path: Path) -> tuple[str, str]:
    """Return a file's text and its encoding: UTF-8, UTF-16, GB18030, Big5, CP949 or Shift-JIS.

    Raises DataError where the whole file is in none of them, as UTF-8 with a few damaged bytes.
    """
    data = _read(path)
    return _decode(path, data, _encoding(data))


def read_texts(paths: Sequence[Path]) -> dict[Path, tuple[str, str] | DataError]:
    """Return for each file what `read_text` returns, or the error for which it cannot be read.

    Files that are not in UTF-8 or UTF-16 are taken to share one encoding: the words of all files
    together show it better than those of each.
    """
    found, others = dict[Path, tuple[str, str] | DataError](), dict[Path, bytes]()
    for path in paths:
        try:
            data = _read(path)
            if _is_utf8(data) or data.startswith(_MARKS) or b"\0" in data:
                found[path] = _decode(path, data, _encoding(data))
            elif _is_damaged_utf8(data):
                found[path] = _decode(path, data, "utf-8-sig")
            else:
                others[path] = data
        except DataError as error:
            found[path] = error
    encoding = _encoding(b"\n".join(others.values()))
    for path, data in others.items():
        try:
            found[path] = _decode(path, data, encoding)
        except DataError as error:
            found[path] = error
    return found


def _read(path: Path) -> bytes:
    try:
        data = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    if data.startswith(b"ooBinaryFile"):
        raise DataError(f"{path}: is a binary file of Praat: save it there as a text file")
    if data.startswith(_SPREADSHEETS):
        raise DataError(
            f"{path}: is a spreadsheet or another packed file: save it as text (CSV in UTF-8), and "
            "give that"
        )
    return data


def _decode(path: Path, data: bytes, encoding: str | None) -> tuple[str, str]:
    bad = data[: len(data) - len(data.lstrip(_ASCII))].count(b"\n") + 1
    if encoding:
        if encoding in _EAST_ASIAN and (stray := _line_in_utf8(data)):
            raise DataError(
                f"{path}, line {stray}: is in UTF-8, and other lines are not, as where two files "
                "were joined: save each as UTF-8, and join them again"
            )
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            bad = data[: error.start].count(b"\n") + 1
        else:
            if "\0" in text:
                bad = text[: text.index("\0")].count("\n") + 1
            elif encoding not in _EAST_ASIAN or not _is_western(text):
                return text, encoding.removesuffix("-sig")
    raise DataError(
        f"{path}, line {bad}: has bytes that are not text in UTF-8, UTF-16, GBK, Big5, CP949 or "
        "Shift-JIS: save the whole file as UTF-8"
    )


def _is_western(text: str) -> bool:
    """Tell whether a text was decoded wrongly: most foreign characters are single ones in words.

    These are letters with accents.
    """
    n_within, n_runs = len(_WITHIN.findall(text)), len(_RUN.findall(text))
    return n_within > n_runs / 2


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_damaged_utf8(data: bytes) -> bool:
    """Tell whether a text in UTF-8 has more characters of three bytes than damaged places."""
    text = data.decode("utf-8", "replace")
    return sum("\u0800" <= character < "\ufffd" for character in text) > text.count("\ufffd")


def _line_in_utf8(data: bytes) -> int | None:
    """Return the number of a line that is in UTF-8, in a file that as a whole is not, or None.

    By chance, three Chinese characters of GBK are seldom two others in UTF-8, and six are hardly
    ever four.
    """
    short, n_foreign = list[int](), 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.isascii():
            continue
        n_foreign += 1
        n_wide = len(_WIDE.findall(line.decode())) if _is_utf8(line) else 0
        if n_wide >= 4:
            return number
        if n_wide >= 2:
            short.append(number)
    return short[0] if len(short) > max(1, _BY_CHANCE * n_foreign) else None


def _encoding(data: bytes) -> str | None:
    """Return the likely encoding of a text; None for an encoding of one byte, such as CP1252."""
    if data.startswith(_MARKS):
        return "utf-16"
    n_even, n_odd, is_utf8 = data[::2].count(0), data[1::2].count(0), _is_utf8(data)
    # UTF-16 without a mark: which byte of its line breaks and Latin letters is the zero? UTF-8 with
    # a few zeros is damaged.
    if n_even + n_odd > len(data) / 8 or (n_even + n_odd and not is_utf8):
        return "utf-16-le" if n_odd > n_even else "utf-16-be"
    if is_utf8:
        return "utf-8-sig"
    text = data.decode("utf-8", "replace")
    n_wrong = text.count("\ufffd")
    n_right = sum(character > "\x7f" for character in text) - n_wrong
    return "utf-8-sig" if n_right >= n_wrong else _regional(data)


def _regional(data: bytes) -> str | None:
    """Return the likeliest regional encoding; None for an encoding of one byte."""
    part, n_foreign = bytearray(), 0
    for line in BytesIO(data.replace(b"\r", b"\n")):
        if not line.isascii():
            part += line
            n_foreign += len(line.translate(None, _ASCII))
        if len(part) > _MOST_SEEN:
            break
    if n_foreign < _FEW:
        return "cp932" if _is_japanese(part) else "gb18030"
    found = from_bytes(part, cp_isolation=[*_EAST_ASIAN, *_OF_ONE_BYTE]).best()
    encoding = found.encoding if found else "gb18030"
    return None if encoding in _OF_ONE_BYTE else encoding


def _is_japanese(data: bytes | bytearray) -> bool:
    """Tell whether a text makes sense as Shift-JIS: it has kana, and hardly any half-width kana.

    Chinese characters in GBK would be half-width kana in Shift-JIS.
    """
    text = data.decode("cp932", "replace")
    n_kana, n_half = len(_KANA.findall(text)), len(_HALF_KANA.findall(text))
    return n_kana > len(_FOREIGN.findall(text)) / 10 and n_kana > 2 * n_half
