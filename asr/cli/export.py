"""`asr export`: a model for other programs, phones and browsers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.cli.options import Bundle, Lm, LmBonus, LmWeight, app, decoding_changes, err, show
from asr.errors import ConfigError

if TYPE_CHECKING:
    from asr.bundle import Bundle as LoadedBundle

Out = Annotated[Path, typer.Option("--out", help="A new folder; for html a new file.")]
Kind = Annotated[
    str,
    typer.Option(
        "--format",
        help="onnx, torch (.pt2), sherpa (for sherpa-onnx), or html, one page for browsers.",
    ),
]
Int8 = Annotated[
    bool,
    typer.Option("--int8", help="Compute in 8 bits; for onnx, and as a second file for sherpa."),
]
Cuts = Annotated[
    Path | None, typer.Option(help="With --int8: a manifest to calibrate on; default: dev.")
]


@app.command()
def export(
    bundle: Bundle,
    out: Out,
    kind: Kind = "onnx",
    int8: Int8 = False,
    cuts: Cuts = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    lm_bonus: LmBonus = None,
) -> None:
    """Write a model for other programs: graphs, which are checked against it, or a page.

    For onnx and torch these are the encoder and a step of the decoder, for sherpa-onnx the encoder
    with its CTC head. A page takes an n-gram along, the one that the bundle decodes with or --lm.
    """
    from asr.bundle import Bundle as Loaded

    if (int8 and kind not in ("onnx", "sherpa")) or (cuts and not int8):
        raise ConfigError("--int8 is for --format onnx and sherpa, and --cuts is for --int8")
    if kind != "html" and (lm, lm_weight, lm_bonus) != (None, None, None):
        raise ConfigError(
            "--lm, --lm-weight and --lm-bonus are for --format html: other formats have no search"
        )
    loaded = Loaded.load(bundle)
    if kind == "html":
        changes = decoding_changes(None, "ctc_beam", lm, lm_weight, lm_bonus=lm_bonus)
        decoding = loaded.config.decoding.changed(changes)
        loaded.config = loaded.config.model_copy(update={"decoding": decoding})
        _page(loaded, bundle.resolve().name, out)
    elif int8:
        _in_8_bits(loaded, kind, out, cuts)
    else:
        _graphs(loaded, kind, out)


def _page(bundle: "LoadedBundle", name: str, out: Path) -> None:
    from asr.export.html import export_html

    n_bytes = export_html(bundle, name, out)
    show(f"{out}: {n_bytes / 1e6:.2f} MB, to be opened in a browser")


def _in_8_bits(bundle: "LoadedBundle", kind: str, out: Path, path: Path | None) -> None:
    from asr.export import calibration, sherpa, sherpa_int8
    from asr.export import export as graphs

    cuts, done = calibration.find_cuts(bundle, path), list[calibration.Quantized]()
    is_sherpa = kind == "sherpa"
    quantize = sherpa_int8.quantize_folder if is_sherpa else calibration.quantize_folder

    def finish(folder: Path) -> None:
        done.append(quantize(bundle, cuts, folder))

    with err.status("tracing, writing, calibrating and counting errors"):
        if is_sherpa:
            sherpa.export(bundle, out, finish)
        else:
            # A byte for a weight, or four for its position and four for it.
            graphs.export(bundle, kind, out, finish, dense_from=1 / 8)
    show(f"{out}: in 8 bits, {done[0]}")


def _graphs(bundle: "LoadedBundle", kind: str, out: Path) -> None:
    from asr.export import export as graphs
    from asr.export import sherpa

    is_sherpa = kind == "sherpa"
    with err.status("tracing, writing and checking"):
        difference = sherpa.export(bundle, out) if is_sherpa else graphs.export(bundle, kind, out)
    allowed = sherpa.TOLERANCE if is_sherpa else graphs.TOLERANCE
    show(f"{out}: differs from the model by {difference:.1e} at most (allowed {allowed:g})")
