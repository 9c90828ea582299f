"""Find the whole pages of an Ogg file (RFC 3533); libogg gets no others.

libogg computes the checksum of up to 65 kB at each place that looks like the start of a page. A
file full of such places would take hours.
"""

import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import BinaryIO

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_HEAD, _MOST_LACING = 27, 255
_MOST_PAGE = _HEAD + _MOST_LACING + 255 * _MOST_LACING  # bytes
_IS_FIRST = 2  # a flag: the page begins a stream
_PAGE_COST, _STEP = 1500, 2**22  # in bytes read in the same time: a page; some 15 ms
_MOST_DAMAGED = 1000
_SEARCHED = 2**20
_IGNORED_BYTES = 2**12  # behind the last page: a tag, which is no audio


@dataclass
class Pages:
    """The end of one recording's pages, and the spans between them that are damaged, as offsets."""

    end: int
    holes: list[tuple[int, int]] = field(default_factory=list)


def find_pages(binary: BinaryIO, start: int, size: int) -> Generator[None, None, Pages]:
    """Return the pages of the recording that begins at `start`; yield now and then as a pause.

    The recording ends before the next one, after its last whole page, or where too much is damaged.
    """
    pages, at, n_damaged, is_group, work = Pages(start), start, 0, True, 0
    while n_damaged <= _MOST_DAMAGED:
        end, flags = _page(binary, at)
        work += _PAGE_COST + binary.tell() - at
        if work > _STEP:
            work = 0
            yield
        if end:
            if flags & _IS_FIRST and not is_group:
                break
            is_group = bool(flags & _IS_FIRST)
            if at > pages.end:
                pages.holes.append((pages.end, at))
            at = pages.end = end
            continue
        n_damaged += 1
        found = yield from _next_mark(binary, at + 1, size)
        if found is None:
            break
        at = found
    is_nothing = pages.end == start or size - pages.end <= _IGNORED_BYTES
    if is_nothing or (yield from _is_zero(binary, pages.end, size)):
        pages.holes.append((pages.end, size))
        pages.end = size
    return pages


def is_cut_off(binary: BinaryIO) -> bool:
    """Return whether the last page of a file goes beyond the end of the file."""
    size = binary.seek(0, 2)
    binary.seek(max(0, size - _MOST_PAGE))
    tail = binary.read(_MOST_PAGE)
    start = tail.rfind(b"OggS\0")
    page = tail[start:]
    if start < 0:
        return False
    if len(page) < _HEAD:
        return True
    n_segments = page[_HEAD - 1]
    return len(page) < _HEAD + n_segments + sum(page[_HEAD : _HEAD + n_segments])


def _page(binary: BinaryIO, at: int) -> tuple[int, int]:
    """Return the end and the flags of the page at an offset; an end of 0 if none is whole."""
    binary.seek(at)
    head = binary.read(_HEAD)
    if len(head) < _HEAD or head[:5] != b"OggS\0":
        return 0, 0
    lacing = binary.read(head[26])
    body = binary.read(sum(lacing))
    # libsndfile searches for the last page from within another one, which must hold few marks.
    if len(lacing) < head[26] or len(body) < sum(lacing) or body.count(b"OggS") > 1:
        return 0, 0
    page = b"".join((head[:22], bytes(4), head[26:], lacing, body)).translate(_REVERSED)
    checksum = (zlib.crc32(page, 0xFFFFFFFF) ^ 0xFFFFFFFF).to_bytes(4, "big").translate(_REVERSED)
    is_whole = checksum == head[22:26]
    return (at + _HEAD + len(lacing) + len(body) if is_whole else 0), head[5]


def _next_mark(binary: BinaryIO, start: int, size: int) -> Generator[None, None, int | None]:
    for at in range(start, size, _SEARCHED):
        binary.seek(at)
        found = binary.read(_SEARCHED + 4).find(b"OggS\0")
        if found >= 0:
            return at + found
        if at + _SEARCHED < size:
            yield
    return None


def _is_zero(binary: BinaryIO, start: int, size: int) -> Generator[None, None, bool]:
    for at in range(start, size, _SEARCHED):
        binary.seek(at)
        block = binary.read(_SEARCHED)
        if block.count(0) < len(block):
            return False
        if at + _SEARCHED < size:
            yield
    return True
