"""The corpus in the folder of `asr new`: prepare it, or check that it can be continued."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.options import note, progress, show
from asr.cli.prepare import reasons_text, show_report
from asr.cli.sources import FromRecordings, FromWords, Sources, absolute
from asr.errors import ConfigError, DataError, NotWrittenError

if TYPE_CHECKING:
    from asr.new.measure import CorpusMeasures

DATA, RECIPE, MODEL = "data", "recipe.yaml", "model"
_SOURCES, _CORPUS = "sources.json", "corpus.json"


def check(folder: Path, sources: Sources) -> None:
    """Raise ConfigError where a folder holds what these sources do not continue.

    Others may take their place until there is a corpus.
    """
    own = Path(absolute(folder)) / DATA
    for name in ("--recordings", "--transcripts", "--words"):
        if own in (given := Path(sources.options.get(name, ""))).parents or own == given:
            raise ConfigError(
                f"{given}: is in {own}, which `asr new` writes: give another folder for the model"
            )
    before = _sources_of(folder)
    names = (DATA, _CORPUS, RECIPE, MODEL)
    there = [name for name in names if (folder / name).exists()]
    if before is None:
        if there:
            raise ConfigError(
                f"{folder}: holds {there[0]}, which `asr new` did not make: give a new folder"
            )
    elif before == sources or there in ([], [DATA]):
        return
    elif before.options != sources.options:
        options = " ".join(f"{name} {value}" for name, value in before.options.items())
        raise ConfigError(f"{folder}: was made with {options}: give these, or a new folder")
    else:
        path = sources.options.get("--transcripts") or sources.options["--words"]
        raise ConfigError(
            f"{path}: has changed since {folder} was begun, or an older version has read it "
            "otherwise: give a new folder, or bring back the texts as they were"
        )


def prepare(folder: Path, source: FromRecordings | FromWords, sources: Sources) -> "CorpusMeasures":
    """Write cuts and measurements, unless they are there; leave nothing of what is refused."""
    from asr.new.measure import SAMPLED, CorpusMeasures, measure
    from asr.runtime.files import read_json, write_text

    data = folder / DATA
    corpus = read_json(folder / _CORPUS, CorpusMeasures, "measurements of `asr new`: remove it")
    if corpus:
        note(f"{data}: is prepared already{_left_out(data)}")
        return corpus
    _begin(folder, sources)
    try:
        report = source.prepare(data)
        show_report(report, data)
        splits = [name for name, split in report.splits.items() if split.utterances]
        with progress("measuring", SAMPLED) as on_progress:
            corpus = measure(data, splits, on_progress, report.synthetic, source.language)
    except NotWrittenError:  # what is there spares the next run its time
        raise
    except (ConfigError, DataError):
        _undo(folder)
        raise
    show(f"\n{corpus}")
    write_text(folder / _CORPUS, corpus.model_dump_json(indent=2) + "\n")
    return corpus


def _begin(folder: Path, sources: Sources) -> None:
    """Record the sources, and remove data of others and half-written files."""
    from asr.runtime.files import PARTIAL, TEMPORARY, write_text

    data, before = folder / DATA, _sources_of(folder)
    if before != sources:
        if data.exists():
            note(f"{data}: is of other recordings or texts, which made no corpus: it is removed")
            _remove(data, before is not None and _recordings(before) == _recordings(sources))
        write_text(folder / _SOURCES, sources.model_dump_json(indent=2) + "\n")
    for left in data.glob(f"{PARTIAL}*"):  # by a killed run
        shutil.rmtree(left)
    for left in data.rglob(TEMPORARY):
        left.unlink()


def _undo(folder: Path) -> None:
    """Remove what a refused preparation wrote.

    All stays where it has copies of recordings or a list of what was left out.
    """
    from asr.runtime.files import LOCK

    data = folder / DATA
    if any(_copies(data)) or _left_out(data):
        return
    shutil.rmtree(data, ignore_errors=True)
    for name in (_SOURCES, LOCK):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # it may hold something else
        folder.rmdir()


def _sources_of(folder: Path) -> Sources | None:
    from asr.runtime.files import read_json

    return read_json(folder / _SOURCES, Sources, "what `asr new` wrote: give a new folder")


def _recordings(sources: Sources) -> str | None:
    return sources.options.get("--recordings")


def _remove(data: Path, of_these_recordings: bool) -> None:
    """Remove what is in a folder of data, which may be a link; copies of recordings may stay."""
    from data_prep.table import COPIES

    for left in data.iterdir():
        if left.name == COPIES and of_these_recordings:
            continue  # each copy knows its original
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _copies(data: Path) -> Iterator[Path]:
    """Yield the copies of recordings, which spare the next preparation of them its time."""
    from data_prep.table import COPIES

    return (data / COPIES).rglob("*.flac")


def _left_out(data: Path) -> str:
    """Return what a finished preparation left out, and how it is used after a correction."""
    from asr.runtime.files import read_json
    from data_prep.corpus_writer import LEFT_OUT, REPORT, Report

    report = read_json(data / REPORT, Report, "what `asr prepare` wrote: give a new folder")
    if not (report and report.left_out):
        return ""
    return (
        f", without {reasons_text(report.left_out)} ({data / LEFT_OUT}): to use them when they are "
        "corrected, give a new folder"
    )
