"""Verbs for a recipe or a bundle: `asr info`, `asr compress`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from tabulate import tabulate

from asr.cli.options import Bundle, Format, Overrides, app, note, show

if TYPE_CHECKING:
    from asr.compression.compress import Report


@app.command()
def info(
    source: Annotated[Path, typer.Argument(help="A recipe (no corpus needed) or a bundle.")],
    format: Format = "table",
    overrides: Overrides = None,
) -> None:
    """Print the parameters of each part of a model; of a bundle, its evaluation too."""
    from asr.bundle import load_bundle_config
    from asr.config import load_config
    from asr.evaluation.cer import rates_text
    from asr.reporting.results import degrees_in_words, describe

    load = load_bundle_config if source.is_dir() else load_config
    facts = describe(load(source, overrides), source if source.is_dir() else None)
    if facts["missing"]:
        names = ", ".join(facts["missing"])
        note(f"not counted: {names}, since tokenizer.vocab_size is not set")
    if format == "json":
        show(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    rows = {**facts["parts"], f"total ({facts['parameters'] / 1e6:.2f} M)": facts["parameters"]}
    show(tabulate(rows.items(), ["part", "parameters"], intfmt=","))
    if degrees := facts.get("degrees"):
        show(f"degrees of {facts['sparse_maps']} sparse maps: {degrees_in_words(degrees)}")
    if evaluation := facts.get("evaluation"):
        rates = rates_text(evaluation["cer"], evaluation.get("wer"))
        show(f"{rates} on {evaluation['cuts']}")


@app.command()
def compress(
    bundle: Bundle,
    out_dir: Annotated[Path, typer.Option("--out", help="A folder for the smaller bundle.")],
    method: Annotated[
        Literal["svd", "nmf", "semi_nmf"], typer.Option(help="Kind of factorization.")
    ] = "svd",
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
    int8: Annotated[bool, typer.Option("--int8", help="Store larger weights in 8 bits.")] = False,
    cuts: Annotated[
        Path | None, typer.Option(help="A manifest: error rates before and after.")
    ] = None,
    format: Format = "table",
) -> None:
    """Make a trained bundle smaller: weights as products of low rank, or in 8 bits, or both."""
    from asr.compression.compress import compress_bundle
    from asr.data.manifest import load_cuts

    if cuts:
        load_cuts(cuts)  # report a mistyped path before the work
    report = compress_bundle(
        bundle, out_dir, method, int8=int8, cuts=cuts,
        rank=rank, energy=energy, modules=modules or ["*"],
    )  # fmt: skip
    if format == "json":
        show(json.dumps(report.as_dict(), indent=2))
    else:
        _show_compressed(report)


def _show_compressed(report: "Report") -> None:
    head = ["module", "outputs x inputs", "rank", "error", "weights", "before"]
    rows = [
        [layer.name, "{} x {}".format(*layer.shape), layer.rank, f"{layer.error:.1%}", layer.after,
         layer.before]
        for layer in report.layers
    ]  # fmt: skip
    if rows:
        show(tabulate(rows, head, intfmt=",") + "\n")
    for name, value in report.facts().items():
        show(f"{name}: {value}")
