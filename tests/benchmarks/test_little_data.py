"""Parts of a corpus are what the table says, and a row is the mean of its seeds."""

import math
from typing import Any

import pytest
from lhotse import MonoCut, SupervisionSegment

from asr.config import Config, apply_override
from benchmarks.little_data import Trained, halves, part_of, row_of, scaled, speaker_of

# Five speakers, the first of whom has most: 40, 30, 20, 10 and 5 utterances of 1 to 2 s.
CUTS = [
    MonoCut(
        f"{speaker}-{i}", 0, 1 + i % 3 / 2, 0,
        [SupervisionSegment(f"{speaker}-{i}", "r", 0, 1, speaker=speaker, text="a")],
    )
    for speaker, number in zip("abcde", (40, 30, 20, 10, 5), strict=True)
    for i in range(number)
]  # fmt: skip


@pytest.mark.parametrize("speakers", [2, 4, math.inf])
def test_a_larger_part_holds_the_smaller_ones(speakers: float) -> None:
    parts = [part_of(CUTS, seconds / 3600, speakers) for seconds in (10, 30, 60)]
    for part, seconds in zip(parts, (10, 30, 60), strict=True):
        assert seconds <= sum(cut.duration for cut in part) < seconds + 2
        assert len({speaker_of(cut) for cut in part}) == min(speakers, 5)
    names = [{cut.id for cut in part} for part in parts]
    assert names[0] < names[1] < names[2]


def test_speakers_take_turns_and_seeds_choose_others() -> None:
    first, other = (part_of(CUTS, 20 / 3600, math.inf, seed) for seed in (1, 2))
    assert {cut.id for cut in first} != {cut.id for cut in other}
    counts = [sum(speaker_of(cut) == speaker for cut in first) for speaker in "abcde"]
    assert max(counts) - min(counts) <= 1


def test_halves_have_no_speaker_in_common() -> None:
    one, two = ({speaker_of(cut) for cut in half} for half in halves(CUTS))
    assert one == set("ace")
    assert two == set("bd")


def test_a_row_is_the_mean_of_its_seeds() -> None:
    first = Trained(1.0, 19, 38, 12, 0.06, 0.5, 300.0)
    other = Trained(1.0, 19, 38, 12, 0.09, 0.7, 420.0)
    third = Trained(1.0, 19, 38, 12, 0.03, None, 180.0)
    assert row_of("all", [first]) == ["all", 1.0, 19, 38, 12, pytest.approx(6), None, 50.0, 5.0]
    assert row_of("all", [first, other, third]) == [
        "all", 1.0, 19, 38, 12, pytest.approx(6), "6.00 9.00 3.00", None, 5.0,
    ]  # fmt: skip


@pytest.mark.parametrize("epochs", [2, 3, 12, 40, 160])
def test_a_recipe_keeps_its_shares_in_any_number_of_epochs(epochs: int) -> None:
    """The recipes that `asr new` writes have a curriculum, and pauses that begin late."""
    values: dict[str, Any] = {
        "data": {"train": "train.jsonl.gz", "dev": "dev.jsonl.gz"},
        "training": {"epochs": 40, "curriculum": {"epochs": 16}},
        "augment": {"pauses": {"from_epoch": 28}},
    }
    found = scaled(Config.model_validate(values), epochs)
    for value in found:
        apply_override(values, value)
    config = Config.model_validate(values)  # which refuses epochs that do not fit
    assert config.training.epochs == epochs
    assert config.training.curriculum and config.augment and config.augment.pauses
    assert config.training.curriculum.epochs == max(1, round(0.4 * epochs))
    assert config.augment.pauses.from_epoch == max(1, round(0.7 * epochs))
    del values["augment"], values["training"]["curriculum"]
    assert scaled(Config.model_validate(values), epochs) == [f"training.epochs={epochs}"]
