"""The recipe of digits: who is in which split, and what an utterance holds."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.errors import DataError

ROOT = Path(__file__).parents[2]
WORDS = ("zero", "three", "nine")
RATE = 8000


@pytest.fixture(scope="module")
def recipe() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "recipes/digits/prepare.py"))


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Twenty takes of three words of two speakers; each is a constant that tells its word."""
    lines = ["id\tspeaker\tword\tseconds"]
    for speaker in ("anna", "bert"):
        for take in range(20):
            for n, word in enumerate(WORDS, 1):
                name = f"{word}_{speaker}_{take}"
                lines.append(f"{name}\t{speaker}\t{word}\t0.1")
                sf.write(tmp_path / f"{name}.flac", np.full(800, n / 8), RATE)
    (tmp_path / "digits.tsv").write_text("\n".join(lines), "utf-8")
    return tmp_path


def test_splits_share_no_take_and_the_test_speaker_is_in_no_other(recipe, digits: Path) -> None:
    found = recipe["recordings"](digits, "bert")
    assert found["train"].keys() == found["dev"].keys() == {"anna"}
    assert found["test"].keys() == {"bert"} and len(found["test"]["bert"]) == 60
    train, dev = ({path for _, path in found[split]["anna"]} for split in ("train", "dev"))
    assert len(train) == 54 and len(dev) == 6 and not train & dev


def test_a_clone_of_the_public_dataset_has_the_same_recordings(
    recipe, digits: Path, tmp_path: Path
) -> None:
    """Its folder `recordings` holds {digit}_{speaker}_{take}.wav."""
    (clone := tmp_path / "clone/recordings").mkdir(parents=True)
    (clone / "readme.wav").touch()
    for path in digits.glob("*.flac"):
        word, rest = path.stem.split("_", 1)
        numbers = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        sf.write(clone / f"{numbers.index(word)}_{rest}.wav", *sf.read(path))
    for folder in (clone, clone.parent):
        found, wanted = (recipe["recordings"](place, "bert") for place in (folder, digits))
        assert {
            split: {who: len(takes) for who, takes in of.items()} for split, of in found.items()
        } == {split: {who: len(takes) for who, takes in of.items()} for split, of in wanted.items()}
        assert all(path.name.startswith(digit) for digit, path in found["test"]["bert"])


def test_a_folder_without_recordings_of_the_test_is_told(
    recipe, digits: Path, tmp_path: Path
) -> None:
    for folder, who in ((digits, "carl"), (tmp_path / "none", "bert")):
        with pytest.raises(DataError, match="for the test and 20 of another: give a clone"):
            recipe["recordings"](folder, who)


def test_an_utterance_says_its_text(recipe, digits: Path) -> None:
    takes = recipe["recordings"](digits, "bert")["test"]["bert"]
    rng, lengths = np.random.default_rng(0), set()
    for _ in range(30):
        text, wave = recipe["utterance"](rng, takes)
        levels = np.round(8 * wave).astype(int)
        said = [n for n, before in zip(levels, [0, *levels], strict=False) if n and not before]
        joined = np.flatnonzero(levels)
        assert len(joined) == 800 * len(text) and set(text) <= set("039")
        # Two words without silence between are one run of levels.
        assert [levels[joined[800 * i]] for i in range(len(text))] == [
            "039".index(digit) + 1 for digit in text
        ]
        assert len(said) <= len(text)
        lengths.add(len(text))
    assert lengths == set(range(1, 8))
