"""The common tail of every corpus: utterances in, lhotse cuts and a report out.

A bad recording is never fatal here: it is left out, counted by reason and listed.
"""

import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
import soundfile as sf
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.progress import track

from asr.errors import AudioError, DataError
from asr.tokenizer import normalize_text

# Writers that cannot seek leave this or its like where the length should be.
UNKNOWN_LENGTH = 0x7FFFF000

# What to do where all that can be said of a corpus is one reason.
MENDS = {
    "shorten_compressed": "unpack every file with `sph2pipe IN.sph OUT.sph`, which comes with the "
    "LDC's tools",
    "undecodable_name": "give files and folders names in UTF-8 (`convmv` does)",
}


@dataclass(frozen=True, slots=True)
class Utterance:
    """What a corpus knows of one utterance.

    `start` and `seconds` cut it from a longer file, `channel` (from 0) from one of several.
    """

    id: str
    path: Path
    text: str
    speaker: str
    start: float = 0.0
    seconds: float | None = None
    channel: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One line of left_out.tsv; `split` may be empty, `reason` is a stable word for programs."""

    id: str
    split: str
    path: str
    reason: str


class SplitReport(BaseModel):
    """Counts of one split; `characters` are distinct ones, `left_out` is by reason."""

    model_config = ConfigDict(frozen=True)

    utterances: int
    speakers: int
    hours: float
    characters: int
    left_out: dict[str, int]


class Report(BaseModel):
    """What was prepared, as written to report.json; its `left_out` counts what no split has too."""

    model_config = ConfigDict(frozen=True)

    corpus: str
    synthetic: bool
    splits: dict[str, SplitReport]
    characters: int
    left_out: dict[str, int]


def write_corpus(
    splits: Mapping[str, Sequence[Utterance]],
    out: Path,
    *,
    corpus: str,
    synthetic: bool = False,
    left_out: Sequence[LeftOut] = (),
    jobs: int | None = None,
) -> Report:
    """Write `<out>/<split>.jsonl.gz` (lhotse cuts), left_out.tsv and report.json.

    Every recording is opened; bad ones are left out with a reason, as are those in `left_out`.
    Nothing that stood in `out` is replaced before all is complete. Raises DataError where nothing
    is usable or `out` cannot be written.
    """
    dropped, reports = list(left_out), {}
    seen, characters = set[str](), set[str]()
    with _staged(out) as stage:
        for split, utterances in splits.items():
            outcomes = _cuts(utterances, split, synthetic, jobs)
            with gzip_text(stage / f"{split}.jsonl.gz") as file:
                cuts = _kept(outcomes, split, seen, dropped)
                reports[split] = _write_split(file, split, cuts, characters, dropped)
        left = dict(Counter(one.reason for one in dropped).most_common())
        if not seen:
            raise DataError(
                f"{out}: none of the {len(dropped)} utterances of {corpus} can be used ({left}); "
                f"{MENDS.get(next(iter(left), ''), 'check that the corpus is complete')}."
            )
        report = Report(
            corpus=corpus,
            synthetic=synthetic,
            splits=reports,
            characters=len(characters),
            left_out=left,
        )
        _write_left_out(stage / "left_out.tsv", dropped)
        (stage / "report.json").write_text(report.model_dump_json(indent=2) + "\n", "utf-8")
    return report


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """Lend a folder whose files move to `out` together, once all of them are whole."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".partial-", dir=out) as folder:
            yield Path(folder)
            for path in Path(folder).iterdir():
                path.replace(out / path.name)
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror}); free some space or choose another "
            "folder."
        ) from error


def probe(path: Path) -> sf._SoundFileInfo:
    """Return soundfile's info (frames, samplerate in Hz, channels) of a recording that is whole.

    Reads the header and the last sample; only float files, which alone can hold NaN, are decoded.
    Raises AudioError whose `code` is missing, unreadable, shorten_compressed, no_samples, truncated
    or not_finite.
    """
    if not path.is_file():
        raise AudioError(f"{path}: there is no such file.", "missing")
    try:
        sphere = _sphere_header(path)
        if b"embedded-shorten" in sphere:
            mend = MENDS["shorten_compressed"]
            raise AudioError(f"{path}: is compressed by shorten; {mend}.", "shorten_compressed")
        info = sf.info(str(path), verbose=True)
        claimed = re.search(rb"^sample_count -i (\d+)", sphere, re.MULTILINE)
        if _is_cut_short(info.extra_info) or (claimed and int(claimed[1]) > info.frames):
            raise AudioError(f"{path}: ends before its header says; copy it again.", "truncated")
        if info.frames <= 0:
            raise AudioError(f"{path}: holds no samples; remove it.", "no_samples")
        with sf.SoundFile(path) as file:
            _check_samples(path, file)
    except (sf.LibsndfileError, OSError) as error:
        raise AudioError(f"{path}: is not readable audio ({error}).", "unreadable") from error
    return info


def _sphere_header(path: Path) -> bytes:
    with path.open("rb") as file:
        header = file.read(1024)
    return header if header.startswith(b"NIST_1A") else b""


def _check_samples(path: Path, file: sf.SoundFile) -> None:
    try:
        file.seek(file.frames - 1)
        last = len(file.read(1))
    except sf.LibsndfileError:
        last = 0
    if not last:
        raise AudioError(f"{path}: its end cannot be decoded; copy it again.", "truncated")
    if file.subtype in ("FLOAT", "DOUBLE"):
        file.seek(0)
        if not all(np.isfinite(block).all() for block in file.blocks(1 << 16)):
            raise AudioError(f"{path}: holds samples that are not numbers.", "not_finite")


def _is_cut_short(libsndfile_log: str) -> bool:
    found = re.search(r"^\s*data\s*: (\d+) \(should be (\d+)\)", libsndfile_log, re.MULTILINE)
    return found is not None and int(found[2]) < int(found[1]) < UNKNOWN_LENGTH


def _kept(
    outcomes: Iterable[tuple[Utterance, MonoCut | str]],
    split: str,
    seen: set[str],
    dropped: list[LeftOut],
) -> Iterator[MonoCut]:
    for utterance, outcome in outcomes:
        cut = "duplicate_id" if utterance.id in seen else outcome
        if isinstance(cut, str):
            dropped.append(LeftOut(utterance.id, split, str(utterance.path), cut))
        else:
            seen.add(utterance.id)
            yield cut


def _write_split(
    file: IO[str],
    split: str,
    cuts: Iterable[MonoCut],
    all_characters: set[str],
    dropped: Sequence[LeftOut],
) -> SplitReport:
    count, seconds = 0, 0.0
    speakers: set[str] = set()
    characters: set[str] = set()
    for cut in cuts:
        file.write(json.dumps(cut.to_dict(), ensure_ascii=False) + "\n")
        count, seconds = count + 1, seconds + cut.duration
        speakers.add(cut.supervisions[0].speaker)
        characters.update(cut.supervisions[0].text.replace(" ", ""))
    all_characters |= characters
    return SplitReport(
        utterances=count,
        speakers=len(speakers),
        hours=seconds / 3600,
        characters=len(characters),
        left_out=dict(Counter(d.reason for d in dropped if d.split == split).most_common()),
    )


def _cuts(
    utterances: Sequence[Utterance], split: str, synthetic: bool, jobs: int | None
) -> Iterator[tuple[Utterance, MonoCut | str]]:
    # A conversation holds some hundred utterances, which follow one another: look at it once.
    @lru_cache(maxsize=256)
    def probed(path: Path) -> sf._SoundFileInfo | str:
        try:
            return probe(path)
        except AudioError as error:
            return error.code

    def cut_many(first: int) -> list[MonoCut | str]:
        return [_cut_or_reason(u, probed, synthetic) for u in utterances[first : first + 200]]

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        batches = pool.map(cut_many, range(0, len(utterances), 200))
        pairs = zip(utterances, chain.from_iterable(batches), strict=True)
        bar = Console(stderr=True)
        yield from track(pairs, f"checking {split}", len(utterances), console=bar)


def _cut_or_reason(
    utterance: Utterance, probed: Callable[[Path], sf._SoundFileInfo | str], synthetic: bool
) -> MonoCut | str:
    text = normalize_text(utterance.text)
    if not text:
        return "empty_transcript"
    if not _is_utf8(f"{utterance.id} {utterance.speaker} {utterance.path.absolute()}"):
        return "undecodable_name"
    info = probed(utterance.path)
    if isinstance(info, str):
        return info
    if utterance.channel >= info.channels:
        return "missing_channel"
    whole = info.frames / info.samplerate
    seconds = whole - utterance.start if utterance.seconds is None else utterance.seconds
    if utterance.start < 0 or seconds <= 0 or utterance.start + seconds > whole + 1e-3:
        return "outside_recording"
    return _cut(utterance, text, info, seconds, synthetic)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cut(
    utterance: Utterance, text: str, info: sf._SoundFileInfo, seconds: float, synthetic: bool
) -> MonoCut:
    part = utterance.start > 0 or utterance.seconds is not None
    channels = list(range(info.channels))
    recording = Recording(
        id=utterance.path.stem if part else utterance.id,
        sources=[AudioSource("file", channels, str(utterance.path.absolute()))],
        sampling_rate=info.samplerate,
        num_samples=info.frames,
        duration=info.frames / info.samplerate,
    )
    supervision = SupervisionSegment(
        id=utterance.id,
        recording_id=recording.id,
        start=0.0,
        duration=seconds,
        channel=utterance.channel,
        text=text,
        speaker=utterance.speaker,
        custom={"synthetic": True} if synthetic else None,
    )
    return MonoCut(
        id=utterance.id,
        start=utterance.start,
        duration=seconds,
        channel=utterance.channel,
        supervisions=[supervision],
        recording=recording,
    )


def _write_left_out(path: Path, dropped: Iterable[LeftOut]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("id\tsplit\tpath\treason\n")
        for one in dropped:
            fields = (one.id, one.split, one.path, one.reason)
            file.write("\t".join(re.sub(r"[\t\r\n]", " ", field) for field in fields) + "\n")


def compare_with_published(figures: Mapping[str, tuple[int, int]]) -> None:
    """Print each figure that was found beside the published one, and warn where they differ."""
    console = Console(stderr=True)
    for name, (found, published) in figures.items():
        verdict = "" if found == published else "; warning: they differ"
        console.print(f"{name}: {found:,}, published {published:,}{verdict}", soft_wrap=True)


@contextmanager
def gzip_text(path: Path) -> Iterator[IO[str]]:
    """Open a file to write whose bytes follow from its text alone, without a name or a time."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        TextIOWrapper(packed, encoding="utf-8", newline="\n") as file,
    ):
        yield file
