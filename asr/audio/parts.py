"""Find the recordings in a file: some programs write several in a row, or junk before the first.

libsndfile decodes only the first one, or fails. So each recording gets a view of its own bytes.
"""

import re
from bisect import bisect
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from os import SEEK_CUR, SEEK_END
from typing import BinaryIO

from asr.audio.ogg import Pages, find_pages

_WINDOW, _OVERLAP = 2**16, 64
_MP3_LENGTH = re.compile(rb"\xff[\xe2-\xff]..(?:.{9}|.{17}|.{32})(?:Xing|Info|VBRI)", re.DOTALL)
# The head of a tag (id3.org, ID3v2.4, 3.1); libmpg123 parses tags in a time quadratic in comments.
_TAG = rb"ID3[\x02-\x04][^\xff][\0\x10 0@P`p\x80\x90\xa0\xb0\xc0\xd0\xe0\xf0][\0-\x7f]{4}"
_NEXT = {
    b"fLaC": re.compile(rb"fLaC[\x00\x80]\x00\x00\x22"),
    # The group that matches tells how far the mark is behind the header of its frame. Looking back
    # from a mark takes a time that does not depend on the bytes before it.
    b"mp3": re.compile(
        _TAG + rb"|(?:Xing|Info|VBRI)(?:(?<=\xff[\xe2-\xff].{15})()|(?<=\xff[\xe2-\xff].{23})()"
        rb"|(?<=\xff[\xe2-\xff].{38})())",
        re.DOTALL,
    ),
}
_HEAD, _HEAD_BYTES = re.compile(_TAG, re.DOTALL), 10
_MP3_MARKS = (b"ID3", b"Xing", b"Info", b"VBRI")  # searching for these is ten times as fast
_BEHIND_HEADER = (0, 13, 21, 36)  # bytes from a frame's header to its mark, by that group's number
_MOST_TAGS = 1000  # ID3 tags in a row
_STEP = 2**24  # bytes that are searched in some 10 ms

# By the version bits of an MP3 frame's header: bit rates of layer III in kbit/s, sample rates in
# Hz, and a factor: a frame has factor · bit rate / sample rate bytes (ISO 11172-3, 13818-3, 2.4).
_LOW = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3: dict[int, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    0: (_LOW, (11025, 12000, 8000), 72),
    2: (_LOW, (22050, 24000, 16000), 72),
    3: (
        (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
        (44100, 48000, 32000),
        144,
    ),
}
_LONGEST_FRAME = 1441
_TAG_BYTES = 128  # ID3v1, at the end of a file
_FRAMES_IN_ROW = 4  # so many valid frames in a row do not occur at random
_BITRATE_RATIO = 40  # between the largest and the smallest bit rate


@dataclass
class Part:
    """The bytes from `start` to `end` of a file as a file of its own.

    `length` is the length that `seek` to the end gives, and `patch` replaces bytes at an offset.
    Both are for headers from which libsndfile would find less audio than there is. libmpg123 must
    not get ID3 tags: if `hides_tags`, their heads are read as zeros. The `holes`, spans of the
    file's offsets, are read as zeros too.
    """

    binary: BinaryIO
    start: int
    end: int
    length: int
    patch: tuple[int, bytes] = (0, b"")
    at: int = 0
    hides_tags: bool = True
    holes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_estimate(self) -> bool:
        """Return whether the length that libsndfile finds is only an estimate."""
        return self.length != self.end - self.start

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        at, n_left = self.start + self.at, max(0, self.end - self.start - self.at)
        if self.hides_tags:
            before = min(self.at, _HEAD_BYTES)  # a head may begin before the bytes and end after
            found = _read(self.binary, at - before, before + min(n_bytes, n_left) + _HEAD_BYTES)
            found = _HEAD.sub(bytes(_HEAD_BYTES), found)[before:][: min(n_bytes, n_left)]
        else:
            found = _read(self.binary, at, min(n_bytes, n_left))
        for hole in self.holes[bisect(self.holes, at, key=lambda hole: hole[1]) :]:
            begin, end = (min(max(edge - at, 0), len(found)) for edge in hole)
            if begin == len(found):
                break
            found = found[:begin] + bytes(end - begin) + found[end:]
        if self.is_estimate and self.at >= self.length - _TAG_BYTES:
            found = bytes(n_bytes)  # where libsndfile looks for a tag: there is none
        offset, patch = self.patch
        for i in range(max(offset, self.at), min(offset + len(patch), self.at + len(found))):
            found = found[: i - self.at] + patch[i - offset :][:1] + found[i - self.at + 1 :]
        self.at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset, as files do."""
        base = {SEEK_CUR: self.at, SEEK_END: self.length}.get(whence, 0)
        self.at = max(0, base + offset)
        return self.at

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self.at

    def end_early(self) -> None:
        """End an MP3 where it was read to, if another begins there, which may have no mark."""
        behind = self.start + self.at
        if self.start < behind < self.end:
            self.end = _skip_junk(self.binary, behind, self.end) or self.end


def find_parts(binary: BinaryIO, size: int) -> Iterator[Part | None]:
    """Yield the recordings of a file of `size` bytes; a file in no known format is one part.

    None is a pause in the search for the end of the next part, after some 10 ms. The caller decodes
    each part before it asks for the next (see `Part.end_early`).
    """
    start = _skip_junk(binary, 0, size) or 0
    ends: dict[bytes, Pages] = {}  # by kind: where the next recording of the kind begins
    while start < size:
        behind = after_tags(binary, start, size)
        if behind >= size and (start == 0 or behind > size):
            yield Part(binary, start, start, 0)  # empty: no decoder takes it
        if behind >= size:
            return
        if behind > start:
            start = _skip_junk(binary, behind, size) or behind
        kind = _kind(_read(binary, start, 4))
        if kind not in ends or start >= ends[kind].end:  # else the last part ended early
            ends[kind] = yield from _end(binary, kind, start, size)
        end = min(each.end for each in ends.values() if each.end > start)
        part = Part(binary, start, end, end - start, holes=ends[kind].holes)
        if kind == b"RIFF":
            part.patch = _unknown_length(_read(binary, start, _WINDOW), end - start)
        elif kind == b"mp3" and not _MP3_LENGTH.match(_read(binary, start, _OVERLAP)):
            part.length *= _BITRATE_RATIO  # else it ends where its first bit rate predicts
        yield part
        start = part.end


def _kind(head: bytes) -> bytes:
    """Return the kind of a recording by its first bytes, empty where the kind does not matter."""
    if head in (b"RIFF", b"fLaC", b"OggS"):
        return head
    return b"mp3" if re.match(rb"\xff[\xe0-\xff]", head) else b""  # of any layer


def _end(binary: BinaryIO, kind: bytes, start: int, size: int) -> Generator[None, None, Pages]:
    """Return where the recording that begins at `start` ends: before the next, or with the file."""
    if kind == b"OggS":
        return (yield from find_pages(binary, start, size))
    if kind == b"RIFF":
        n_bytes = int.from_bytes(_read(binary, start + 4, 4), "little")
        for at in (start + 8 + n_bytes, start + 8 + n_bytes + n_bytes % 2):
            if re.fullmatch(rb"RIFF....WAVE", _read(binary, at, 12), re.DOTALL):
                return Pages(at)
    elif kind in _NEXT:
        for at in range(start + 4, size, _STEP):
            found = _find(binary, _NEXT[kind], at, min(at + _STEP + _OVERLAP, size))
            if found is not None:
                return Pages(found)
            if at + _STEP < size:
                yield
    return Pages(size)


def _skip_junk(binary: BinaryIO, start: int, end: int) -> int | None:
    """Return where a recording begins, after zeros or a part of an MP3 frame; None if none does."""
    begin = _find(binary, re.compile(rb"[^\0]"), start, end)
    if begin is None:
        return None
    head = _read(binary, begin, min(_LONGEST_FRAME * (_FRAMES_IN_ROW + 2), end - begin))
    if re.match(rb"RIFF|fLaC|OggS|ID3|FORM|RF64|RIFX|\.snd|caff", head):
        return begin
    for match in re.finditer(rb"\xff[\xe2-\xff]", head[: _LONGEST_FRAME + 1]):
        at = match.start()
        for _ in range(_FRAMES_IN_ROW):
            n_bytes = _frame_bytes(head[at : at + 4])
            if not n_bytes:
                break
            at += n_bytes
        else:
            return begin + match.start()
    return None


def _frame_bytes(header: bytes) -> int:
    """Return the size in bytes of an MPEG layer III frame by its header, 0 if it is no header."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return 0
    version, bitrate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or bitrate in (0, 15) or rate == 3:
        return 0
    bitrates, rates, factor = _MP3[version]
    return factor * 1000 * bitrates[bitrate - 1] // rates[rate] + (header[2] >> 1 & 1)


def after_tags(binary: BinaryIO, start: int, size: int) -> int:
    """Return where ID3 tags (id3.org, ID3v2.4, 3.1) and the zeros behind each of them end.

    The end is beyond the file if a tag says so, or if there are too many tags.
    """
    for _ in range(_MOST_TAGS):
        head = _read(binary, start, 10)
        if not head.startswith(b"ID3"):
            return start
        start += 10 + sum((byte & 127) << 7 * (3 - i) for i, byte in enumerate(head[6:]))
        if start < size and _read(binary, start, 1) == b"\0":
            found = _find(binary, re.compile(rb"[^\0]"), start, size)
            start = size if found is None else found
    return size + 1


def _unknown_length(head: bytes, size: int) -> tuple[int, bytes]:
    """Return the patch of a WAV by a program that could not go back to write the lengths.

    In the header of such a file the data have a length of 0, and the whole has one that ends before
    the data or is at least that of the file. For other files the patch is empty.
    """
    at = 12
    while at + 8 <= len(head):
        n_bytes = int.from_bytes(head[at + 4 : at + 8], "little")
        if head[at : at + 4] == b"data":
            said = int.from_bytes(head[4:8], "little")
            is_unknown = n_bytes == 0 and (said <= at or said >= size) and at + 8 < size
            return (at + 4, b"\xff" * 4) if is_unknown else (0, b"")
        at += 8 + n_bytes + n_bytes % 2
    return (0, b"")


def _find(binary: BinaryIO, pattern: re.Pattern[bytes], start: int, end: int) -> int | None:
    """Return where a pattern of at most _OVERLAP bytes first begins."""
    for at in range(start, end, _WINDOW):
        block = _read(binary, at, min(_WINDOW + _OVERLAP, end - at))
        if pattern is _NEXT[b"mp3"] and not any(mark in block for mark in _MP3_MARKS):
            continue
        if match := pattern.search(block):
            return at + match.start() - _BEHIND_HEADER[match.lastindex or 0]
    return None


def _read(binary: BinaryIO, at: int, n_bytes: int) -> bytes:
    binary.seek(at)
    return binary.read(n_bytes)
