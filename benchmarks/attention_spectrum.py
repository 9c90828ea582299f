"""Measure how near a trained encoder's attention matrices are to matrices of low rank.

    python -m benchmarks.attention_spectrum BUNDLE CUTS [--most 100] [--plot FILE.png] [--record]

Linformer rests on this (Wang et al. 2020, theorem 1 and figure 1; Merali 2020): P = softmax(Q Kᵀ /
√d) is near a matrix of rank Θ(log n). The script decomposes P of each layer, head and utterance.
Its tables tell which share of the sum of the singular values is in the largest quarter of them (the
figure has 128 of 512), and how many singular values make 90 % of the sum, by the length n. For
comparison there is a matrix of random numbers between 0 and 1, its rows scaled to a sum of 1. The
bundle's attention must be full.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import asr
from asr.data.manifest import load_cuts, read_wave
from asr.model.attention import FullAttention
from asr.model.layers import MultiHeadAttention
from asr.reporting.plots import new_figure, save_figure
from benchmarks import record
from benchmarks.record import Result, Value

_SHARE, _POINTS, _GROUPS = 0.9, 101, 4  # share of the sum; points of a curve; groups of lengths


def matrices(model: asr.Recognizer, waves: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield for each waveform the attention matrices (H, S, S) of the encoder's layers."""
    found: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        q_1HSK, k_1HSK = given[:2]
        scores = q_1HSK @ k_1HSK.transpose(-1, -2) / math.sqrt(q_1HSK.shape[-1])
        found.append(scores.softmax(-1)[0])

    for layer in model.model.encoder.layers:
        attention = layer.self_attention
        assert isinstance(attention, MultiHeadAttention), "a unit without matrices"
        assert type(attention.kernel) is FullAttention, "give a bundle with full attention"
        attention.kernel.register_forward_pre_hook(keep)
    for wave in waves:
        found.clear()
        assert len(list(model.encode([wave]))) == 1, "an utterance longer than a piece"
        yield list(found)


def spectrum(matrices_HSS: Tensor) -> np.ndarray:
    """Return the cumulative share (H, S) of singular values, the largest first."""
    values_HS = torch.linalg.svdvals(matrices_HSS.double())
    shares: np.ndarray = (values_HS.cumsum(-1) / values_HS.sum(-1, keepdim=True)).numpy()
    return shares


def needed(shares_HS: np.ndarray) -> np.ndarray:
    """Return how many singular values make the share `_SHARE` of the sum, shape (H,)."""
    counts: np.ndarray = (shares_HS < _SHARE).sum(-1) + 1
    return counts


def in_quarter(shares_HS: np.ndarray) -> np.ndarray:
    """Return the share of the largest quarter of the singular values, shape (H,)."""
    column: np.ndarray = shares_HS[:, math.ceil(shares_HS.shape[1] / 4) - 1]
    return column


def by_layer(spectra: list[list[np.ndarray]], at_random: list[np.ndarray]) -> list[list[Value]]:
    """Return a row for each layer, and one for random matrices."""
    layers = [list(layer) for layer in zip(*spectra, strict=True)]
    named = [(f"layer {i}", layer) for i, layer in enumerate(layers, 1)]
    rows: list[list[Value]] = []
    for name, found in [*named, ("random numbers", at_random)]:
        quarter_NH = np.array([in_quarter(each) for each in found])
        n_NH = np.array([needed(each) / each.shape[1] for each in found])
        heads_H = quarter_NH.mean(0)
        rows.append([name, *(100 * float(x) for x in (
            quarter_NH.mean(), heads_H.min(), heads_H.max(), n_NH.mean()))])  # fmt: skip
    return rows


def by_length(spectra: list[list[np.ndarray]]) -> list[list[Value]]:
    """Return a row for each group of equally many utterances, by their length."""
    ordered = sorted(spectra, key=lambda layers: layers[0].shape[1])
    rows: list[list[Value]] = []
    for group in np.array_split(np.arange(len(ordered)), _GROUPS):
        n = np.mean([ordered[i][0].shape[1] for i in group])
        k = np.mean([needed(layer) for i in group for layer in ordered[i]])
        rows.append([f"{n:.0f}", float(k), float(k / math.log(n)), float(100 * k / n)])
    return rows


def draw(spectra: list[list[np.ndarray]], at_random: list[np.ndarray], path: Path) -> None:
    """Draw the mean cumulative share of each layer over the index."""
    figure, ((axes,),) = new_figure(1, 1)
    at, curves = np.linspace(0, 1, _POINTS), defaultdict[str, list[np.ndarray]](list)
    for layers in spectra:
        for i, shares_HS in enumerate(layers, 1):
            curves[f"layer {i}"] += [_curve(each, at) for each in shares_HS]
    curves["random numbers"] = [_curve(each, at) for shares in at_random for each in shares]
    for name, found in curves.items():
        axes.plot(100 * at, 100 * np.mean(found, 0), label=name)
    axes.set(xlabel="largest singular values (%)", ylabel="share of their sum (%)")
    axes.legend()
    save_figure(figure, path)


def _curve(shares_S: np.ndarray, at: np.ndarray) -> np.ndarray:
    S = len(shares_S)
    curve: np.ndarray = np.interp(at, np.arange(S + 1) / S, np.concatenate(([0.0], shares_S)))
    return curve


def main() -> None:
    """Decompose, print, draw and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--most", type=int, default=100, help="utterances")
    parser.add_argument("--title", default="")
    parser.add_argument("--plot", type=Path)
    record.add_option(parser)
    args = parser.parse_args()
    model, cuts = asr.load(args.bundle, "cpu"), list(load_cuts(args.cuts))
    cuts = cuts[:: -(-len(cuts) // args.most)]
    waves = [read_wave(cut, model.sample_rate) for cut in cuts]
    spectra = [[spectrum(each) for each in layers] for layers in matrices(model, waves)]
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.rand(each[0].shape[1], each[0].shape[1], generator=generator)
             for each in spectra]  # fmt: skip
    at_random = [spectrum((each / each.sum(-1, keepdim=True))[None]) for each in drawn]
    if args.plot:
        draw(spectra, at_random, args.plot)
    title = args.title or args.bundle.name
    layers = Result(
        title=f"Singular values of attention: {title}",
        note=f"{len(cuts)} utterances; the least and the largest mean of a head.",
        columns={
            "matrices": "", "in the largest quarter (%)": ".1f", "least head": ".1f",
            "largest head": ".1f", "needed for 90 % (% of n)": ".1f",
        },
        rows=by_layer(spectra, at_random),
    )  # fmt: skip
    lengths = Result(
        title=f"Singular values of attention by length: {title}",
        note="k make 90 % of the sum, the mean of all layers and heads.",
        columns={"n": "", "k": ".1f", "k / log n": ".2f", "k / n (%)": ".1f"},
        rows=by_length(spectra),
    )
    record.publish(args, "attention", [layers, lengths])


if __name__ == "__main__":
    main()
