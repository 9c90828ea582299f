"""Measure what more pre-training gains (Cahyawijaya 2021, Fig. 5.4), by the ridge on token counts.

`python -m experiments.genome.steps` takes the options of experiments.genome.run.
"""

import argparse

from tabulate import tabulate

from experiments.genome.linformer import PANEL_BATCH
from experiments.genome.run import (
    COMPLETED,
    COUNTS,
    parse_arguments,
    predict,
    prepare,
    score,
    split_subjects,
)  # fmt: skip
from experiments.runner import Row, mean_and_deviation, start

_PARTS = (6, 2, 1)  # of --pretraining-epochs


def main() -> None:
    """Print the AUC with all tokens read, with unread ones, and with these completed."""
    options = parse_arguments()
    data, options = prepare(options)
    read, _ = prepare(argparse.Namespace(**{**vars(options), "unread": 0}))
    splits = split_subjects(data.labels, options.seed)
    cases = [("all tokens read", read, COUNTS, 0), ("unread tokens hidden", data, COUNTS, 0)]
    for epochs in sorted({max(1, options.pretraining_epochs // part) for part in _PARTS}):
        steps = epochs * -(-len(data.panel) // PANEL_BATCH)
        cases.append((f"completed after {steps} steps", data, COMPLETED, epochs))
    rows: list[Row] = []
    for name, each, model, epochs in cases:
        options.pretraining_epochs = epochs
        found = [
            score(predict(model, parts, each, options), [each.labels[part] for part in parts[1:]])
            for parts in splits
        ]
        rows.append({"": name, "AUC (%)": mean_and_deviation([row["AUC"] for row in found])})
    print(tabulate(rows, "keys", "github", disable_numparse=True))


if __name__ == "__main__":
    start("genome", main)
