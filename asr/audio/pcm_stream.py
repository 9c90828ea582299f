"""Audio that arrives through a pipe: raw 16-bit PCM, or a WAV whose length is not known yet.

`asr.audio.recording` reads whole files instead, and seeks in them.
"""

import math
import select
import struct
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import chain
from typing import Any

import numpy as np
import soxr

from asr.audio.decoder import RATES
from asr.errors import AudioError

_BLOCK = 2**13  # bytes that are read at once, at most
_PCM, _EXTENSIBLE = 1, 0xFFFE
_UNKNOWN = 0x7FFF0000  # bytes of samples: so many or more (GStreamer writes this) are no length


def blocks_of(pipe: BufferedReader, sample_rate: int, raw_rate: int) -> Iterator[np.ndarray]:
    """Yield mono float32 blocks (samples,) at `sample_rate` Hz until the pipe is closed.

    Each block comes as soon as it has arrived. Input that does not begin with `RIFF` is raw: 16
    bits, little-endian, mono, `raw_rate` Hz. Ctrl-C ends the stream too. Raises AudioError for a
    WAV of other samples than 16-bit PCM.
    """
    channels, rate, n_bytes = 1, raw_rate, math.inf
    first = pipe.read(4)
    if first == b"RIFF":
        channels, rate, n_bytes = _read_head(pipe)
        first = b""
    resampler: Any = None
    if rate != sample_rate:
        resampler = soxr.ResampleStream(rate, sample_rate, 1, dtype="float32")
    held = b""
    for piece in chain([first] if first else [], _pieces(pipe, n_bytes)):
        data = held + piece
        whole = len(data) // (2 * channels) * 2 * channels
        block_NC = np.frombuffer(data[:whole], "<i2").reshape(-1, channels)
        block = block_NC.mean(axis=1, dtype=np.float32) / np.float32(2**15)
        yield resampler.resample_chunk(block) if resampler else block
        held = data[whole:]
    if resampler:
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


def _pieces(pipe: BufferedReader, n_bytes: float) -> Iterator[bytes]:
    """Yield the bytes of samples as they arrive; the header announces `n_bytes` of them."""
    while n_bytes and (piece := _read(pipe, n_bytes)):
        n_bytes -= len(piece)
        yield piece
    if not n_bytes and (head := _beyond(pipe)):
        yield head
        while piece := _read(pipe, _BLOCK):
            yield piece


def _beyond(pipe: BufferedReader) -> bytes:
    """Return the first bytes after the announced samples if they are samples too, else nothing.

    A program that writes into a pipe may announce only the length of its first block. Any other
    chunk of a WAV begins with its name in ASCII. A pipe that stays open but sends nothing for a
    second has ended here.
    """
    head = b""
    with suppress(KeyboardInterrupt):
        if _comes(pipe):
            head = pipe.read(8)
    is_part = all(32 <= byte < 127 for byte in head[:4])
    return b"" if len(head) < 8 or is_part else head


def _comes(pipe: BufferedReader) -> bool:
    """Tell whether more comes within a second, or the pipe is closed."""
    try:
        return bool(select.select([pipe], [], [], 1.0)[0])
    except (OSError, ValueError):  # the pipe has no descriptor
        return True


def _read(pipe: BufferedReader, most: float) -> bytes:
    """Return the bytes that have arrived, from one to `most`; nothing at the end or by Ctrl-C."""
    try:
        return pipe.read1(int(min(_BLOCK, most)))
    except KeyboardInterrupt:
        return b""


def _read_head(pipe: BufferedReader) -> tuple[int, int, float]:
    """Read the head of a WAV after `RIFF`; return channels, rate in Hz and bytes of samples.

    The bytes are infinity if their number is not known. Raises AudioError for other samples than
    16-bit PCM.
    """
    format = (0, 0, 0, 0, 0, 0)
    kind, size = pipe.read(8)[4:], 0  # b"WAVE"
    while len(head := pipe.read(8)) == 8:
        kind, size = head[:4], int.from_bytes(head[4:], "little")
        if kind == b"data":
            break
        content = pipe.read(min(size, 16))
        left = size + size % 2 - len(content)
        while left > 0 and (skipped := pipe.read(min(left, _BLOCK))):
            left -= len(skipped)
        if kind == b"fmt " and len(content) == 16:
            format = struct.unpack("<HHIIHH", content)
    tag, channels, rate, _, _, bits = format
    if kind != b"data" or not (
        tag in (_PCM, _EXTENSIBLE) and bits == 16 and 1 <= channels <= 8 and rate in RATES
    ):
        raise AudioError(
            "standard input is a WAV of other samples than 16-bit PCM: convert it, as with "
            "ffmpeg's `-f s16le -ac 1`"
        )
    # A program that writes to a pipe does not know the length, and writes 0 or the largest number.
    return channels, rate, size if 0 < size < _UNKNOWN else math.inf
