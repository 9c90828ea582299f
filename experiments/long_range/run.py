"""Compare all attentions on ListOps, Pathfinder or duplication (Zaytsev; Merali 2020, fig. 2).

python -m experiments.long_range.run listops       # 100 to 200 tokens, a small model, on a CPU
python -m experiments.long_range.run pathfinder    # pictures of 20 × 20 pixels
python -m experiments.long_range.run duplication   # 0 w 0 w of 128 tokens, the causal kinds
python -m experiments.long_range.run listops --full --epochs 100    # the Arena's lengths: for a GPU
"""

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import mean

import torch

from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.model.size import count_parameters
from asr.model.transformer import ModelConfig
from experiments import runner
from experiments.classifier import ClassifierConfig, SequenceClassifier
from experiments.long_range import duplication, listops, pathfinder
from experiments.runner import Examples, Results, Row, predict, start, table, train, whole_number

# Accuracies in percent that the slides print, ListOps and Pathfinder (Tay 2021; Gu 2022).
PRINTED = {
    "full": (36.37, 71.40), "linformer": (35.70, 76.34), "conv_linformer": None,
    "linear": (16.13, 75.30), "performer": (18.01, 77.05), "sliding_window": (35.63, 69.71),
    "lsh": (37.27, 68.50), "nystrom": (37.15, 70.94), "s4d": None, "s4": (58.35, 86.05),
    "bigbird": (36.05, 74.87), "sparse_strided": (17.07, 71.71), "sparse_fixed": None,
    "transformer_xl": None, "compressive": None, "sinkhorn": (33.67, 67.45), "routing": None,
    "isab": None, "luna": (37.25, 77.72), "dense_synthesizer": (36.99, 69.45),
    "random_synthesizer": None, "fnet": (35.33, 77.80),
}  # fmt: skip
CAUSAL = (
    "full", "linear", "performer", "sliding_window", "sparse_strided", "sparse_fixed",
    "transformer_xl", "compressive", "s4d", "s4",
)  # fmt: skip
_LIMITED = ("linformer", "sinkhorn", "dense_synthesizer", "random_synthesizer")
_BATCH, _LR, _STEPS_OF_A_MEAN = 32, 1e-3, 20
# The version of the tasks and the training: a table never mixes results of several versions.
_VERSION = 2
_N_TOKENS, _LENGTH = 10, 64  # of duplication, as in the papers; 2 · 64 tokens


def model_config(kind: str, length: int) -> ModelConfig:
    """Return a small network, with an attention for sequences of so many steps."""
    attention: Row = {"kind": kind}
    if kind in _LIMITED:
        attention["length"] = length
    if kind == "linformer":
        attention["rank"] = 32
    if kind == "sliding_window":
        attention["global_tokens"] = 1  # the [CLS]
    values = {
        "d_model": 64, "d_inner": 128, "n_heads": 4, "norm": "pre", "dropout": 0,
        "projection": {"kind": "dense"}, "encoder": {"n_layers": 4, "attention": attention},
    }  # fmt: skip
    if kind in CAUSAL:
        values["decoder"] = {"n_layers": 2, "attention": attention}
    return ModelConfig.model_validate(values)


def load(task: str, n: int, full: bool) -> tuple[Examples, Examples, int, int | None, int]:
    """Return n examples to train, a quarter as many to test, classes, vocabulary and length."""
    if task == "listops":
        shortest, longest = (500, 2000) if full else (100, 200)
        both = listops.examples(n + n // 4, shortest, longest, 1)
        return both[:n], both[n:], listops.N_CLASSES, len(listops.TOKENS), longest
    size = 32 if full else 20
    both = pathfinder.examples(n + n // 4, size, 1)
    return both[:n], both[n:], pathfinder.N_CLASSES, None, size * size


def accuracy(model: SequenceClassifier, examples: Examples) -> float:
    """Return the share of correct classes in percent."""
    classes = predict(model, examples, 64).argmax(-1)
    return 100 * int((classes == torch.tensor([y for _, y in examples])).sum()) / len(examples)


def classify(model: str, seed: int, task: str, n: int, full: bool, epochs: int) -> Row:
    """Train a classifier with one attention; return its size, accuracies and processor time."""
    training, test, n_classes, vocab_size, length = load(task, n, full)
    torch.manual_seed(seed)
    config = ClassifierConfig(
        n_classes=n_classes, vocab_size=vocab_size, model=model_config(model, length + 1)
    )
    network, begin = SequenceClassifier(config), time.process_time()
    list(train(network, training, epochs, _BATCH, _LR))
    minutes = (time.process_time() - begin) / 60
    batch = next(iter(runner.batches(training, _BATCH)))
    kept = runner.kept_mib(lambda: runner.class_loss(network.cpu(), *batch))
    return {
        "parameters": count_parameters(network), "minutes": minutes, "kept": kept,
        "train": accuracy(network, training), "test": accuracy(network, test),
    }  # fmt: skip


def duplicate(model: str, seed: int, steps: int) -> Row:
    """Train a causal model with one attention; return the loss by step in nats and the time."""
    torch.manual_seed(seed)
    config = model_config(model, 2 * _LENGTH)
    network = LanguageTransformer(LmConfig(vocab_size=_N_TOKENS + 1, model=config))
    begin = time.process_time()
    losses = list(duplication.train(network, steps, _BATCH, _LENGTH, _N_TOKENS, _LR))
    minutes = (time.process_time() - begin) / 60
    means = {
        name: mean(losses[: int(steps * share)][-_STEPS_OF_A_MEAN:])
        for name, share in (("quarter", 0.25), ("half", 0.5), ("end", 1.0))
    }
    tokens_BS = torch.zeros(_BATCH, 2 * _LENGTH, dtype=torch.long)
    kept = runner.kept_mib(lambda: network(tokens_BS))
    return {"parameters": count_parameters(network), "minutes": minutes, "kept": kept, **means}


def main() -> None:
    """Run the attentions and seeds that no earlier run has finished, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=("listops", "pathfinder", "duplication"))
    parser.add_argument("--kinds", nargs="+", choices=tuple(PRINTED), metavar="KIND")
    parser.add_argument("--examples", type=whole_number(8), default=4000)
    parser.add_argument("--epochs", type=whole_number(1), default=10)
    parser.add_argument("--steps", type=whole_number(4), default=1000, help="of duplication")
    parser.add_argument("--seeds", type=whole_number(1), default=1)
    parser.add_argument("--full", action="store_true", help="lengths of the Long Range Arena")
    parser.add_argument("--out", type=Path, default=Path("exp/long_range"))
    options = parser.parse_args()
    task, columns = options.task, {"parameters": "parameters", "core minutes": "minutes"}
    columns["MiB kept by a step"] = "kept"
    if task == "duplication":
        measure, settings = partial(duplicate, steps=options.steps), {"steps": options.steps}
        columns |= {"loss after a quarter": "quarter", "half": "half", "all steps": "end"}
    else:
        settings = {"n": options.examples, "full": options.full, "epochs": options.epochs}
        measure = partial(classify, task=task, **settings)
        columns |= {"train accuracy (%)": "train", "test accuracy (%)": "test"}
    kinds = [k for k in options.kinds or PRINTED if task != "duplication" or k in CAUSAL]
    results = Results(options.out / f"{task}.json", {"version": _VERSION, **settings})
    cases: list[Row] = [{"model": k, "seed": 1 + i} for i in range(options.seeds) for k in kinds]
    printed = {
        kind: "" if task == "duplication" or not found else f"{found[task == 'pathfinder']:.2f}"
        for kind, found in ((kind, PRINTED[kind]) for kind in kinds)
    }
    print(table(results.complete(cases, measure), columns, printed, "printed, at full length"))


if __name__ == "__main__":
    start("long_range", main)
