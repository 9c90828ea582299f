"""Write the utterances of any corpus as lhotse cuts, with a report.

A recording that cannot be used never stops the preparation: it is left out, listed with its reason
and counted.
"""

import gzip
import logging
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError
from rich.console import Console
from rich.progress import track

from asr.data.people import everybody_of
from asr.errors import DataError, NotWrittenError
from asr.runtime.files import PARTIAL, remove_stale
from asr.schema import FrozenModel
from data_prep.cuts import Cluster, Line, Utterance, make_lines
from data_prep.probe import FIXES

log = logging.getLogger(__name__)

REPORT, LEFT_OUT = "report.json", "left_out.tsv"
_SPLITS = ("train", "dev", "test")
_MOST_SAID = 5


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One line of left_out.tsv; `split` may be empty, `reason` is a stable word for programs."""

    id: str
    split: str
    path: str
    reason: str


class SplitReport(FrozenModel):
    """Counts of one split; `left_out` is by reason.

    `characters` counts distinct characters, in capitals. `speakers` counts those that are named, so
    it is 0 where none is.
    """

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
    cluster: Cluster | None = None,
) -> Report:
    """Write `<out>/<split>.jsonl.gz` (lhotse cuts), left_out.tsv and report.json.

    Every recording is checked, `jobs` at a time, or by a cluster. Files in `out` are replaced only
    when all new ones are complete, and `outdated` ones removed. Raises DataError if no utterance is
    usable or `out` cannot be written.
    """
    dropped, reports = list(left_out), {}
    ids, characters = set[str](), set[str]()
    with _staged(out) as stage:
        for split, utterances in splits.items():
            outcomes = _lines(utterances, split, synthetic, jobs, cluster)
            path = stage / f"{split}.jsonl.gz"
            # Without a name and a time, the bytes depend on the cuts alone.
            with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as file:
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
        _write_left_out(stage / LEFT_OUT, dropped)
        (stage / REPORT).write_text(report.model_dump_json(indent=2) + "\n", "utf-8")
    return report


def say_left_out(sentences: Sequence[str], is_listed: bool = True) -> None:
    """Warn of what is left out: log the first sentences, and the number of the others."""
    for sentence in sentences[:_MOST_SAID]:
        log.warning("%s: left out", sentence)
    if len(sentences) > _MOST_SAID:
        listed = f", listed in {LEFT_OUT}" if is_listed else ""
        log.warning("and %d more%s", len(sentences) - _MOST_SAID, listed)


def outdated(earlier: bytes, new: Container[str]) -> list[str]:
    """Return the manifests of splits in an earlier report that the corpus no longer has.

    Their utterances may be in another split now, so that a test set would be in the training.
    """
    try:
        splits = Report.model_validate_json(earlier).splits
    except ValidationError:
        return []
    names = [f"{split}.jsonl.gz" for split in _SPLITS if split in splits]
    return [name for name in names if name not in new]


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
        remove_stale(out)
        with TemporaryDirectory(prefix=PARTIAL, dir=out) as folder:
            yield Path(folder)
            names, report = {path.name for path in Path(folder).iterdir()}, out / REPORT
            for name in names - {REPORT}:
                (Path(folder) / name).replace(out / name)
            for name in outdated(report.read_bytes() if report.is_file() else b"", names):
                log.warning("%s is removed: there is no such split any more", out / name)
                (out / name).unlink(missing_ok=True)
            (Path(folder) / REPORT).replace(report)  # last: until then the next run removes them
    except OSError as error:
        raise NotWrittenError(
            f"{out}: cannot be written ({error.strerror}): free some space or choose another folder"
        ) from error


def _write_split(
    file: gzip.GzipFile,
    split: str,
    outcomes: Iterable[tuple[Utterance, Line | str]],
    ids: set[str],
    characters: set[str],
    dropped: list[LeftOut],
) -> SplitReport:
    """Write the cuts of a split; add to the corpus's ids, characters and dropped utterances."""
    count, seconds = 0, 0.0
    speakers, split_characters = set[str](), set[str]()
    for utterance, outcome in outcomes:
        line = "duplicate_id" if utterance.id in ids else outcome
        if isinstance(line, str):
            dropped.append(LeftOut(utterance.id, split, str(utterance.path), line))
            continue
        file.write(line.content)
        count, seconds = count + 1, seconds + line.seconds
        ids.add(utterance.id)
        speakers.add(utterance.speaker)
        split_characters |= line.characters
    characters |= split_characters
    return SplitReport(
        utterances=count,
        speakers=len(everybody_of(speakers)),
        hours=seconds / 3600,
        characters=len(split_characters),
        left_out=_by_reason(one for one in dropped if one.split == split),
    )


def _lines(
    utterances: Sequence[Utterance],
    split: str,
    synthetic: bool,
    jobs: int | None,
    cluster: Cluster | None,
) -> Iterator[tuple[Utterance, Line | str]]:
    """Yield each utterance with its line or reason from `make_lines`, and show a progress bar."""
    pairs = zip(utterances, make_lines(utterances, synthetic, jobs, cluster), strict=True)
    bar = Console(stderr=True)
    yield from track(pairs, f"checking {split}", len(utterances), console=bar)


def _by_reason(dropped: Iterable[LeftOut]) -> dict[str, int]:
    return dict(Counter(one.reason for one in dropped).most_common())


def _write_left_out(path: Path, dropped: Iterable[LeftOut]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("id\tsplit\tpath\treason\n")
        for one in dropped:
            fields = (one.id, one.split, one.path, one.reason)
            file.write("\t".join(re.sub(r"[\t\r\n]", " ", field) for field in fields) + "\n")
