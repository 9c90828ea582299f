"""`asr pseudo-label`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tabulate import tabulate

from asr.cli.options import Bundle, Device, app, note, progress, resumable, show
from asr.cli.prepare import show_report

if TYPE_CHECKING:
    from lhotse import CutSet

    from asr.evaluation.agreement import Kept, Limits
    from data_prep.pseudo_label import Labels

Recordings = Annotated[
    list[str],
    typer.Argument(help="Recordings without text: files, folders with subfolders, quoted globs."),
]
Out = Annotated[Path, typer.Argument(metavar="OUT_DIR", help="A new folder for the labels.")]
Dev = Annotated[
    Path | None, typer.Option(help="The dev manifest, to say how many errors to expect.")
]
Confidence = Annotated[float, typer.Option(min=0, max=1, help="The least that a label may have.")]
Disagreement = Annotated[
    float, typer.Option(min=0, help="The highest CER between the texts of the two decodings.")
]
Jobs = Annotated[
    int,
    typer.Option(min=1, help="Processes, which share the threads of `asr --threads` and all GPUs."),
]


@app.command()
def pseudo_label(
    bundle: Bundle,
    recordings: Recordings,
    out_dir: Out,
    dev: Dev = None,
    confidence: Confidence = 0.8,
    disagreement: Disagreement = 0.0,
    device: Device = "auto",
    jobs: Jobs = 1,
) -> None:
    """Label recordings by a model, keep what it is sure of: a manifest for data.train.

    Each recording is decoded twice, the second time at another speed. Recordings of dev, and of
    train and test beside it, are left out. The same command continues what was interrupted; with
    other limits it takes seconds.
    """
    from asr.data.manifest import load_cuts
    from asr.evaluation.agreement import Limits
    from asr.runtime.devices import choose_device
    from asr.runtime.files import lock_folder
    from data_prep.pseudo_label import SPLIT, Labels

    choose_device(device)  # before anything is written
    limits = Limits(confidence=confidence, disagreement=disagreement)
    cuts = load_cuts(dev) if dev else None
    others = [load_cuts(path) for path in _beside(dev)] if dev else []
    with resumable(shlex.join(["asr", *sys.argv[1:]])):
        labels = Labels(bundle, recordings, out_dir, cuts, others)
        if not labels.knows_noise:
            note(
                f"{bundle}: was trained without augment.pauses and may take noise for words: give "
                "recordings of speech alone, or train it with pauses"
            )
        with lock_folder(out_dir):
            _decode(labels, device, jobs)
            if cuts is not None:
                show(f"{dev}: {_expected(labels, cuts, limits, device)}\n")
            report, hours = labels.write(limits)
    show_report(report, out_dir)
    kept = report.splits[SPLIT].hours
    show(f"kept {kept:.2f} of {hours:.2f} h ({kept / hours:.0%}): {out_dir / SPLIT}.jsonl.gz")


def _beside(dev: Path) -> list[Path]:
    """Return the manifests of the same corpus, as `asr prepare` names them."""
    paths = [dev.with_name(f"{split}.jsonl.gz") for split in ("train", "test")]
    return [path for path in paths if path.is_file() and path != dev]


def _decode(labels: "Labels", device: str, jobs: int) -> None:
    for number, view in enumerate(labels.views, 1):
        n_todo, n_all = len(labels.todo(view)), len(labels.tasks)
        title = f"decoding {number} of {len(labels.views)}"
        with progress(title, n_all, n_all - n_todo) as on_progress:
            for error in labels.decode(view, device, jobs, on_progress):
                note(f"asr: {error}: left out")


def _expected(labels: "Labels", cuts: "CutSet", limits: "Limits", device: str) -> str:
    """Return what the limits keep of dev, and what other ones would."""
    import asr
    from asr.evaluation.agreement import expect, guess_dev
    from asr.evaluation.cer import rates_text

    guesses = labels.read_guesses(cuts)
    if guesses is None:
        recognizer = asr.load(labels.bundle, device)
        with progress("decoding dev", len(cuts)) as on_progress:
            guesses = guess_dev(recognizer, cuts, on_progress)
        labels.write_guesses(guesses)
    found = expect(guesses, limits)
    labels.write_expected(found)
    has_words = found.wer is not None
    rows = [(k.limits.confidence, f"{k.share:.0%}", *_cells(k, has_words)) for k in found.others]
    all_rates, kept_rates = (rates_text(each.cer, each.wer) for each in (found, found.chosen))
    kept = (
        f"{found.chosen.share:.0%} of them, with {kept_rates}. Expect that of the labels, as far "
        "as the recordings are like these."
        if found.chosen.share
        else "none of them: give a lower --confidence"
    )
    heading = ("--confidence", "kept", "CER", *(["WER"] if has_words else []))
    return (
        f"{all_rates} of {found.utterances} utterances; the limits keep {kept}\n\n"
        f"{tabulate(rows, heading)}"
    )


def _cells(kept: "Kept", has_words: bool) -> list[str]:
    """Return the rates of what is kept, a dash for each where nothing is."""
    rates = (kept.cer, *([kept.wer] if has_words else []))
    return ["-" if rate is None or not kept.share else f"{rate:.2%}" for rate in rates]
