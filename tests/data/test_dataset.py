"""Features are kept for the next epochs, and are those of the cut that is asked for."""

from pathlib import Path
from random import Random

import pytest
import torch
from lhotse import CutSet
from lhotse.cut import Cut

from asr.audio.augmentation import PausesConfig, VoicesConfig
from asr.audio.features import LogMelConfig
from asr.bundle import Bundle
from asr.config import Config
from asr.data import dataset as module
from asr.data.dataset import SpeechDataset, padded_frames
from asr.data.manifest import load_cuts, text_of
from asr.data.pauses import augment_with_pauses
from asr.data.voices import with_voice_seeds
from asr.tokenizer import PAD, Tokenizer, TokenizerConfig
from asr.train.datamodule import SpeechDataModule
from tests.helpers import RATE, tones_recipe


@pytest.fixture
def cuts(tones: Path) -> list[Cut]:
    return list(load_cuts(tones / "train.jsonl.gz"))[:3]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    read = module.read_wave

    def counted(cut: Cut, rate: int) -> torch.Tensor:
        done.append(cut.id)
        return read(cut, rate)

    monkeypatch.setattr(module, "read_wave", counted)
    return done


def dataset(
    cuts: list[Cut], num_workers: int = 0, voices: VoicesConfig | None = None
) -> SpeechDataset:
    tokenizer = Tokenizer.train(map(text_of, cuts), TokenizerConfig())
    features = LogMelConfig(kind="log_mel", sample_rate=RATE, n_mels=20).build()
    return SpeechDataset(features, tokenizer, RATE, num_workers, voices)


def test_a_recording_is_read_once_and_its_features_stay(cuts: list[Cut], reads: list[str]) -> None:
    data = dataset(cuts)
    first, second = data[[cuts]], data[[cuts]]
    assert reads == [cut.id for cut in cuts]
    assert torch.equal(first.batches[0].feats_BTF, second.batches[0].feats_BTF)
    passing = dataset(cuts)
    passing.keep_nothing()
    for _ in range(2):
        passing[[cuts]]
    assert len(reads) == 3 * len(cuts)


def test_a_cut_with_the_id_of_another_is_read_anew(cuts: list[Cut], reads: list[str]) -> None:
    data, other = dataset(cuts), cuts[1].with_id(cuts[0].id)
    plain = data[[[cuts[0]]]].batches[0]
    assert (
        data[[[other]]].batches[0].frames_B.tolist()
        == data[[[cuts[1]]]].batches[0].frames_B.tolist()
    )
    pauses = PausesConfig(padded=1.0, joined=0.0, noise=0.0)
    (padded,) = augment_with_pauses(CutSet.from_cuts([cuts[0]]), pauses, Random(1))
    assert padded.id == cuts[0].id
    assert data[[[padded]]].batches[0].frames_B[0] > plain.frames_B[0]
    again = data[[[cuts[0]]]].batches[0]
    assert torch.equal(again.feats_BTF, plain.feats_BTF) and reads.count(cuts[0].id) == 3


def test_what_has_no_room_is_read_in_every_epoch(
    cuts: list[Cut], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT_BYTES", 1)
    data = dataset(cuts)
    for _ in range(2):
        data[[cuts]]
    assert len(reads) == 2 * len(cuts)


def test_with_voices_a_recording_is_read_once_and_each_epoch_has_its_own(
    cuts: list[Cut], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = VoicesConfig(pitch=1.3, noise=1.0)
    epochs = [list(with_voice_seeds(cuts, Random(epoch))) for epoch in (1, 2)] + [cuts]
    data = dataset(cuts, voices=voices)
    kept = [data[[epoch]].batches[0].feats_BTF for epoch in epochs]
    # Once for its samples, once for the features that it has without another voice.
    assert reads == [cut.id for cut in cuts] * 2
    monkeypatch.setattr(module, "_KEPT_BYTES", 1)
    for epoch, feats_BTF in zip(epochs, kept, strict=True):
        assert torch.equal(dataset(cuts, voices=voices)[[epoch]].batches[0].feats_BTF, feats_BTF)
    assert kept[0].shape != kept[1].shape or not torch.equal(kept[0], kept[1])


def test_batches_are_padded_to_few_sizes_and_never_beyond_what_the_model_takes(
    cuts: list[Cut],
) -> None:
    data, hop = dataset(cuts), RATE // 100
    for n in (9, 40, 77):
        data.most_frames = None
        cut = cuts[0].truncate(duration=n * hop / RATE)
        (batch,) = data[[[cut]]].batches
        frames, tokens = int(batch.frames_B[0]), int(batch.lengths_B[0])
        assert batch.feats_BTF.shape[1] == padded_frames(frames)
        assert not batch.feats_BTF[:, frames:].any()
        assert (batch.tokens_BU.shape[1] - 1) % 4 == 0  # what the decoder reads
        assert batch.tokens_BU.shape[1] - tokens in range(4)
        assert (batch.tokens_BU[:, tokens:] == PAD).all()
        data.most_frames = frames + 1
        assert data[[[cut]]].batches[0].feats_BTF.shape[1] <= frames + 1


def test_padding_is_little_and_leaves_few_sizes() -> None:
    sizes = {n: padded_frames(n) for n in range(1, 3000)}
    assert all(0 <= size - n < max(4, n / 16) and size % 4 == 0 for n, size in sizes.items())
    assert len({size for n, size in sizes.items() if 128 <= n < 2048}) <= 17 * 4
    assert [padded_frames(n, most=101) for n in (97, 99, 101, 103)] == [100, 100, 101, 103]


@pytest.mark.parametrize("kind", ["vgg", "strided"])
def test_the_model_takes_the_most_frames_of_a_batch(tones: Path, kind: str) -> None:
    values = tones_recipe(tones)
    values["model"] |= {
        "frontend": {"kind": kind, "channels": [4, 8]},
        "encoder": {"attention": {"kind": "linformer", "rank": 5, "length": 40}},
    }
    config = Config.model_validate(values)
    data = SpeechDataModule(config)
    tokenizer = Tokenizer.train([text_of(cut) for cut in data.utterances], config.tokenizer)
    data.read_with(Bundle.create(config, tokenizer))
    assert data.dataset is not None and data.dataset.most_frames is not None
    assert config.model.frontend.steps(data.dataset.most_frames) == 40
