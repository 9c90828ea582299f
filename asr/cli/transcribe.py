"""`asr transcribe`."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asr.cli.live import transcribe_live
from asr.cli.options import (
    Beam,
    Confidence,
    Device,
    Int8,
    Lm,
    LmBonus,
    LmWeight,
    Method,
    app,
    decoding_changes,
    note,
    progress,
    show,
)
from asr.cli.shared import transcribe_shared
from asr.decoding.hotwords import as_text, read_hotwords
from asr.errors import AudioError, ConfigError

if TYPE_CHECKING:
    from asr.transcription.jobs import Task
    from asr.transcription.transcript import Transcript

    Results = Iterator[tuple[Task, Transcript | str | AudioError]]
    OnProgress = Callable[[float], object]
    Way = Callable[[list[Task], OnProgress], Results]

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="[BUNDLE] RECORDINGS",
        help="The folder of a model bundle (not with --server), then recordings: files, folders "
        "with their subfolders, quoted globs, or - for standard input.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="DIR|URL",
        help="Write a file per recording into a folder; skip existing ones. By URL (s3://, "
        "file://) any number of machines run the same command and share the work.",
    ),
]
Overwrite = Annotated[bool, typer.Option(help="Write existing files of --out again.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes, which share the threads of `asr --threads` and all GPUs; with --server, "
        "concurrent requests; with --engine ray, actors. Default: 1, or one for each thread (8 at "
        "most) for more than 20 MB of recordings on a CPU; 1 request; as many actors as fit.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ray|ray://HOST:PORT",
        help="With --out URL: actors of a Ray cluster do the work, one for each GPU, or for as "
        "many cores as `asr --threads` says (1).",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send the recordings to a service (OpenAI's API)."),
]
Words = Annotated[
    Path | None,
    typer.Option(
        "--hotwords",
        metavar="FILE",
        help="Phrases to expect, one a line; `phrase<TAB>weight` with a weight of its own.",
    ),
]
Live = Annotated[
    bool,
    typer.Option(help="Text while it arrives: standard input is raw 16-bit mono PCM, or WAV."),
]
Rate = Annotated[
    int | None,
    typer.Option(min=8000, max=384000, help="With --live: Hz of raw PCM, else the model's rate."),
]
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
Model = Annotated[str | None, typer.Option(help="The server's model, if it has several.")]


@app.command()
def transcribe(
    context: typer.Context,
    arguments: Arguments,
    format: Annotated[
        Literal["txt", "json", "srt", "vtt", "tsv", "TextGrid"], typer.Option(case_sensitive=False)
    ] = "txt",
    out: Out = None,
    overwrite: Overwrite = False,
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    lm_bonus: LmBonus = None,
    confidence: Confidence = None,
    hotwords: Words = None,
    device: Device = "auto",
    int8: Int8 = False,
    jobs: Jobs = None,
    engine: Engine = None,
    server: Server = None,
    model: Model = None,
    live: Live = False,
    rate: Rate = None,
) -> None:
    """Transcribe recordings; one that fails is reported and the others continue (exit code 1).

    With --server URL the key is in ASR_API_KEY, if the service requires one.
    """
    from asr.runtime.storage import is_url

    changes = decoding_changes(beam, method, lm, lm_weight, confidence, lm_bonus)
    _check_options(arguments, server, model, {**changes, "device": device, "int8": int8})
    is_shared = is_url(out or "")
    _check_way(is_shared, engine, live or bool(rate), bool(server or overwrite))
    words = read_hotwords(hotwords) if hotwords else ()
    changes["hotwords"] = words or None
    if live or rate:
        if server or out is not None or format != "txt" or not live:
            raise ConfigError(
                "--live prints text, of standard input: --rate is for it alone, and "
                "--server, --out and --format are not for it"
            )
        transcribe_live(arguments, device, int8, changes, rate)
    elif out and is_shared:
        cores = context.find_root().params.get("threads") or 1
        transcribe_shared(arguments, out, format, device, int8, changes, jobs, engine, cores)
    else:
        with ExitStack() as stack:
            if server and format == "TextGrid":
                raise ConfigError("a service writes no TextGrid: give --format srt, or a model")
            if server:
                way = _by_server(server, model, format, jobs or 1, as_text(words))
            else:
                way = _by_bundle(stack, arguments[0], format, device, int8, changes, jobs)
                arguments = arguments[1:]
            _transcribe_here(arguments, None if out is None else Path(out), format, overwrite, way)


def _check_way(is_shared: bool, engine: str | None, live: bool, alone: bool) -> None:
    """Raise ConfigError where options are for another way of working than that of --out."""
    if engine and (live or not is_shared):
        raise ConfigError(
            f"--engine {engine} is for --out URL: give s3://…, or file:// and a folder that all "
            "nodes see"
        )
    if is_shared and alone and not live:
        raise ConfigError(
            "--out URL is for machines that share the work, which write nothing twice: leave "
            "out --server and --overwrite, or give a folder"
        )


def _transcribe_here(
    arguments: list[str], out_dir: Path | None, format: str, overwrite: bool, way: "Way"
) -> None:
    """Print the texts of recordings, or write them to a folder."""
    from asr.transcription.jobs import find_tasks

    tasks = find_tasks(arguments, out_dir, format)
    if len(tasks) > 1 and not out_dir and format not in ("txt", "json"):
        raise ConfigError(f"--format {format} is a file per recording: add --out DIR")
    if out_dir:
        out_dir.mkdir(parents=True, exist_ok=True)  # a mistaken path is reported before the work
    todo = [task for task in tasks if overwrite or not task.is_done]
    skipped = len(tasks) - len(todo)
    with progress("transcribing", len(tasks), skipped) as on_progress:
        results = way(todo, on_progress)
        failed = _report(results, None if out_dir else format, alone=len(tasks) == 1)
    if out_dir:
        note(f"{len(todo) - failed} written to {out_dir}, {skipped} were there already")
    raise typer.Exit(int(failed > 0))


def _by_server(server: str, model: str | None, format: str, jobs: int, hotwords: str) -> "Way":
    from asr.transcription.remote import ask_all

    return lambda tasks, on_progress: ask_all(
        tasks, server, model, format, jobs, on_progress, hotwords
    )


def _by_bundle(
    stack: ExitStack, bundle: str, format: str, device: str, int8: bool,
    changes: dict[str, object], jobs: int | None,
) -> "Way":  # fmt: skip
    """Return the way of this machine's processes; `stack` keeps a bundle that is fetched."""
    from asr.transcription.batch import transcribe_all
    from asr.transcription.remote_bundle import local_bundle

    if format != "json":  # the only one with a list of texts: one is found sooner
        changes["n_best"] = 1

    def way(tasks: list["Task"], on_progress: "OnProgress") -> "Results":
        folder = stack.enter_context(local_bundle(bundle))
        return transcribe_all(tasks, folder, device, int8, changes, jobs, on_progress)

    return way


def _report(results: "Results", shown: str | None, alone: bool) -> int:
    """Print transcripts in the format `shown`, and errors; return the number of errors."""
    from asr.transcription.writers import FORMATS

    failed, told = 0, set[str]()
    for task, result in results:
        if isinstance(result, AudioError):
            failed += 1
            note(f"asr: {result}")
            continue
        if not isinstance(result, str):
            for warning in result.warnings:
                if not (warning.startswith("hotwords ") and warning in told):
                    note(task.named(warning))  # that of hotwords is the same for all recordings
                told.add(warning)
        if shown:
            text = result if isinstance(result, str) else FORMATS[shown](result)
            _show_transcript(str(task.recording), text, shown, alone)
    return failed


def _check_options(
    arguments: list[str], server: str | None, model: str | None, local: dict[str, object]
) -> None:
    """Raise ConfigError for options that apply only here, or only to a server."""
    # 0 is a value too, as that of --confidence.
    given = [key for key, value in local.items() if str(value) not in ("None", "False", "auto")]
    if server and given:
        option = given[0].replace("_", "-").removesuffix("-size").removesuffix("-threshold")
        raise ConfigError(f"--{option} is the server's decision: leave it out with --server")
    if not server and model:
        raise ConfigError("--model needs --server URL; for a bundle give its folder")
    if not server and len(arguments) < 2:
        raise ConfigError(f"{arguments[0]}: give a bundle and recordings, or --server URL")


def _show_transcript(name: str, text: str, format: str, alone: bool) -> None:
    """Print a transcript; of several in txt, each is a line, whatever its name and text hold."""
    if format == "json":
        # JSON is UTF-8: other names are escaped, and json.loads restores them.
        line = {"file": name, **json.loads(text)} | {"file": name}  # a service may send one
        text = json.dumps(line, ensure_ascii=not name.isprintable())
    elif not alone:
        text = f"{name.translate(_ESCAPES)}\t{' '.join(text.splitlines())}"
    show(text.removesuffix("\n"))
