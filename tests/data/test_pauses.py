"""Pauses and noise around training utterances: no utterance is lost, draws are repeatable."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from lhotse import CutSet
from lhotse.utils import fastcopy

from asr.audio.augmentation import AugmentConfig, PausesConfig
from asr.bundle import Bundle
from asr.config import Config
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.data.noise import noise
from asr.data.pauses import augment_with_pauses, with_noise
from asr.data.sampling import plan_epoch
from asr.tokenizer import UNK
from asr.train.datamodule import SpeechDataModule
from asr.train.run import train
from asr.train.tokens import tokens_of_run
from tests.helpers import RATE, read_card, tones_recipe

PAUSES = PausesConfig(
    padded=0.4, joined=0.3, noise=0.1, most_seconds=0.5, joined_seconds=4, from_epoch=1
)


@pytest.fixture(scope="module")
def cuts(tones: Path) -> CutSet:
    return load_cuts(tones / "train.jsonl.gz")


def test_every_utterance_is_kept_or_replaced_by_noise(cuts: CutSet) -> None:
    texts = {cut.id: text_of(cut) for cut in cuts}
    found = list(augment_with_pauses(cuts, PAUSES, Random(1)))
    parts = [s.recording_id for cut in found for s in cut.supervisions]
    silent = [cut.id for cut in found if not cut.supervisions]
    assert sorted([*parts, *silent]) == sorted(texts)
    assert 0.02 < len(silent) / len(texts) < 0.2
    joined = [cut for cut in found if len(cut.supervisions) > 1]
    assert joined and all(cut.duration <= PAUSES.joined_seconds for cut in joined)
    for cut in found:
        said = "".join(texts[s.recording_id] for s in cut.supervisions)
        assert text_of(cut).replace(" ", "") == said


def test_a_cut_has_its_utterances_in_its_wave_and_quiet_noise_between(cuts: CutSet) -> None:
    own = {cut.recording_id: read_wave(cut, RATE) for cut in cuts}
    gaps = 0
    for cut in augment_with_pauses(cuts, PAUSES, Random(2)):
        wave = with_noise(read_wave(cut, RATE), RATE, cut)
        assert len(wave) == round(cut.duration * RATE) and wave.isfinite().all()
        if cut.id.startswith("train") and not hasattr(cut, "tracks"):
            continue
        said = torch.zeros(len(wave), dtype=torch.bool)
        for s in cut.supervisions:
            first = round(s.start * RATE)
            said[first : first + len(own[s.recording_id])] = True
            clean = own[s.recording_id]
            error = wave[first : first + len(clean)] - clean
            assert error.square().mean().sqrt() < 0.1 * clean.abs().max()
        if cut.supervisions and (~said).any():
            gaps += 1
            assert wave[~said].square().mean().sqrt() < 0.1 * wave.abs().max()
    assert gaps > 20


def test_unchanged_cuts_get_no_noise(cuts: CutSet) -> None:
    none = PausesConfig(padded=0, joined=0, noise=0)
    for cut in augment_with_pauses(cuts.subset(first=5), none, Random(1)):
        wave = read_wave(cut, RATE)
        assert torch.equal(with_noise(wave, RATE, cut), wave)


def test_noise_alone_can_be_read_at_any_rate_once_lhotse_has_planned_it(cuts: CutSet) -> None:
    all_noise = PausesConfig(padded=0, joined=0, noise=0.99, from_epoch=1)
    for batch in plan_epoch(cuts, 4.0, 1, 0, AugmentConfig(pauses=all_noise)):
        for cut in batch:
            wave = with_noise(read_wave(cut, 2 * RATE), 2 * RATE, cut)
            assert len(wave) == pytest.approx(cut.duration * 2 * RATE, abs=2)
            assert wave.abs().max() > 0


def waves_of(config: Config, epoch: int) -> list[torch.Tensor]:
    corpus = SpeechDataModule(config)
    cuts = (cut for batch in corpus.plan(epoch)[:6] for cut in batch)
    return [with_noise(read_wave(cut, RATE), RATE, cut) for cut in cuts]


def test_an_epoch_is_repeatable_and_epochs_differ(tones: Path) -> None:
    config = Config.model_validate(tones_recipe(tones, augment={"pauses": PAUSES.model_dump()}))
    first, again, other = (waves_of(config, epoch) for epoch in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert sorted(map(len, first)) != sorted(map(len, other))


def test_pauses_begin_at_their_epoch_and_the_run_knows_its_steps(tones: Path) -> None:
    pauses = {**PAUSES.model_dump(), "noise": 0, "joined": 0, "from_epoch": 3}
    values = tones_recipe(tones, augment={"pauses": pauses}, training={"epochs": 5})
    corpus = SpeechDataModule(Config.model_validate(values))
    plans = [corpus.plan(epoch) for epoch in range(5)]
    seconds = [sum(cut.duration for batch in plan for cut in batch) for plan in plans]
    assert seconds[0] == pytest.approx(seconds[1])
    assert min(seconds[2:]) > 1.2 * seconds[0]
    assert corpus.total_steps == pytest.approx(sum(map(len, plans)), rel=0.05)


@pytest.mark.parametrize(
    ("texts", "space"),
    [
        (("STOP", "LEFT"), True),
        (("停", "左"), False),
        (("さくら", "はな"), False),
        (("72", "04"), False),
        (("GO ON", "LEFT"), True),
        (("रुको", "हाँ"), True),
        (("நான்", "வா"), True),
        (("ไป", "ซ้าย"), False),
    ],
)
def test_no_label_of_joined_utterances_is_unknown(
    texts: tuple[str, str], space: bool, tones: Path, tmp_path: Path
) -> None:
    """Single words of an alphabet have a space between them, though no text of the corpus has."""
    cuts = load_cuts(tones / "train.jsonl.gz")
    named = [fastcopy(cut, supervisions=[fastcopy(cut.supervisions[0], text=texts[i % 2])])
             for i, cut in enumerate(cuts)]  # fmt: skip
    CutSet.from_cuts(named).to_file(tmp_path / "train.jsonl.gz")
    pauses = {**PAUSES.model_dump(), "noise": 0, "joined": 1, "padded": 0}
    values = tones_recipe(tones, augment={"pauses": pauses}, data={
        "train": str(tmp_path / "train.jsonl.gz"), "dev": str(tones / "dev.jsonl.gz"),
    })  # fmt: skip
    config = Config.model_validate(values)
    corpus = SpeechDataModule(config)
    tokenizer = tokens_of_run(config, tmp_path, corpus)
    joined = [text_of(cut) for step in corpus.plan(0) for cut in step if len(cut.supervisions) > 1]
    labels = [tokenizer.encode(text) for text in joined]
    assert len(joined) > 3 and not any(UNK in each for each in labels)
    assert all((" " in tokenizer.decode(each)) == space for each in labels)


def test_dev_is_never_changed(tones: Path) -> None:
    config = Config.model_validate(tones_recipe(tones, augment={"pauses": PAUSES.model_dump()}))
    dev = {cut.id: cut.duration for cut in load_cuts(tones / "dev.jsonl.gz")}
    planned = [cut for batch in SpeechDataModule(config).plan(None) for cut in batch]
    assert {cut.id: cut.duration for cut in planned} == dev


def test_cuts_of_shards_are_read_within_their_pauses(cuts: CutSet, tmp_path: Path) -> None:
    cuts.subset(first=20).to_shar(tmp_path, fields={"recording": "flac"}, shard_size=10)
    for cut in augment_with_pauses(load_cuts(tmp_path), PAUSES, Random(1)):
        assert bool(read_wave(cut, RATE).abs().max()) == bool(cut.supervisions)


@pytest.mark.parametrize("n", [1, 2, 97, RATE - 9, RATE])
def test_noise_has_an_rms_of_one_and_many_spectra(n: int) -> None:
    waves = [noise(n, RATE, np.random.default_rng(seed)) for seed in range(50)]
    again = noise(n, RATE, np.random.default_rng(0))
    assert torch.equal(waves[0], again)
    assert all(len(wave) == n and wave.isfinite().all() for wave in waves)
    if n < RATE:
        return
    assert all(float(w.square().mean().sqrt()) == pytest.approx(1, rel=1e-3) for w in waves)
    # White noise has as many sign changes as not, brown noise and hum have few.
    changes = [float((wave[1:] * wave[:-1] < 0).float().mean()) for wave in waves]
    assert min(changes) < 0.15 and max(changes) > 0.45


def test_empty_texts_can_be_learned_and_the_bundle_knows_its_lengths(
    tones: Path, tmp_path: Path
) -> None:
    pauses = {"padded": 0.1, "joined": 0, "noise": 0.9, "most_seconds": 3, "from_epoch": 1}
    values = tones_recipe(tones, augment={"pauses": pauses}, training={"epochs": 1, "average": 1})
    config = Config.model_validate(values)
    folder = train(config, tmp_path / "run")
    bundle = Bundle.load(folder)
    assert all(p.isfinite().all() for p in bundle.model.parameters())
    assert "| steps skipped as not finite | 0 |" in read_card(folder)
    durations = [cut.duration for batch in SpeechDataModule(config).plan(0) for cut in batch]
    found = bundle.config.decoding.chunk_seconds
    assert found is not None and found > 1
    assert sum(d > found + 0.05 for d in durations) <= 0.01 * len(durations)
