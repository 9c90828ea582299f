"""`asr transcribe`, `asr serve`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from asr.cli.options import Beam, Device, Int8, Lm, LmWeight, Method, app, err
from asr.errors import AudioError, ConfigError

if TYPE_CHECKING:
    from asr.transcription.jobs import Task


Progress: TypeAlias = Callable[[float], object]  # how many are done, of halves too


Results: TypeAlias = Iterator[tuple["Task", str | AudioError]]


@app.command()
def transcribe(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[BUNDLE] RECORDINGS",
            help="A model bundle's folder (none with --server), then wav, flac, ogg or mp3: files, "
            "folders with all below, quoted globs.",
        ),
    ],
    format: Annotated[Literal["txt", "json", "srt", "vtt", "tsv"], typer.Option()] = "txt",
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="A folder for a file each; those there are kept.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Write anew what --out holds.")] = False,
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    device: Device = "auto",
    int8: Int8 = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes, each with a GPU in turn; of a server, requests.")
    ] = 1,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A service that decodes, in OpenAI's shape: `asr serve`."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Which of the server's models.")] = None,
) -> None:
    """The text of recordings; a bad one is told and the others go on (exit code 1).

    With --server URL the recordings are sent there, with the key in ASR_API_KEY if it wants one.
    """
    from asr.transcription.jobs import find_tasks
    from asr.transcription.remote import Server, ask_all

    changes = {"beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight}
    _check_place(arguments, server, model, {**changes, "device": device, "int8": int8})
    tasks = find_tasks(arguments if server else arguments[1:], out_dir, format)
    if len(tasks) > 1 and not out_dir and format not in ("txt", "json"):
        raise ConfigError(f"--format {format} is a file a recording: add --out DIR")
    todo = [task for task in tasks if overwrite or not (task.out and task.out.is_file())]

    def results(on_progress: Progress) -> Results:
        if server:
            return ask_all(todo, Server(server, model), format, jobs, on_progress)
        bundle = Path(arguments[0])
        return _here(todo, bundle, device, int8, changes, format, jobs, on_progress)

    skipped = len(tasks) - len(todo)
    failed = _tell(results, len(tasks), skipped, None if out_dir else format)
    if out_dir:
        err.print(
            f"{len(todo) - failed} written to {out_dir}, {skipped} were there already",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if failed:
        raise typer.Exit(1)


def _tell(
    results: Callable[[Progress], Results], total: int, skipped: int, shown: str | None
) -> int:
    """How many recordings failed, each told; transcripts are printed as format `shown`."""
    from rich.progress import Progress as Bar

    failed = 0
    with Bar(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("transcribing", total=total, completed=skipped)
        for task, result in results(lambda n: progress.update(bar, completed=skipped + n)):
            if isinstance(result, AudioError):
                failed += 1
                _note(f"asr: {result}")
            elif shown:
                _show_transcript(str(task.recording), result, shown, alone=total == 1)
    return failed


def _check_place(
    arguments: list[str], server: str | None, model: str | None, local: dict[str, Any]
) -> None:
    """Raises ConfigError for options of the other place, here or a server, than the chosen one."""
    given = [key for key, value in local.items() if value not in (None, False, "auto")]
    if server and given:
        option = given[0].replace("_", "-").removesuffix("-size")
        raise ConfigError(f"--{option} is the server's own choice: leave it out with --server")
    if not server and model:
        raise ConfigError("--model is of a server: give --server URL, or the bundle's folder")
    if not server and len(arguments) < 2:
        raise ConfigError(f"{arguments[0]}: give a bundle and recordings, or --server URL")


def _here(
    tasks: list["Task"], bundle: Path, device: str, int8: bool, changes: dict[str, Any],
    format: str, jobs: int, on_progress: Progress,
) -> Results:  # fmt: skip
    from asr.transcription.batch import transcribe_all
    from asr.transcription.writers import FORMATS

    for task, result in transcribe_all(tasks, bundle, device, int8, changes, jobs, on_progress):
        if isinstance(result, AudioError):
            yield task, result
            continue
        for warning in result.warnings:
            _note(warning)
        yield task, FORMATS[format](result)


def _note(text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _show_transcript(name: str, text: str, format: str, alone: bool) -> None:
    if format == "json":
        # JSON is UTF-8: a name that is not stands there escaped, as json.loads gives it back.
        line = {"file": name, **json.loads(text)}
        text = json.dumps(line, ensure_ascii=not name.isprintable()) + "\n"
    elif not alone:
        text = f"{name}\t{text}"
    print(text, end="", flush=True)
