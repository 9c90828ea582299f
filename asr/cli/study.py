"""`asr bench efficiency`."""

from pathlib import Path
from typing import Annotated

import typer

from asr.cli.options import Device, app, err
from asr.errors import ConfigError

bench_app = typer.Typer(help="Studies of what models cost.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Studies of what models cost."""


@bench_app.command()
def efficiency(
    kinds: Annotated[
        str, typer.Option(help="Models beside the Transformer, with commas; all: every one.")
    ] = "lrt,linformer",
    lengths: Annotated[
        str | None, typer.Option(help="With commas; default: 128,256,512,1024,2048,4096.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Likewise; default: 32,64,128,256.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Of each cell; default: 30.")] = None,
    out_dir: Annotated[
        Path, typer.Option("--out", help="What lies there is not measured again.")
    ] = Path("exp/efficiency"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Unless said: lengths 128,512, ranks 32,128, 2 runs.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(min=0.01, help="GiB for a model on the CPU; default: all free.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Time, memory and size of Transformer, LRT and Linformer by length (thesis 3.2, 3.3)."""
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from asr.bundle import write_atomically
    from asr.recognizer import choose_device
    from asr.study.cells import LENGTHS, MODELS, RANKS, grid
    from asr.study.figures import check_matplotlib, draw
    from asr.study.report import as_json, markdown, name, summarise
    from asr.study.run import device_name, study

    check_matplotlib()
    models = list(MODELS) if kinds == "all" else kinds.split(",")
    if unknown := [model for model in models if model not in MODELS]:
        raise ConfigError(f"--kinds {unknown[0]}: write some of {','.join(MODELS)}, or all")
    chosen = choose_device(device)
    cells = list(
        grid(
            models,
            _numbers("--lengths", lengths) or ([128, 512] if quick else list(LENGTHS)),
            _numbers("--ranks", ranks) or ([32, 128] if quick else list(RANKS)),
            runs or (2 if quick else 30),
            device_name(chosen),
        )
    )
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(cells))
        rows = study(
            cells, chosen, out_dir, memory,
            lambda row: progress.update(
                task, advance=1, description=f"{name(row)}, n = {row.length}, {row.mode}"
            ),
        )  # fmt: skip
    found = summarise(rows)
    text = as_json(found)
    write_atomically(out_dir / "efficiency.json", lambda path: path.write_text(text, "utf-8"))
    print(markdown(found))
    for path in draw(rows, out_dir):
        err.print(f"{path}", highlight=False, soft_wrap=True)


def _numbers(option: str, text: str | None) -> list[int]:
    """Positive whole numbers with commas; none where nothing is given."""
    parts = text.split(",") if text is not None else []
    if wrong := [part for part in parts if not part.strip().isdecimal() or not int(part)]:
        raise ConfigError(f"{option} {text}: {wrong[0]!r} is no number above 0: write 128,256")
    return [int(part) for part in parts]
