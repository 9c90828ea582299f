"""Read the text files that people have, whatever their encoding."""

from pathlib import Path

from asr.errors import DataError
from asr.runtime.files import read_bytes

_MOST_BYTES = 1 << 30


def read_text(path: Path) -> tuple[str, str]:
    """Return a file's text and its encoding: UTF-8, UTF-16 or GB18030, whichever it is wholly in.

    Raises DataError where it is in none, or in UTF-8 with a few damaged bytes.
    """
    try:
        data = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    bad = 0
    for encoding in _encodings(data):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            bad = data[: error.start].count(b"\n") + 1
            continue
        if "\0" in text:
            bad = text[: text.index("\0")].count("\n") + 1
            break
        return text, encoding.removesuffix("-sig")
    raise DataError(
        f"{path}, line {bad}: has bytes that are not text in UTF-8, UTF-16 or GBK: save the whole "
        "file as UTF-8"
    )


def _encodings(data: bytes) -> tuple[str, ...]:
    """Return the encodings that a text can have, the likeliest first."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ("utf-16",)
    if b"\0" in data:  # line breaks of UTF-16 without a mark: which byte of them is the zero?
        return ("utf-16-le",) if data[1::2].count(0) > data[::2].count(0) else ("utf-16-be",)
    text = data.decode("utf-8", "replace")
    n_wrong = text.count("\ufffd")
    n_right = sum(character > "\x7f" for character in text) - n_wrong
    return ("utf-8-sig",) if n_right >= n_wrong else ("gb18030",)
