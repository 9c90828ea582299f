"""Measure what each decoding method and a language model give: CER on dev and, once, on test.

    python -m benchmarks.decoding_methods BUNDLE DATA WORK [--most 300] [--lm-epochs 10] [--record]

In WORK: a Transformer language model (`asr train-lm`) and a character trigram (Witten-Bell, as an
ARPA file), both of the train transcripts alone. Weights are found on at most `--most` utterances
of dev as by `asr tune`; test is decoded once with each row's. BUNDLE is only read; run it where the
bundle's own paths of data hold.
"""

import argparse
from collections import Counter, defaultdict
from math import log10
from pathlib import Path

import torch

import asr
from asr.bundle import Bundle
from asr.data.manifest import load_cuts, text_of
from asr.decoding.options import DecodingOptions
from asr.evaluation.evaluate import evaluate
from asr.evaluation.tune import tune
from asr.tokenizer import EOS, SOS, UNK, Tokenizer
from asr.train.language_model import train_lm
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value

_ORDER = 3


def write_arpa(path: Path, texts: list[str], tokenizer: Tokenizer) -> None:
    """Write a character n-gram, interpolated with the shorter ones (Witten and Bell 1991).

    P(w | h) = (c(h w) + t(h) · P(w | h')) / (c(h) + t(h)), t(h) how many tokens have followed h.
    """
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text in texts:
        tokens = [SOS, *tokenizer.encode(text), EOS]
        for i in range(1, len(tokens)):
            for n in range(min(_ORDER, i + 1)):
                counts[tuple(tokens[i - n : i])][tokens[i]] += 1
    vocabulary = tokenizer.tokens()
    names = {SOS: "<s>", EOS: "</s>", UNK: "<unk>"}
    p: dict[tuple[int, ...], float] = {}
    for h in sorted(counts, key=len):
        total, kinds = sum(counts[h].values()), len(counts[h])
        for w in {*counts[h], UNK} if not h else counts[h]:
            shorter = p[(*h[1:], w)] if h else 1 / len(vocabulary)
            p[(*h, w)] = (counts[h][w] + kinds * shorter) / (total + kinds)
    p[(SOS,)] = 1e-99
    lines: dict[int, list[str]] = defaultdict(list)
    for gram, probability in p.items():
        words = " ".join(names.get(t, vocabulary[t]) for t in gram)
        after = counts.get(gram)
        backoff = log10(len(after) / (sum(after.values()) + len(after))) if after else 0.0
        lines[len(gram)].append(f"{log10(probability):.6f}\t{words}\t{backoff:.6f}")
    head = "".join(f"ngram {n}={len(lines[n])}\n" for n in sorted(lines))
    body = "".join(f"\n\\{n}-grams:\n" + "\n".join(lines[n]) + "\n" for n in sorted(lines))
    path.write_text(f"\\data\\\n{head}{body}\n\\end\\\n", "utf-8")


def searches(
    recognizer: Recognizer, data: Path, most: int, lms: dict[str, Path]
) -> dict[str, DecodingOptions]:
    """Return the rows of the table; what is tuned is tuned here, on dev."""
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
    train = [text_of(cut) for cut in load_cuts(args.data / "train.jsonl.gz")]
    write_arpa(args.work / "trigram.arpa", train, recognizer.tokenizer)
    return {"Transformer": lm, "trigram": args.work / "trigram.arpa"}


def row(recognizer: Recognizer, data: Path, name: str, search: DecodingOptions) -> list[Value]:
    """Decode dev and test once."""
    dev, test = (
        evaluate(recognizer, load_cuts(data / f"{part}.jsonl.gz"), search)
        for part in ("dev", "test")
    )
    weights = f"{search.ctc_weight:g} / {search.lm_weight:g} / {search.gamma:g}"
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
        "decoding": "", "λ / μ / γ": "", "dev CER (%)": ".2f", "test CER (%)": ".2f",
        "S / I / D": "", "RTF": ".4f",
    }  # fmt: skip
    title = f"Methods and language models: {args.bundle.name}"
    record.publish(args, "decoding-methods", [Result(title=title, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
