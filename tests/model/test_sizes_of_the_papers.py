"""The parameters of the papers' six models on both corpora (Cahyawijaya 2021, table 4.2)."""

from pathlib import Path

import pytest
import torch

from asr.config import load_config
from asr.model.size import count_parameters
from asr.reporting.published import PAPERS

RECIPES = Path(__file__).parent.parent.parent / "recipes"
BINS = {"aishell1": 161, "hkust": 81}
VOCABULARY = {"aishell1": 4364, "hkust": 3653}
MODELS = {
    "lrt_r100": (512, 2048, 100),
    "lrt_r75": (512, 2048, 75),
    "lrt_r50": (512, 2048, 50),
    "transformer_large": (512, 2048, None),
    "transformer_medium": (320, 1024, None),
    "transformer_small": (256, 768, None),
}


def by_hand(bins: int, vocabulary: int, d: int, inner: int, rank: int | None) -> int:
    """Count the weights: 2 encoder and 4 decoder layers, all maps but embedding and output LEDs."""

    def linear(d_in: int, d_out: int) -> int:
        return (d_in * d_out if rank is None else rank * (d_in + d_out)) + d_out

    norm, attention = 2 * d, 4 * linear(d, d)
    feed_forward = linear(d, inner) + linear(inner, d)
    channels = ((1, 64), (64, 64), (64, 128), (128, 128))
    front_end = sum(9 * a * b + b for a, b in channels) + linear(bins // 4 * 128, d) + norm
    encoder = 2 * (attention + feed_forward + 2 * norm)
    decoder = 4 * (2 * attention + feed_forward + 3 * norm)
    return front_end + encoder + decoder + vocabulary * d + d * vocabulary + vocabulary


@pytest.mark.parametrize("corpus", BINS)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_has_the_size_that_the_thesis_prints(corpus: str, model: str) -> None:
    config = load_config(RECIPES / corpus / f"{model}.yaml")
    with torch.device("meta"):
        network = config.model.build(config.features.n_freqs, VOCABULARY[corpus])
    found = count_parameters(network)
    d, inner, rank = MODELS[model]
    assert found == by_hand(BINS[corpus], VOCABULARY[corpus], d, inner, rank)
    if model == "transformer_large":  # printed is what the half of its inner size gives
        found = by_hand(BINS[corpus], VOCABULARY[corpus], d, inner // 2, rank)
    printed = PAPERS[corpus, model].parameters_m
    assert printed and found / 1e6 == pytest.approx(printed, rel=0.04)
