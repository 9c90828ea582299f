"""What is done with a recipe or a bundle: `asr info`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from asr.cli.options import Format, Overrides, app, out


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
