"""Read cuts from a manifest, which may come from a stranger: nothing is run or fetched."""

import gzip
import math
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from lhotse import AudioSource, Recording
from lhotse.cut import Cut, MixedCut, PaddingCut
from lhotse.cut.data import DataCut
from lhotse.serialization import decode_json_line, deserialize_item

from asr.data.noise import NOISE_SEED, VOICE_SEED
from asr.data.places import open_place
from asr.data.recordings import (
    RATES,
    check_audio,
    check_recording,
    check_seconds,
    check_transforms,
)

# The key in a supervision's `custom` of the original file, if a cut reads a converted copy of it.
CONVERTED_FROM = "converted_from"
_SAME = 0.05  # seconds that two cuts of different audio may share, such as neighbors
_LINE = 1 << 26  # bytes of a line, which may hold recordings
_MOST_SILENCE = 1 << 24  # samples of a mix that no recording covers, 17 minutes at 16 kHz


def read_cuts(manifest: Path | str, allowed: Sequence[str] = ()) -> Iterator[Cut]:
    """Yield the cuts of a file of JSON lines, gzipped or not; see `check_recording`.

    A wrong line raises exceptions of many types; one that could run a command raises TypeError.
    """
    return (parse_line(line, allowed) for line in read_lines(manifest))


def read_lines(manifest: Path | str) -> Iterator[bytes]:
    """Yield the lines of a manifest. Raises OSError, or ValueError for a line that is too long."""
    with ExitStack() as opened:
        file: BinaryIO | gzip.GzipFile = opened.enter_context(open_place(manifest))
        if str(manifest).endswith(".gz"):
            file = opened.enter_context(gzip.GzipFile(fileobj=file))
        while line := file.readline(_LINE):
            if len(line) == _LINE:
                raise ValueError(f"a line has {_LINE:,} bytes or more")
            yield line


def parse_line(line: bytes, allowed: Sequence[str] = ()) -> Cut:
    """Return the cut of a line; see `read_cuts`."""
    cut = deserialize_item(decode_json_line(line.decode("utf-8")))
    if not isinstance(cut, Cut):
        raise TypeError("its items are not cuts")
    for part in _parts(cut):
        # lhotse joins mixes into one. A mix inside another is made by hand, to hide its sources.
        if not isinstance(part, (DataCut, PaddingCut)):
            raise TypeError(f"{cut.id}: a track is a {type(part).__name__}")
        _check_part(part)
    for recording in recordings_of(cut):
        check_recording(cut.id, recording, allowed)
    if isinstance(cut, MixedCut):
        _check_mix(cut)
    _check_texts(cut)
    check_seconds(cut.id, cut.duration)
    return cut


def _check_part(part: DataCut | PaddingCut) -> None:
    """Check the times of a cut that is no mix, and drop seeds, which only the training may add."""
    check_seconds(part.id, part.duration)
    if not 0 <= float(part.start) < math.inf:
        raise ValueError(f"{part.id}: starts at {part.start} seconds")
    if part.custom is not None:
        for seed in (NOISE_SEED, VOICE_SEED):
            part.custom.pop(seed, None)


def _check_mix(cut: MixedCut) -> None:
    """Check a mix: one rate for all tracks, valid offsets, limited silence, allowed transforms."""
    rates = {track.cut.sampling_rate for track in cut.tracks}
    if len(rates) != 1 or (rate := rates.pop()) not in RATES:
        raise ValueError(f"{cut.id}: its tracks are not of one sampling rate")
    if not all(0 <= float(track.offset) < math.inf for track in cut.tracks):
        raise ValueError(f"{cut.id}: a track has no place")
    recorded = sum(part.duration for part in _parts(cut) if isinstance(part, DataCut))
    padding = sum(part.duration for part in _parts(cut) if isinstance(part, PaddingCut))
    if max(cut.duration - recorded, padding) * rate > _MOST_SILENCE:
        raise ValueError(
            f"{cut.id}: lasts {cut.duration} seconds with {padding} of padding and {recorded} of "
            f"recordings, more than {_MOST_SILENCE / rate:g} beyond them"
        )
    check_transforms(cut.id, cut.transforms, rate)


def _check_texts(cut: Cut) -> None:
    texts = [cut.id, *(said.text or "" for said in cut.supervisions)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("an id or a text is not a string")
    "".join(texts).encode()  # raises for half a surrogate pair, which JSON can escape


def _parts(cut: Cut) -> list[Cut]:
    return [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]


def recordings_of(cut: Cut) -> list[Recording]:
    """Return the recordings of a cut's parts."""
    return [p.recording for p in _parts(cut) if isinstance(p, DataCut) and p.has_recording]


def origins(cut: Cut) -> set[tuple[str, float]]:
    """Return the file and the start in seconds of each part of a cut, which identify it.

    For a converted file this is the original file; for the member of an archive it is the place in
    the archive. Symbolic links and `..` in the path of a file are resolved.
    """
    return {(place, round(float(part.start), 3)) for part, _, place in _sources(cut)}


def _sources(cut: Cut) -> Iterator[tuple[DataCut, AudioSource, str]]:
    """Yield each part of a cut with each source of its recording and the place of the source."""
    original = next((s.custom.get(CONVERTED_FROM) for s in cut.supervisions if s.custom), None)
    for part in _parts(cut):
        if isinstance(part, DataCut) and part.has_recording:
            for source in part.recording.sources:
                yield part, source, _place(source, original)


class Spans:
    """The spans of recordings that cuts cover, to find other cuts of the same audio."""

    def __init__(self, cuts: Iterable[Cut]) -> None:
        found = defaultdict[tuple[str, int], list[tuple[float, float]]](list)
        for cut in cuts:
            for track, start, end in _spans(cut):
                found[track].append((start, end))
        self._of = {track: _merged(spans) for track, spans in found.items()}

    def overlap(self, cut: Cut) -> bool:
        """Return whether the spans hold over 50 ms of a cut, or half of a part under 100 ms."""
        return any(
            min(end, last) - max(start, first) > min(_SAME, (end - start) / 2)
            for track, start, end in _spans(cut)
            for first, last in _between(self._of.get(track, []), start, end)
        )


def _spans(cut: Cut) -> Iterator[tuple[tuple[str, int], float, float]]:
    """Yield (file, channel), start and end in seconds of each part: the sides of a call differ."""
    for part, source, place in _sources(cut):
        channels = part.channel if isinstance(part.channel, list) else [part.channel]
        for number, channel in enumerate(source.channels):
            if channel in channels:
                yield (place, number), float(part.start), float(part.end)


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans in order; spans that overlap or touch become one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _between(
    merged: list[tuple[float, float]], start: float, end: float
) -> list[tuple[float, float]]:
    first = bisect_left(merged, start, key=lambda span: span[1])
    return merged[first : bisect_left(merged, end, key=lambda span: span[0])]


def _place(source: AudioSource, original: str | None) -> str:
    place = str(original or source.source)
    with suppress(ValueError):  # no path that there can be
        return os.path.realpath(place) if original or source.type == "file" else place
    return place


def check_files(cut: Cut) -> None:
    """Raise an exception if a recording's file holds much more than its manifest says."""
    for recording in recordings_of(cut):
        check_audio(recording)
