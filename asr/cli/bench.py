"""`asr bench efficiency`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.cli.options import Device, app, err
from asr.errors import ConfigError

if TYPE_CHECKING:
    from asr.efficiency.grid import Measurement

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

    from asr.efficiency.grid import D_MODEL, LENGTHS, RANKS, grid
    from asr.efficiency.plots import check_matplotlib, draw
    from asr.efficiency.run import device_name, study
    from asr.efficiency.tables import as_json, markdown, name, summarise
    from asr.runtime.devices import choose_device
    from asr.runtime.files import write_atomically

    check_matplotlib()
    chosen = choose_device(device)
    cells = list(
        grid(
            _kinds(kinds),
            _numbers("--lengths", lengths) or ([128, 512] if quick else list(LENGTHS)),
            _numbers("--ranks", ranks, D_MODEL) or ([32, 128] if quick else list(RANKS)),
            runs or (2 if quick else 30),
            device_name(chosen),
        )
    )
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(cells))

        def tell(row: "Measurement") -> None:
            said = f"{name(row)}, n = {row.length}, {row.mode}"
            progress.update(task, advance=1, description=said)

        try:
            rows = study(cells, chosen, out_dir, memory, tell)
        except KeyboardInterrupt:
            err.print("interrupted; the same command goes on where it was")
            sys.exit(130)
    found = summarise(rows)
    text = as_json(found)
    write_atomically(out_dir / "efficiency.json", lambda path: path.write_text(text, "utf-8"))
    print(markdown(found))
    for path in draw(rows, out_dir):
        err.print(f"{path}", highlight=False, soft_wrap=True)


def _kinds(text: str) -> list[str]:
    from asr.efficiency.grid import MODELS

    kinds = list(MODELS) if text == "all" else [kind.strip() for kind in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in MODELS]:
        raise ConfigError(f"--kinds {unknown[0]}: write some of {','.join(MODELS)}, or all")
    return kinds


def _numbers(option: str, text: str | None, most: int = 1 << 20) -> list[int]:
    """Whole numbers from 1 to `most`, with commas; none where nothing is given."""
    parts = text.split(",") if text is not None else []
    for part in parts:
        if not part.strip().isdecimal() or not 1 <= int(part) <= most:
            raise ConfigError(f"{option} {text}: {part!r} is no number from 1 to {most}")
    return [int(part) for part in parts]
