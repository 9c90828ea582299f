"""`asr bench efficiency`."""

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from asr.cli.options import Device, app, note, progress, show
from asr.errors import ConfigError

bench_app = typer.Typer(help="Measure what models cost.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Measure what models cost."""


@bench_app.command()
def efficiency(
    kinds: Annotated[
        str, typer.Option(help="Models beside the Transformer, with commas; all: every one.")
    ] = "lrt,linformer",
    lengths: Annotated[
        str | None, typer.Option(help="With commas; default: 128,256,512,1024,2048,4096.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="With commas; default: 32,64,128,256.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Of each case; default: 30.")] = None,
    out_dir: Annotated[
        Path, typer.Option("--out", help="A folder; cases stored in it are not measured again.")
    ] = Path("exp/efficiency"),
    quick: Annotated[
        bool, typer.Option("--quick", help="By default, lengths 128,512, ranks 32,128, 2 runs.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(min=0.01, help="GiB for a model on the CPU; default: all free.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Measure time, memory and size of Transformer, LRT and Linformer by length."""
    from asr.efficiency.grid import D_MODEL, LENGTHS, RANKS, grid
    from asr.efficiency.run import device_name, study
    from asr.efficiency.tables import write_results
    from asr.reporting.plots import check_matplotlib
    from asr.runtime.devices import choose_device

    check_matplotlib()
    chosen = choose_device(device)
    all_lengths = _numbers("--lengths", lengths) or ([128, 512] if quick else LENGTHS)
    all_ranks = _numbers("--ranks", ranks, D_MODEL) or ([32, 128] if quick else RANKS)
    runs = runs or (2 if quick else 30)
    cases = list(grid(_kinds(kinds), all_lengths, all_ranks, runs, device_name(chosen)))
    n_done = itertools.count(1)
    with progress("measuring", len(cases)) as on_progress:
        try:
            rows = study(cases, chosen, out_dir, memory, lambda _: on_progress(next(n_done)))
        except KeyboardInterrupt:
            note("interrupted; the same command continues where it stopped")
            sys.exit(130)
    show(write_results(rows, out_dir))


def _kinds(text: str) -> list[str]:
    from asr.efficiency.grid import MODELS

    kinds = list(MODELS) if text == "all" else [kind.strip() for kind in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in MODELS]:
        raise ConfigError(f"--kinds {unknown[0]}: write some of {','.join(MODELS)}, or all")
    return kinds


def _numbers(option: str, text: str | None, most: int = 1 << 20) -> list[int]:
    """Parse whole numbers from 1 to `most`, with commas; none where no text is given."""
    parts = text.split(",") if text is not None else []
    for part in parts:
        if not part.strip().isdecimal() or not 1 <= int(part) <= most:
            raise ConfigError(f"{option} {text}: {part!r} is no number from 1 to {most}")
    return [int(part) for part in parts]
