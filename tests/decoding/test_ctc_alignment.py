"""Compare the alignment with all alignments of a tiny vocabulary."""

from itertools import groupby, product

import pytest
import torch

from asr.decoding.ctc_alignment import align
from asr.decoding.ctc_prefix import BLANK, steps_needed

VOCAB = 4


def every_path(steps: int, labels: list[int]) -> list[tuple[int, ...]]:
    """List the CTC paths of these labels."""
    return [
        path
        for path in product(range(VOCAB), repeat=steps)
        if [token for token, _ in groupby(path) if token != BLANK] == labels
    ]


def spans_of(path: tuple[int, ...]) -> list[list[int]]:
    """List the start and end of each run of one token."""
    spans, at = [], 0
    for token, run in groupby(path):
        length = len(list(run))
        if token != BLANK:
            spans.append([at, at + length])
        at += length
    return spans


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_likeliest_of_all_alignments_whatever_the_batch(seed: int) -> None:
    torch.manual_seed(seed)
    texts = [[1, 2], [3], [2, 2], [1, 1, 3], [], [3, 1, 3], [2, 2, 2]]
    steps = [5, 1, 4, 6, 3, 3, 5]
    logp = (3 * torch.randn(len(texts), 7, VOCAB)).log_softmax(-1)
    labels = torch.zeros(len(texts), 4, dtype=torch.long)
    for i, text in enumerate(texts):
        labels[i, : len(text)] = torch.tensor(text)
    lengths = torch.tensor([len(text) for text in texts])
    assert (steps_needed(labels, lengths) <= torch.tensor(steps)).all()
    found = align(logp, torch.tensor(steps), labels, lengths).tolist()
    for i, (text, n_steps) in enumerate(zip(texts, steps, strict=True)):
        rows = logp[i].tolist()
        best = max(
            every_path(n_steps, text),
            key=lambda path: sum(row[t] for row, t in zip(rows, path, strict=False)),
        )
        assert found[i][: len(text)] == spans_of(best), text


def test_of_empty_texts_there_is_nothing_to_align() -> None:
    labels, lengths = torch.zeros(2, 0, dtype=torch.long), torch.tensor([0, 0])
    assert steps_needed(labels, lengths).tolist() == [0, 0]
    found = align(torch.randn(2, 5, VOCAB).log_softmax(-1), torch.tensor([5, 3]), labels, lengths)
    assert found.shape == (2, 0, 2)
