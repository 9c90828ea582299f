"""Decode a recording by FFmpeg (PyAV), in a process that can open, write and start nothing else.

A script that `asr.audio.media` starts. Standard input is the recording, the argument is the only
format that it may have. Blocks, each after a HEAD, go to standard output. The script imports
nothing from `asr`, so that it starts quickly and has no data of the program.
"""

import json
import os
import resource
import struct
import sys
from collections.abc import Iterator

import av
import av.container
import av.subtitles.codeccontext
import av.subtitles.stream  # av.open would import it when no file can be opened any more
from av.stream import Discard

# The head of a block: sample rate in Hz, channels, offset in the file, number of bytes that follow.
# A rate of 0 means that a note in JSON follows.
HEAD = struct.Struct("<IIQI")
_BLOCK_BYTES = 1 << 16
_MEMORY = 1 << 30
_BLOCK_SECONDS = 30  # of processor time for a block: a file that takes longer may never end
_BUFFER = 1 << 18
_NEAR = 0.02  # relative difference of lengths that count as equal
_GAP, _MOST_SILENCE = 0.05, 4 * 3600.0  # seconds: the longest that is no gap; the most of all gaps
_LONG = 0.5  # seconds; the adjustment of a clock makes no longer gaps
_CODECS = (
    "aac", "aac_latm", "alac", "ac3", "eac3", "amrnb", "amrwb", "flac", "libopencore_amrnb",
    "libopencore_amrwb", "libopus", "mp1", "mp2", "mp3", "mp3float", "opus", "pcm_alaw",
    "pcm_f32le", "pcm_mulaw", "pcm_s16be", "pcm_s16le", "pcm_s24le", "speex", "libspeex", "vorbis",
    "libvorbis", "wmalossless", "wmapro", "wmav1", "wmav2", "wmavoice",
)  # fmt: skip


class Input:
    """Standard input with a position of its own: another process shares that of the file."""

    def __init__(self) -> None:
        self.at, self.size = 0, os.fstat(0).st_size

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        found = os.pread(0, n_bytes, self.at)
        self.at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset, as files do."""
        self.at = max(0, (0, self.at, self.size)[whence] + offset)
        return self.at

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self.at


def restrict() -> None:
    """Give up what decoding does not need: other files, connections, and unlimited memory."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


def send(rate: int, channels: int, place: int, content: bytes) -> None:
    """Write a block or a note, and set the limit of processor time for the next one."""
    sys.stdout.buffer.write(HEAD.pack(rate, channels, place, len(content)) + content)
    sys.stdout.buffer.flush()
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + _BLOCK_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def note(place: int = 0, **values: object) -> None:
    """Write a note in JSON of what is known about the recording."""
    send(0, 0, place, json.dumps(values).encode())


def refuse(*_: object) -> None:
    """Raise PermissionError: some formats ask for other files, which are not opened."""
    raise PermissionError("a recording names another file, which is not opened")


def frames(
    container: av.container.InputContainer, stream: av.AudioStream
) -> Iterator[tuple[int, av.AudioFrame]]:
    """Yield the offset in the file and the audio of each frame; then note the damaged packets."""
    n_damaged, place = 0, 0
    packets = container.demux(stream)
    while True:
        try:
            if (packet := next(packets, None)) is None:
                break
        except av.FFmpegError:
            n_damaged += 1
            break
        place = max(place, packet.pos or 0)
        try:
            yield from ((place, frame) for frame in packet.decode())
        except av.FFmpegError:
            n_damaged += 1
    note(place, n_damaged=n_damaged)


class Blocks:
    """Writes audio as interleaved float32, a block when there is enough of one rate."""

    def __init__(self) -> None:
        self.kind, self.place, self.block = (0, 0), 0, bytearray()
        self.resampler = av.AudioResampler("flt")

    def add(self, place: int, frame: av.AudioFrame, gap: float) -> None:
        """Add a frame after `gap` seconds of silence."""
        kind = (frame.sample_rate, frame.layout.nb_channels)
        if kind != self.kind:
            self.flush()
            self.resampler, self.kind = av.AudioResampler("flt"), kind
        self.place = place
        n_silent = 4 * kind[1] * round(gap * kind[0])
        for first in range(0, n_silent, _BLOCK_BYTES):
            self._append(bytes(min(_BLOCK_BYTES, n_silent - first)))
        for part in self.resampler.resample(frame):
            self._append(bytes(part.planes[0])[: 4 * kind[1] * part.samples])

    def flush(self) -> None:
        """Write what is left of a block."""
        if self.block:
            send(*self.kind, self.place, bytes(self.block))
        self.block = bytearray()

    def _append(self, content: bytes) -> None:
        self.block += content
        whole = _BLOCK_BYTES - _BLOCK_BYTES % (4 * self.kind[1])
        while len(self.block) >= whole:
            send(*self.kind, self.place, bytes(self.block[:whole]))
            del self.block[:whole]


def decode(format: str) -> None:
    """Write the blocks of the first audio track as interleaved float32."""
    container = av.open(
        Input(), "r", format=format, metadata_errors="ignore", io_open=refuse, buffer_size=_BUFFER,
        container_options={"codec_whitelist": ",".join(_CODECS), "protocol_whitelist": ""},
    )  # fmt: skip
    for stream in container.streams:
        if stream.type != "audio" or stream != container.streams.audio[0]:
            stream.discard = Discard.all
    if not container.streams.audio:
        note(error="no_audio")
        return
    stream = container.streams.audio[0]
    codec = stream.codec_context.name if stream.codec_context else "an unknown codec"
    if codec not in _CODECS:
        note(error="codec", reason=codec)
        return
    stream.codec_context.thread_count = 1
    if format == "mov" and stream.duration and stream.time_base:  # other formats estimate it
        note(seconds=float(stream.duration * stream.time_base))
    # An MP4 may have its index after the audio, and another track may be longer.
    note(ends_with_audio=format != "mov" and len(container.streams) == 1)
    blocks, decoded, silence, lost, end = Blocks(), 0.0, 0.0, 0.0, None
    start = (container.start_time or 0) / av.time_base
    for place, frame in frames(container, stream):
        seconds = frame.samples / frame.sample_rate
        gap = 0.0 if frame.time is None else frame.time - start - decoded
        gap = gap if _GAP < gap < _MOST_SILENCE - silence else 0.0
        blocks.add(place, frame, gap)
        if decoded:  # nothing is lost before the first audio, which may begin after the video
            silence, lost = silence + gap, lost + (gap if gap > _LONG else 0.0)
        decoded += gap + seconds
        end = None if frame.time is None else frame.time + seconds
    blocks.flush()
    note(silence=silence, lost=lost)
    if end is not None and (length := _announced(container, stream)):
        note(seconds=decoded + max(0.0, length - end))


def _announced(container: av.container.InputContainer, stream: av.AudioStream) -> float:
    """Return the end in seconds that a one-track Matroska file's header gives, 0 if it gives none.

    FFmpeg estimates a missing length from the bit rate, so a length near that estimate is unknown.
    """
    if container.format.name.partition(",")[0] != "matroska" or len(container.streams) > 1:
        return 0.0
    length = (container.duration or 0) / av.time_base
    estimate = 8 * os.fstat(0).st_size / stream.bit_rate if stream.bit_rate else 0.0
    return 0.0 if abs(length - estimate) < _NEAR * estimate else length


def main() -> None:
    """Decode standard input in the format of the first argument."""
    restrict()
    try:
        decode(sys.argv[1])
    except (av.FFmpegError, OSError, ValueError, MemoryError) as error:
        note(error="damaged", reason=str(getattr(error, "strerror", error)))
    note(is_end=True)


if __name__ == "__main__":
    main()
