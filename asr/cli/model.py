"""What is done with a recipe or a bundle: `asr info`, `asr export`, `asr compress`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from asr.cli.options import Bundle, Format, Overrides, app, err, out

if TYPE_CHECKING:
    from asr.compression.compress import Report


@app.command()
def info(
    source: Annotated[Path, typer.Argument(help="A recipe (no corpus needed) or a bundle.")],
    format: Format = "table",
    overrides: Overrides = None,
) -> None:
    """Parameters by part; of a bundle, its evaluation too."""
    from asr.config import load_config
    from asr.reporting.results import describe

    recipe = source / "config.yaml" if source.is_dir() else source
    facts = describe(load_config(recipe, overrides), source if source.is_dir() else None)
    if format == "json":
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    table = Table("part", "parameters", title=str(source))
    for name, count in facts["parts"].items():
        table.add_row(name, f"{count:,}")
    table.add_row(
        "total", f"{facts['parameters']:,} ({facts['parameters'] / 1e6:.2f} M)", style="bold"
    )
    out.print(table)
    if evaluation := facts.get("evaluation"):
        out.print(f"CER {evaluation['cer']:.2%} on {evaluation['cuts']}")


@app.command()
def export(
    bundle: Bundle,
    out_dir: Annotated[Path, typer.Option("--out", help="A new folder.")],
    kind: Annotated[str, typer.Option("--format", help="onnx, or torch (.pt2).")] = "onnx",
) -> None:
    """Write encoder and decoder step as graphs that need no code of ours, checked against it."""
    from asr.bundle import Bundle as Loaded
    from asr.export.export import TOLERANCE
    from asr.export.export import export as run

    loaded = Loaded.load(bundle)
    with err.status(f"tracing, writing and checking {out_dir}"):
        difference = run(loaded, kind, out_dir)
    out.print(
        f"{out_dir}: differs from the model by {difference:.1e} at most (allowed {TOLERANCE:g})",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


@app.command()
def compress(
    bundle: Bundle,
    out_dir: Annotated[Path, typer.Option("--out", help="A folder for the smaller bundle.")],
    method: Annotated[Literal["svd", "nmf", "semi_nmf"], typer.Option()] = "svd",
    rank: Annotated[
        float | None,
        typer.Option(help="Of every module; below 1: a share of the rank that saves nothing."),
    ] = None,
    energy: Annotated[
        float | None, typer.Option(help="Share of the squared singular values that is kept.")
    ] = None,
    modules: Annotated[
        list[str] | None, typer.Option(help="Names, such as 'encoder.*'; default: all modules.")
    ] = None,
    cuts: Annotated[Path | None, typer.Option(help="A manifest: CER before and after.")] = None,
    format: Format = "table",
) -> None:
    """Make a bundle smaller after its training: its weights as products of thin ones."""
    from rich.progress import Progress

    from asr.compression.compress import compress_bundle
    from asr.data.manifest import load_cuts

    if cuts:
        load_cuts(cuts)  # a mistyped path shows before the work
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        progress.add_task("compressing", total=None)
        report = compress_bundle(
            bundle, out_dir, method, rank=rank, energy=energy, modules=modules or ["*"], cuts=cuts
        )
    if format == "json":
        print(json.dumps(report.as_dict(), indent=2))
    else:
        _show_compressed(report, out_dir)


def _show_compressed(report: "Report", out_dir: Path) -> None:
    table = Table(title=str(out_dir))
    for name in ("module", "outputs x inputs", "rank", "error", "weights"):
        table.add_column(name, overflow="fold")
    for layer in report.layers:
        outputs, inputs = layer.shape
        table.add_row(
            layer.name, f"{outputs} x {inputs}", str(layer.rank), f"{layer.error:.1%}",
            f"{layer.before:,} -> {layer.after:,}",
        )  # fmt: skip
    out.print(table)
    facts: dict[str, Any] = report.facts()
    for name, value in facts.items():
        out.print(f"{name}: {value}", highlight=False, markup=False)
