"""What is done with a recipe or a bundle: `asr info`, `asr export`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from asr.cli.options import Bundle, Format, Overrides, app, err, out


@app.command()
def info(
    source: Annotated[Path, typer.Argument(help="A recipe (no corpus needed) or a bundle.")],
    format: Format = "table",
    overrides: Overrides = None,
) -> None:
    """Parameters by part; of a bundle, its evaluation too."""
    from asr.card import describe
    from asr.config import load_config

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
    from asr.export import TOLERANCE
    from asr.export import export as run

    loaded = Loaded.load(bundle)
    with err.status(f"tracing, writing and checking {out_dir}"):
        difference = run(loaded, kind, out_dir)
    out.print(
        f"{out_dir}: differs from the model by {difference:.1e} at most (allowed {TOLERANCE:g})",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
