"""Measure what each decoding method and a language model give: CER on dev and, once, on test.

    python -m benchmarks.decoding_methods BUNDLE DATA WORK [--most 300] [--lm-epochs 10] [--record]

The script trains two language models in WORK, of the train transcripts alone: a Transformer and a
trigram (`asr train-lm`, without and with `--order 3`). Weights are found on at most `--most`
utterances of dev, as by `asr tune`; test is decoded once with the weights of each row. BUNDLE is
only read. Run the script in a folder where the paths of data in the bundle's configuration hold.
"""

import argparse
from pathlib import Path

import torch

import asr
from asr.bundle import Bundle
from asr.data.manifest import load_cuts
from asr.decoding.options import DecodingOptions
from asr.evaluation.evaluate import evaluate
from asr.evaluation.tune import TUNED, tune
from asr.lm.training import train_ngram
from asr.train.language_model import train_lm
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value


def searches(
    recognizer: Recognizer, data: Path, most: int, lms: dict[str, Path]
) -> dict[str, DecodingOptions]:
    """Return the options of each row of the table, by its name; tune weights here, on dev."""
    own = recognizer.config.decoding
    rows = {
        "decoder alone": own.model_copy(update={"ctc_weight": 0.0}),
        "CTC, greedy": own.model_copy(update={"method": "ctc_greedy"}),
        "CTC, beam": own.model_copy(update={"method": "ctc_beam"}),
        "CTC, rescored by the decoder": own.model_copy(update={"method": "rescore"}),
        "joint, the recipe's weights": own,
    }
    dev = load_cuts(data / "dev.jsonl.gz")
    found = {"joint, tuned": tune(recognizer, dev, own, most)[0].decoding}
    for name, lm in lms.items():
        # From the weights without a model, so that the model alone explains what changes.
        start = found["joint, tuned"].model_copy(update={"lm": lm})
        found[f"joint and {name}, tuned"] = tune(recognizer, dev, start, most)[0].decoding
        start = rows["CTC, beam"].model_copy(update={"lm": lm})
        found[f"CTC, beam and {name}, tuned"] = tune(recognizer, dev, start, most)[0].decoding
    return rows | found


def language_models(args: argparse.Namespace, recognizer: Recognizer) -> dict[str, Path]:
    """Train both language models in WORK, unless they are there."""
    lm = args.work / "lm"
    if not (lm / "model.safetensors").is_file():
        train_lm(Bundle.load(args.bundle), [], lm, args.lm_epochs, False, torch.device("cpu"))
    trigram = args.work / "trigram.arpa"
    if not trigram.is_file():
        train_ngram(recognizer.config, recognizer.tokenizer, [], [], trigram, 3)
    return {"Transformer": lm, "trigram": trigram}


def row(recognizer: Recognizer, data: Path, name: str, search: DecodingOptions) -> list[Value]:
    """Decode dev and test once; return the row of the table."""
    dev, test = (
        evaluate(recognizer, load_cuts(data / f"{part}.jsonl.gz"), search)
        for part in ("dev", "test")
    )
    weights = " / ".join(f"{getattr(search, name):g}" for name in TUNED)
    errors = f"{test.substitutions} / {test.insertions} / {test.deletions}"
    return [name, weights, 100 * dev.cer, 100 * test.cer, errors, test.rtf]


def main() -> None:
    """Train the language models, tune, print and record the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path, help="The folder of train, dev and test.jsonl.gz.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--most", type=int, default=300)
    parser.add_argument("--lm-epochs", type=int, default=10)
    record.add_option(parser)
    args = parser.parse_args()
    recognizer = asr.load(args.bundle, "cpu")
    lms = language_models(args, recognizer)
    rows = []
    for name, search in searches(recognizer, args.data, args.most, lms).items():
        rows.append(row(recognizer, args.data, name, search))
        record.progress(f"{rows[-1]}")
    columns = {
        "decoding": "", "λ / μ / β / γ": "", "dev CER (%)": ".2f", "test CER (%)": ".2f",
        "S / I / D": "", "RTF": ".4f",
    }  # fmt: skip
    title = f"Methods and language models: {args.bundle.name}"
    record.publish(args, "decoding-methods", [Result(title=title, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
