"""Utterances of a corpus to lhotse cuts and a report; every corpus ends here.

A recording that cannot be used never stops the preparation: it is left out, listed with its reason
and counted.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

import soundfile as sf
from lhotse import AudioSource, MonoCut, MultiCut, Recording, SupervisionSegment
from rich.console import Console
from rich.progress import track

from asr.data.cuts import CONVERTED_FROM
from asr.errors import AudioError, DataError
from asr.runtime.storage import RemoteFile
from asr.runtime.threads import usable_cpus
from asr.schema import FrozenModel
from asr.tokenizer import normalize_text
from data_prep.probe import FIXES, probe

_PER_TASK = 200  # utterances


@dataclass(frozen=True, slots=True)
class Utterance:
    """What a corpus says about one utterance.

    `start` and `seconds` are its part of a longer file. `channel` (from 0) is one of several;
    None is all of them, mixed as the recognizer mixes them. `confidence` is that of a text which a
    model wrote, `converted_from` the file of which `path` is a copy; the manifest names both.
    """

    id: str
    path: Path | RemoteFile
    text: str
    speaker: str
    start: float = 0.0
    seconds: float | None = None
    channel: int | None = None
    confidence: float | None = None
    converted_from: Path | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One line of left_out.tsv; `split` may be empty, `reason` is a stable word for programs."""

    id: str
    split: str
    path: str
    reason: str


class SplitReport(FrozenModel):
    """Counts of one split; `characters` are distinct capitals, `left_out` is by reason."""

    utterances: int
    speakers: int
    hours: float
    characters: int
    left_out: dict[str, int]


class Report(FrozenModel):
    """Counts of a corpus, as in report.json; `left_out` includes what belongs to no split."""

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

    Every recording is checked, in `jobs` threads. Files in `out` are replaced only when all new
    ones are complete. Raises DataError if no utterance is usable or `out` cannot be written.
    """
    dropped, reports = list(left_out), {}
    ids, characters = set[str](), set[str]()
    with _staged(out) as stage:
        for split, utterances in splits.items():
            outcomes = _cuts(utterances, split, synthetic, jobs)
            path = stage / f"{split}.jsonl.gz"
            # Without a name and a time, the bytes depend on the cuts alone.
            with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
                reports[split] = _write_split(file, split, outcomes, ids, characters, dropped)
        reasons = _by_reason(dropped)
        if not ids:
            fix = FIXES.get(next(iter(reasons), ""), "check that the corpus is complete")
            raise DataError(
                f"{out}: none of the {len(dropped)} utterances of {corpus} can be used ({reasons}):"
                f" {fix}"
            )
        report = Report(
            corpus=corpus,
            synthetic=synthetic,
            splits=reports,
            characters=len(characters),
            left_out=reasons,
        )
        _write_left_out(stage / "left_out.tsv", dropped)
        (stage / "report.json").write_text(report.model_dump_json(indent=2) + "\n", "utf-8")
    return report


def compare_with_published(counts: Mapping[str, tuple[int, int]]) -> None:
    """Print each count beside the published one, with a warning if they differ."""
    console = Console(stderr=True)
    for name, (found, published) in counts.items():
        warning = "" if found == published else "; warning: they differ"
        console.print(f"{name}: {found:,}, published {published:,}{warning}", soft_wrap=True)


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """Yield a folder whose files replace those in `out` at the end, if nothing was raised."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".partial-", dir=out) as folder:
            yield Path(folder)
            for path in Path(folder).iterdir():
                path.replace(out / path.name)
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror}): free some space or choose another folder"
        ) from error


def _write_split(
    file: gzip.GzipFile,
    split: str,
    outcomes: Iterable[tuple[Utterance, MonoCut | MultiCut | str]],
    ids: set[str],
    characters: set[str],
    dropped: list[LeftOut],
) -> SplitReport:
    """Write the cuts of a split; add to the corpus's ids, characters and dropped utterances."""
    count, seconds = 0, 0.0
    speakers, split_characters = set[str](), set[str]()
    for utterance, outcome in outcomes:
        cut = "duplicate_id" if utterance.id in ids else outcome
        if isinstance(cut, str):
            dropped.append(LeftOut(utterance.id, split, str(utterance.path), cut))
            continue
        file.write(json.dumps(cut.to_dict(), ensure_ascii=False).encode() + b"\n")
        count, seconds = count + 1, seconds + cut.duration
        ids.add(utterance.id)
        speakers.add(utterance.speaker)
        split_characters.update(normalize_text(cut.supervisions[0].text).replace(" ", ""))
    characters |= split_characters
    return SplitReport(
        utterances=count,
        speakers=len(speakers),
        hours=seconds / 3600,
        characters=len(split_characters),
        left_out=_by_reason(one for one in dropped if one.split == split),
    )


def _by_reason(dropped: Iterable[LeftOut]) -> dict[str, int]:
    return dict(Counter(one.reason for one in dropped).most_common())


def _cuts(
    utterances: Sequence[Utterance], split: str, synthetic: bool, jobs: int | None
) -> Iterator[tuple[Utterance, MonoCut | MultiCut | str]]:
    """Yield each utterance with its cut, or the reason why it cannot be used."""

    # A conversation holds hundreds of utterances in a row: probe it once.
    @lru_cache(maxsize=256)
    def probed(path: Path | RemoteFile) -> sf._SoundFileInfo | str:
        try:
            return probe(path)
        except AudioError as error:
            return error.code

    def cut_many(first: int) -> list[MonoCut | MultiCut | str]:
        some = utterances[first : first + _PER_TASK]
        return [_cut_or_reason(utterance, probed, synthetic) for utterance in some]

    with ThreadPoolExecutor(jobs or usable_cpus()) as pool:
        batches = pool.map(cut_many, range(0, len(utterances), _PER_TASK))
        pairs = zip(utterances, chain.from_iterable(batches), strict=True)
        bar = Console(stderr=True)
        yield from track(pairs, f"checking {split}", len(utterances), console=bar)


def _cut_or_reason(
    utterance: Utterance,
    probed: Callable[[Path | RemoteFile], sf._SoundFileInfo | str],
    synthetic: bool,
) -> MonoCut | MultiCut | str:
    text = normalize_text(utterance.text, "keep")  # a recipe may keep the case
    if not text:
        return "empty_transcript"
    try:
        f"{utterance.id} {utterance.speaker} {_source(utterance.path)[1]}".encode()
    except UnicodeEncodeError:
        return "undecodable_name"
    info = probed(utterance.path)
    if isinstance(info, str):
        return info
    if (utterance.channel or 0) >= info.channels:
        return "missing_channel"
    whole = info.frames / info.samplerate
    seconds = whole - utterance.start if utterance.seconds is None else utterance.seconds
    if utterance.start < 0 or seconds <= 0 or utterance.start + seconds > whole + 1e-3:
        return "outside_recording"
    return _cut(utterance, text, info, seconds, synthetic)


def _source(path: Path | RemoteFile) -> tuple[str, str]:
    """Return the type of a recording's source, as lhotse names it, and the source."""
    return ("url", path.url) if isinstance(path, RemoteFile) else ("file", str(path.absolute()))


def _cut(
    utterance: Utterance, text: str, info: sf._SoundFileInfo, seconds: float, synthetic: bool
) -> MonoCut | MultiCut:
    key, channels = utterance.id, list(range(info.channels))
    kind, source = _source(utterance.path)
    is_part = utterance.start > 0 or utterance.seconds is not None
    recording = Recording(
        id=PurePath(source).stem if is_part else key,
        sources=[AudioSource(kind, channels, source)],
        sampling_rate=info.samplerate,
        num_samples=info.frames,
        duration=info.frames / info.samplerate,
    )
    mixed = channels if utterance.channel is None and len(channels) > 1 else None
    channel = utterance.channel or 0
    supervision = SupervisionSegment(key, recording.id, 0.0, seconds, mixed or channel, text)
    supervision.speaker = utterance.speaker
    custom: dict[str, bool | float | str] = {"synthetic": True} if synthetic else {}
    if utterance.confidence is not None:
        custom["confidence"] = round(utterance.confidence, 4)
    if utterance.converted_from:
        custom[CONVERTED_FROM] = str(utterance.converted_from.absolute())
    supervision.custom = custom or None
    made = [supervision]
    if mixed:
        return MultiCut(key, utterance.start, seconds, mixed, made, recording=recording)
    return MonoCut(key, utterance.start, seconds, channel, made, recording=recording)


def _write_left_out(path: Path, dropped: Iterable[LeftOut]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("id\tsplit\tpath\treason\n")
        for one in dropped:
            fields = (one.id, one.split, one.path, one.reason)
            file.write("\t".join(re.sub(r"[\t\r\n]", " ", field) for field in fields) + "\n")
