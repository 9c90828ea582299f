"""`asr new`: from recordings and a table of their texts, or from words, to an evaluated model."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.cli.evaluate import evaluate_cuts
from asr.cli.extras import require
from asr.cli.new_corpus import DATA, MODEL, RECIPE, check, prepare
from asr.cli.options import Column, Device, Overrides, TextColumn, app, note, resumable, show
from asr.cli.sources import FromRecordings, FromWords
from asr.errors import ConfigError

if TYPE_CHECKING:
    from asr.config import Config
    from asr.new.measure import CorpusMeasures

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
        source = FromRecordings(recordings, texts, columns, code, folder / DATA)
    else:
        raise ConfigError(
            "asr new: give --recordings, with --transcripts where the texts are not beside them, "
            "or --words alone"
        )
    from asr.runtime.files import lock_folder

    command = ["asr", *sys.argv[1:]]
    with resumable(shlex.join(command)):
        sources = source.sources()
        check(folder, sources)
        with lock_folder(folder):
            corpus = prepare(folder, source, sources)
        config = _recipe(folder, corpus, overrides, device, live)
        _train(folder, config, device)
        show(f"\n{_evaluate(folder, corpus, config, device)}\n\nNext:")
    model = str(folder / MODEL)
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

    path = folder / RECIPE
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
    recipe = choose(corpus, (folder / DATA).resolve(), overrides, is_fast, is_live)
    config = check_config(recipe.values, path)
    if is_live and not config.model.encoder.streaming:
        raise ConfigError("--live: --set leaves out model.encoder.streaming: give it too")
    write_text(path, f"{HEAD}\n{as_yaml(recipe)}")
    note(f"{path}: is chosen for this corpus; each value has its reason there")
    return config


def _train(folder: Path, config: "Config", device: str) -> None:
    from asr.train.run import train

    train(config, folder / MODEL, resume=True, device=device)


def _evaluate(folder: Path, corpus: "CorpusMeasures", config: "Config", device: str) -> str:
    """Evaluate on test, or on dev where there is none, and return what the card then says."""
    import asr
    from asr.new.card import elsewhere, expectation, read_expectation, write_expectation
    from asr.reporting.results import write_evaluation

    model, split = folder / MODEL, "test" if "test" in corpus.splits else "dev"
    if found := read_expectation(model):
        note(f"{model}: is trained and evaluated already, nothing is left to do")
        return found
    cuts, recognizer = folder / DATA / f"{split}.jsonl.gz", asr.load(model, device)
    result, _ = evaluate_cuts(recognizer, cuts, recognizer.config.decoding, 10)
    write_evaluation(model, cuts, result)
    is_own = _is_of(config, folder / DATA / "train.jsonl.gz")
    write_expectation(model, expectation(corpus, split, result) if is_own else elsewhere(result))
    return read_expectation(model)


def _is_of(config: "Config", manifest: Path) -> bool:
    """Return whether a recipe trains on a manifest alone, and from nothing."""
    trained_on = [Path(path).resolve() for path in config.data.train]
    others = config.training.init or config.data.replay
    return not others and trained_on == [manifest.resolve()]
