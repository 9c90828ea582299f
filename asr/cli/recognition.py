"""`asr transcribe`, `asr serve`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asr.cli.options import Beam, Bundle, Device, Int8, Lm, LmWeight, Method, app, err
from asr.errors import AudioError, ConfigError

if TYPE_CHECKING:
    from asr.recognizer import Transcript


@app.command()
def transcribe(
    bundle: Bundle,
    recordings: Annotated[
        list[str],
        typer.Argument(help="wav, flac, ogg or mp3: files, folders with all below, quoted globs."),
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
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with a GPU in turn.")] = 1,
) -> None:
    """The text of recordings; a bad one is told and the others go on (exit code 1)."""
    from rich.progress import Progress

    from asr.transcription import find_tasks, transcribe_all

    tasks = find_tasks(recordings, out_dir, format)
    if len(tasks) > 1 and not out_dir and format not in ("txt", "json"):
        raise ConfigError(f"--format {format} is a file a recording: add --out DIR")
    todo = [task for task in tasks if overwrite or not (task.out and task.out.is_file())]
    skipped, failed = len(tasks) - len(todo), 0
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("transcribing", total=len(tasks), completed=skipped)
        changes = {"beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight}
        results = transcribe_all(
            todo, bundle, device, int8, changes, jobs,
            lambda n: progress.update(bar, completed=skipped + n),
        )  # fmt: skip
        for task, result in results:
            notes = [f"asr: {result}"] if isinstance(result, AudioError) else result.warnings
            for note in notes:
                err.print(note, markup=False, highlight=False, soft_wrap=True)
            if isinstance(result, AudioError):
                failed += 1
            elif not out_dir:
                _show_transcript(str(task.recording), result, format, alone=len(tasks) == 1)
    if out_dir:
        err.print(
            f"{len(todo) - failed} written to {out_dir}, {skipped} were there already",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if failed:
        raise typer.Exit(1)


def _show_transcript(name: str, result: "Transcript", format: str, alone: bool) -> None:
    from asr.formats import FORMATS

    if format == "json":
        print(json.dumps({"file": name, **result.as_dict()}, ensure_ascii=False), flush=True)
    else:
        text = FORMATS[format](result) if alone else f"{name}\t{result.text}\n"
        print(text, end="", flush=True)


@app.command()
def serve(
    bundles: Annotated[
        list[str],
        typer.Argument(metavar="BUNDLE...", help="Bundles' folders, or NAME=FOLDER."),
    ],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """An HTTP service in OpenAI's shape; its limits and keys are environment variables, ASR_…"""
    from serve.server import run
    from serve.settings import Settings

    run(Settings.read(bundles=bundles, device=device, int8=int8), host, port)
