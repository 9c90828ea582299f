"""Compare Transformer, LRT and Linformer on sequences of pixels (Cahyawijaya 2021, Table 3.1).

python -m experiments.pixels.run                   # scikit-learn's digits, minutes on a CPU
python -m experiments.pixels.run --mnist FOLDER    # MNIST and the thesis's sizes: for a GPU
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from asr.model.size import count_parameters
from asr.model.transformer import ModelConfig
from experiments.classifier import ClassifierConfig, SequenceClassifier
from experiments.pixels import images
from experiments.runner import Examples, Results, Row, predict, start, table, train, whole_number

# MNIST's are the thesis's (section 3.2); the others a quarter of them, with half the heads.
SIZES: dict[str, Row] = {
    "mnist": {"d_model": 256, "d_inner": 1024, "n_heads": 8, "rank": 64, "batch": 64, "lr": 3e-4},
    "digits": {"d_model": 64, "d_inner": 256, "n_heads": 4, "rank": 16, "batch": 16, "lr": 2e-3},
}
THESIS = {
    "transformer": "11.2 M, 98.72, 96.95",
    "lrt": "9.3 M, 99.04, 97.31",
    "linformer": "11.6 M, 98.89, 96.82",
}


def classifier_config(kind: str, length: int, sizes: Row) -> ClassifierConfig:
    """Return the shape of four layers; `rank` is that of LRT's projections or of Linformer."""
    low_rank = {"kind": "low_rank", "rank": sizes["rank"]}
    linformer = {"kind": "linformer", "rank": sizes["rank"], "length": length + 1}
    attention = linformer if kind == "linformer" else {"kind": "full"}
    values = {key: sizes[key] for key in ("d_model", "d_inner", "n_heads")}
    values |= {"norm": "pre", "dropout": 0, "encoder": {"n_layers": 4, "attention": attention}}
    values["projection"] = low_rank if kind == "lrt" else {"kind": "dense"}
    return ClassifierConfig(n_classes=10, model=ModelConfig.model_validate(values))


def accuracy(model: SequenceClassifier, examples: Examples) -> float:
    """Return the share of correct classes in percent."""
    classes = predict(model, examples, 256).argmax(-1)
    return 100 * int((classes == torch.tensor([y for _, y in examples])).sum()) / len(examples)


def measure(model: str, seed: int, splits: images.Splits, sizes: Row, epochs: int) -> Row:
    """Train one model; return its size and accuracies."""
    torch.manual_seed(seed)
    training, test = splits
    network = SequenceClassifier(classifier_config(model, len(training[0][0]), sizes))
    list(train(network, training, epochs, sizes["batch"], sizes["lr"]))
    accuracies = {"train": accuracy(network, training), "test": accuracy(network, test)}
    return {"parameters": count_parameters(network), **accuracies}


def main() -> None:
    """Run the models and seeds that no earlier run has finished, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="the folder of MNIST's idx files")
    parser.add_argument("--out", type=Path, default=Path("exp/pixels"))
    parser.add_argument("--epochs", type=whole_number(1), default=12)
    parser.add_argument("--seeds", type=whole_number(1), default=3)
    options = parser.parse_args()
    data = "mnist" if options.mnist else "digits"
    splits = images.load_mnist(options.mnist) if options.mnist else images.load_digits()
    sizes = SIZES[data]
    settings = {"data": data, "epochs": options.epochs, **sizes}
    results = Results(options.out / "results.json", settings)
    cases = [{"model": kind, "seed": 1 + i} for i in range(options.seeds) for kind in THESIS]
    measure_case = partial(measure, splits=splits, sizes=sizes, epochs=options.epochs)
    rows = results.complete(cases, measure_case)
    columns = {"parameters": "parameters", "train accuracy (%)": "train"}
    columns["test accuracy (%)"] = "test"
    print(table(rows, columns, THESIS, "thesis, on MNIST: parameters, train, test"))


if __name__ == "__main__":
    start("pixels", main)
