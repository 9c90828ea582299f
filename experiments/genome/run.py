"""Predict the risk of a disease from long diplotypes (Cahyawijaya 2021, chapter 5, Table 5.2).

`python -m experiments.genome.run` simulates a cohort; README.md reads one from files.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from asr.errors import ConfigError, DataError
from experiments import runner
from experiments.genome import linformer, vcf
from experiments.genome.diplotype import encode_diplotype
from experiments.genome.simulation import simulate
from experiments.genome.tokenizer import MIN_VOCAB_SIZE, tokenize, train_tokenizer
from experiments.runner import Results, Row, err, start, table, whole_number

BASELINE, FRESH, PRETRAINED = "logistic baseline", "Linformer, not pre-trained", "Linformer"
WEIGHTS = "Linformer, pre-trained, unread tokens stay hidden"
COUNTS, COMPLETED = "ridge on token counts", "ridge on token counts, unread ones completed"
THESIS = {
    BASELINE: "58.88, 49.24", FRESH: "56.49, 56.83", PRETRAINED: "64.35, 61.57",
    COUNTS: "—", COMPLETED: "—", WEIGHTS: "—",
}  # fmt: skip
GAINS = {PRETRAINED: FRESH, COMPLETED: COUNTS, WEIGHTS: FRESH}
_N_SPLITS = 5


def coordinates(text: str) -> list[int]:
    """Return the numbers of a text that has commas between them."""
    return [int(each) for each in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--vcf", type=Path, help="the cohort's genotypes in one region")
    add("--reference", type=Path, help="FASTA of the region, with --vcf")
    add("--panel", type=Path, help="VCF to pre-train on (default: the cohort)")
    add("--fasta", type=Path, help="instead of --vcf: a folder with two haplotypes a file")
    add("--phenotypes", type=Path, help="lines of a subject, a tab, and 0 or 1")
    add("--baseline", type=coordinates, help="positions of the logistic baseline, with commas")
    add("--out", type=Path, default=Path("exp/genome"))
    for name, minimum, default, text in (
        ("simulated-subjects", 4 * _N_SPLITS, 626, "size of the simulated cohort"),
        ("simulated-panel", 20, 2504, "size of the simulated panel without phenotypes"),
        ("simulated-length", 1000, 3000, "positions of the simulated region"),
        ("tokens", 2, 512, "longest input, with [CLS]"),
        ("vocab", MIN_VOCAB_SIZE, 600, "vocabulary size"),
        ("pretraining-epochs", 1, 6, "epochs of masked pre-training"),
        ("epochs", 1, 12, "most epochs of fine-tuning"),
        ("seed", 0, 1, "seed of simulation, splits and training"),
    ):
        add(f"--{name}", type=whole_number(minimum), default=default, help=text)
    text = "percent of the cohort's tokens to hide (default: 40 of a simulated cohort, else 0)"
    add("--unread", type=whole_number(0), help=text)
    options = parser.parse_args()
    files = {"vcf", "reference", "panel", "fasta", "phenotypes", "baseline"}
    if options.unread is None:
        options.unread = 0 if options.baseline else 40
    if options.unread > 100:
        parser.error(f"argument --unread: {options.unread}: give a number from 0 to 100")
    missing = {name for name in files if not getattr(options, name)}
    if missing not in ({"fasta"}, {"fasta", "panel"}, {"vcf", "reference", "panel"}, files):
        parser.error(
            "give --vcf, --reference, --phenotypes, --baseline (and --panel), or --fasta, "
            "--phenotypes, --baseline, or none of them to simulate"
        )
    return options


@dataclass
class Data:
    """Labels, dosages and tokens of each subject; tokens of the panel."""

    labels: np.ndarray
    dosages: np.ndarray
    cohort: list[Tensor]
    panel: list[Tensor]


def read_data(options: argparse.Namespace) -> Data:
    """Read the files and tokenize; the tokenizer is trained on the panel's first 20 subjects."""
    if options.fasta:
        cohort = panel = vcf.read_haplotypes(options.fasta)
    else:
        region = vcf.read_reference(options.reference)
        cohort = vcf.read_vcf(options.vcf, region)
        panel = vcf.read_vcf(options.panel, region) if options.panel else cohort
    labels = vcf.read_phenotypes(options.phenotypes, cohort.subjects)
    dosages = count_dosages(cohort, options.baseline)
    texts = list(map(encode_diplotype, cohort.haplotypes_P2L))
    panel_texts = list(map(encode_diplotype, panel.haplotypes_P2L))
    model = train_tokenizer(panel_texts[:20], options.vocab, options.seed)
    tokens = tokenize(texts, model, options.tokens - 1)
    n_tokens = mean(map(len, tokens))
    err.print(f"{len(texts)} subjects, {len(texts[0])} positions, {n_tokens:.0f} tokens on average")
    cohort_tokens = linformer.hide(tokens, options.unread / 100, options.seed)
    return Data(labels, dosages, cohort_tokens, tokenize(panel_texts, model, options.tokens - 1))


def count_dosages(cohort: vcf.Cohort, baseline: list[int]) -> np.ndarray:
    """Return (P, positions): on how many haplotypes a subject lacks the most common symbol."""
    first, last = cohort.start, cohort.start + cohort.haplotypes_P2L.shape[2] - 1
    if min(baseline) < first or max(baseline) > last:
        raise ConfigError(f"--baseline {baseline}: the region goes from {first} to {last}")
    positions = np.array(baseline) - first
    symbols_P2X = cohort.haplotypes_P2L[:, :, positions]
    common_X = [np.bincount(symbols_P2X[..., i].ravel()).argmax() for i in range(len(positions))]
    dosages_PX: np.ndarray = (symbols_P2X != common_X).sum(1)
    return dosages_PX


def split_subjects(labels: np.ndarray, seed: int) -> list[list[np.ndarray]]:
    """Return five stratified splits into train (68 %), validation (12 %) and test (20 %)."""
    if min(np.bincount(labels, minlength=2)) < 2 * _N_SPLITS:
        raise DataError(f"each phenotype needs at least {2 * _N_SPLITS} subjects")
    folds = StratifiedKFold(_N_SPLITS, shuffle=True, random_state=seed)
    splits = []
    for rest, test in folds.split(labels, labels):
        parts = train_test_split(rest, test_size=0.15, stratify=labels[rest], random_state=seed)
        splits.append([*parts, test])
    return splits


def predict(
    kind: str, parts: list[np.ndarray], data: Data, options: argparse.Namespace
) -> list[np.ndarray]:
    """Train one model on the first part; return a score of label 1 on the two others.

    The scores are probabilities, except those of the ridge.
    """
    if kind == BASELINE:
        logistic = LogisticRegression().fit(data.dosages[parts[0]], data.labels[parts[0]])
        return [logistic.predict_proba(data.dosages[part])[:, 1] for part in parts[1:]]
    config, seed = linformer.configure(options.tokens, options.vocab), options.seed
    model, cohort = linformer.initialize(config, seed), data.cohort
    if kind not in (FRESH, COUNTS):
        epochs, folder = options.pretraining_epochs, options.out
        model = linformer.pretrain(config, data.panel, epochs, seed, folder)
    if kind in (PRETRAINED, COMPLETED):
        cohort = linformer.complete(model, cohort)
    if kind in (COUNTS, COMPLETED):
        counts_PV = np.stack([np.bincount(each, minlength=options.vocab) for each in cohort])
        ridge = make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=10.0 ** np.arange(-1, 6)))
        ridge.fit(counts_PV[parts[0]], data.labels[parts[0]])
        return [ridge.decision_function(counts_PV[part]) for part in parts[1:]]
    subjects = [[(cohort[i], int(data.labels[i])) for i in part] for part in parts]
    model = linformer.fine_tune(model, subjects[0], subjects[1], options.epochs, seed)
    return [runner.predict(model, part, 8)[:, 1].numpy() for part in subjects[1:]]


def score(predicted: list[np.ndarray], labels: list[np.ndarray]) -> dict[str, float]:
    """Return AUC and macro F1 in percent on the test part.

    Both arguments have the validation part first and then the test part. The threshold of F1 is the
    best one on the validation part. F1 is macro: with more cases than controls, predicting a case
    for every subject has a higher F1 of cases than any in the thesis.
    """

    def macro_f1(part: int, threshold: float) -> float:
        return float(f1_score(labels[part], predicted[part] >= threshold, average="macro"))

    best = max(np.unique(predicted[0]), key=lambda threshold: macro_f1(0, threshold))
    auc = float(roc_auc_score(labels[1], predicted[1]))
    return {"AUC": 100 * auc, "F1": 100 * macro_f1(1, best)}


def prepare(options: argparse.Namespace) -> tuple[Data, argparse.Namespace]:
    """Return the data, and the options with the files of a simulated cohort if there are none."""
    if not options.baseline:
        err.print("the cohort is SIMULATED: its results say nothing about any gene or disease")
        folder, n = options.out / "simulated", options.simulated_subjects
        files = simulate(folder, options.simulated_length, n, options.simulated_panel, options.seed)
        options = argparse.Namespace(**{**vars(options), **files})
    return read_data(options), options


def main() -> None:
    """Run what no earlier run has finished, and print the table."""
    options = parse_arguments()
    settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
    results = Results(options.out / "results.json", settings)
    origin = "own cohort" if options.baseline else "simulated cohort"
    data, options = prepare(options)
    splits = split_subjects(data.labels, options.seed)

    def measure(model: str, split: int) -> Row:
        probabilities = predict(model, splits[split], data, options)
        return score(probabilities, [data.labels[part] for part in splits[split][1:]])

    cases = [{"model": model, "split": i} for model in THESIS for i in range(_N_SPLITS)]
    rows = results.complete(cases, measure)
    columns = {f"AUC (%), {origin}": "AUC", f"F1 (%), {origin}": "F1"}
    print(table(rows, columns, THESIS, "thesis, another cohort: AUC, F1"))
    for model, other in GAINS.items():
        print(f"AUC of {model} − {other}: {gain(rows, model, other)}")


def gain(rows: list[Row], model: str, other: str) -> str:
    """Return a model's AUC minus another's on the same splits, with the standard error."""
    auc = {(row["model"], row["split"]): row["AUC"] for row in rows}
    gains = [auc[model, i] - auc[other, i] for i in range(_N_SPLITS)]
    return f"{mean(gains):+.2f} ± {stdev(gains) / _N_SPLITS**0.5:.2f}"


if __name__ == "__main__":
    start("genome", main)
