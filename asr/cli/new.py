"""`asr new`: from recordings and a table of their texts, or from words, to an evaluated model."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.cli.evaluate import evaluate_cuts
from asr.cli.extras import require
from asr.cli.options import (
    Column,
    Device,
    Overrides,
    TextColumn,
    app,
    note,
    progress,
    resumable,
    show,
)
from asr.cli.prepare import reasons_text, show_report
from asr.cli.sources import FromRecordings, FromWords, Sources, absolute
from asr.errors import ConfigError, DataError, NotWrittenError

if TYPE_CHECKING:
    from asr.config import Config
    from asr.new.measure import CorpusMeasures

_SOURCES, _DATA, _CORPUS, _RECIPE, _MODEL = (
    "sources.json", "data", "corpus.json", "recipe.yaml", "model",
)  # fmt: skip
_CODE = re.compile("[a-z]{2,3}(-[a-z0-9]+)*")


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="For corpus, recipe and model.")],
    recordings: Annotated[
        Path | None, typer.Option(help="A folder of recordings, in any format.")
    ] = None,
    transcripts: Annotated[
        Path | None,
        typer.Option(
            help="Their texts: csv, tsv, jsonl, or a folder; default: in that of the recordings, "
            "such as a.txt for a.wav."
        ),
    ] = None,
    words: Annotated[
        Path | None, typer.Option(help="Or a list of words or phrases alone, one a line.")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            help="Of the texts, as espeak-ng names it (cmn, yue, ja); default: by letters."
        ),
    ] = None,
    audio_column: Column = None,
    text_column: TextColumn = None,
    speaker_column: Column = None,
    live: Annotated[
        bool, typer.Option("--live", help="A model that writes text while one speaks.")
    ] = False,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Train a model of your own from recordings, or from words alone; again to continue.

    It prepares the corpus, chooses a recipe, trains and evaluates. Words are spoken by synthetic
    voices.
    """
    require("train", "new")
    named = {"audio": audio_column, "text": text_column, "speaker": speaker_column}
    columns = {kind: name for kind, name in named.items() if name}
    source: FromRecordings | FromWords
    if words and not (recordings or transcripts or columns):
        source = FromWords(words, language)
    elif recordings and not words:
        texts, code = transcripts or recordings, _code(language)
        source = FromRecordings(recordings, texts, columns, code, folder / _DATA)
    else:
        raise ConfigError(
            "asr new: give --recordings, with --transcripts where the texts are not beside them, "
            "or --words alone"
        )
    from asr.runtime.files import lock_folder

    command = ["asr", *sys.argv[1:]]
    with resumable(shlex.join(command)):
        sources = source.sources()
        _check(folder, sources)
        with lock_folder(folder):
            corpus = _prepare(folder, source, sources)
        config = _recipe(folder, corpus, overrides, device, live)
        _train(folder, config, device)
        show(f"\n{_evaluate(folder, corpus, config, device)}\n\nNext:")
    model = str(folder / _MODEL)
    for line in (
        ["asr", "transcribe", model, "FILE.wav"],
        ["asr", "serve", model],
        _longer(command, 2 * config.training.epochs),
    ):
        show(f"  {shlex.join(line)}")


def _code(language: str | None) -> str | None:
    """Return the code of a language. Raises ConfigError where it is written otherwise."""
    code = (language or "").strip().lower()
    if code and not _CODE.fullmatch(code):
        raise ConfigError(
            f"--language {language}: is no code of a language: give one such as cmn, yue or ja"
        )
    return code or None


def _longer(command: list[str], epochs: int) -> list[str]:
    """Return a command with another number of epochs in place of those that it has."""
    name, kept = "training.epochs=", list[str]()
    for one in command:
        if one.startswith(name):
            kept.pop()  # its --set
        elif not one.startswith(f"--set={name}"):
            kept.append(one)
    return [*kept, "--set", f"{name}{epochs}"]


def _check(folder: Path, sources: Sources) -> None:
    """Raise ConfigError where a folder holds what these sources do not continue.

    Others may take their place until there is a corpus.
    """
    own = Path(absolute(folder)) / _DATA
    for name in ("--recordings", "--transcripts", "--words"):
        if own in (given := Path(sources.options.get(name, ""))).parents or own == given:
            raise ConfigError(
                f"{given}: is in {own}, which `asr new` writes: give another folder for the model"
            )
    before = _sources_of(folder)
    names = (_DATA, _CORPUS, _RECIPE, _MODEL)
    there = [name for name in names if (folder / name).exists()]
    if before is None:
        if there:
            raise ConfigError(
                f"{folder}: holds {there[0]}, which `asr new` did not make: give a new folder"
            )
    elif before == sources or there in ([], [_DATA]):
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


def _sources_of(folder: Path) -> Sources | None:
    from asr.runtime.files import read_json

    return read_json(folder / _SOURCES, Sources, "what `asr new` wrote: give a new folder")


def _prepare(
    folder: Path, source: FromRecordings | FromWords, sources: Sources
) -> "CorpusMeasures":
    """Write cuts and measurements, unless they are there; leave nothing of what is refused."""
    from asr.new.measure import SAMPLED, CorpusMeasures, measure
    from asr.runtime.files import LOCK, PARTIAL, TEMPORARY, read_json, write_text

    data = folder / _DATA
    corpus = read_json(folder / _CORPUS, CorpusMeasures, "measurements of `asr new`: remove it")
    if corpus:
        note(f"{data}: is prepared already{_left_out(data)}")
        return corpus
    before = _sources_of(folder)
    if before != sources:
        if data.exists():
            note(f"{data}: is of other recordings or texts, which made no corpus: it is removed")
            _remove(data, before is not None and _recordings(before) == _recordings(sources))
        write_text(folder / _SOURCES, sources.model_dump_json(indent=2) + "\n")
    for left in data.glob(f"{PARTIAL}*"):  # by a killed run
        shutil.rmtree(left)
    for left in data.rglob(TEMPORARY):
        left.unlink()
    try:
        report = source.prepare(data)
        show_report(report, data)
        splits = [name for name, split in report.splits.items() if split.utterances]
        with progress("measuring", SAMPLED) as on_progress:
            corpus = measure(data, splits, on_progress, report.synthetic, source.language)
    except (ConfigError, DataError) as error:
        if isinstance(error, NotWrittenError):  # what is there spares the next run its time
            raise
        if not (any(_copies(data)) or _left_out(data)):
            shutil.rmtree(data, ignore_errors=True)
            for name in (_SOURCES, LOCK):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # it may hold something else
                folder.rmdir()
        raise
    show(f"\n{corpus}")
    write_text(folder / _CORPUS, corpus.model_dump_json(indent=2) + "\n")
    return corpus


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


def _recipe(
    folder: Path,
    corpus: "CorpusMeasures",
    overrides: list[str] | None,
    device: str,
    is_live: bool,
) -> "Config":
    """Choose and write a recipe with `overrides` in it; one that is there is used as it is."""
    from asr.config import check_config, load_config
    from asr.new.commented import HEAD, as_yaml
    from asr.new.recipe import choose, has_pinyin
    from asr.runtime.devices import choose_device, has_bfloat16
    from asr.runtime.files import write_text

    path = folder / _RECIPE
    if path.exists():
        note(f"{path}: is used as it is")
        config = load_config(path, overrides)
        if is_live and not config.model.encoder.streaming:
            raise ConfigError(f"{path}: was chosen without --live: give a new folder for it")
        return config
    if corpus.is_mandarin and corpus.language is None:
        note("the texts are taken for Mandarin: for another language begin a new folder with "
             "--language, such as yue")  # fmt: skip
    if corpus.is_mandarin and not has_pinyin():
        note("Mandarin is learned from less speech with: pip install 'lrt-asr[chinese]'")
    is_fast = has_bfloat16(choose_device(device))
    recipe = choose(corpus, (folder / _DATA).resolve(), overrides, is_fast, is_live)
    config = check_config(recipe.values, path)
    if is_live and not config.model.encoder.streaming:
        raise ConfigError("--live: --set leaves out model.encoder.streaming: give it too")
    write_text(path, f"{HEAD}\n{as_yaml(recipe)}")
    note(f"{path}: is chosen for this corpus; each value has its reason there")
    return config


def _train(folder: Path, config: "Config", device: str) -> None:
    from asr.train.run import train

    train(config, folder / _MODEL, resume=True, device=device)


def _evaluate(folder: Path, corpus: "CorpusMeasures", config: "Config", device: str) -> str:
    """Evaluate on test, or on dev where there is none, and return what the card then says."""
    import asr
    from asr.new.card import elsewhere, expectation, read_expectation, write_expectation
    from asr.reporting.results import write_evaluation

    model, split = folder / _MODEL, "test" if "test" in corpus.splits else "dev"
    if found := read_expectation(model):
        note(f"{model}: is trained and evaluated already, nothing is left to do")
        return found
    cuts, recognizer = folder / _DATA / f"{split}.jsonl.gz", asr.load(model, device)
    result, _ = evaluate_cuts(recognizer, cuts, recognizer.config.decoding, 10)
    write_evaluation(model, cuts, result)
    is_own = _is_of(config, folder / _DATA / "train.jsonl.gz")
    write_expectation(model, expectation(corpus, split, result) if is_own else elsewhere(result))
    return read_expectation(model)


def _is_of(config: "Config", manifest: Path) -> bool:
    """Return whether a recipe trains on a manifest alone, and from nothing."""
    trained_on = [Path(path).resolve() for path in config.data.train]
    return not config.training.init and trained_on == [manifest.resolve()]
