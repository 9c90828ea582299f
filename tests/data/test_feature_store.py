"""Stored features are those of the fly, bit for bit, and nothing else is taken for them."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch
from lhotse import CutSet
from torch import Tensor

from asr.audio.features import LogMelConfig, SpectrogramConfig
from asr.config import Config
from asr.data.dataset import SpeechDataset
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.data.sampling import perturb_speed
from asr.errors import AsrError, DataError
from asr.tokenizer import Tokenizer, TokenizerConfig
from asr.train.run import Corpus
from data_prep import spectrograms
from data_prep.corpus_writer import Utterance, write_corpus
from data_prep.features import store
from tests.helpers import RATE, run_cli, tones_recipe, write_recipe

CONFIG = SpectrogramConfig(sample_rate=RATE)


def prepare(root: Path, n: int = 120, seconds: float = 0.3) -> Path:
    """One long recording, and a manifest of overlapping parts of it."""
    root.mkdir(parents=True, exist_ok=True)
    wave = np.random.default_rng(0).normal(0, 0.1, (RATE * 20, 2))
    sf.write(root / "long.wav", wave, RATE, subtype="PCM_16")
    parts = [
        Utterance(f"u{i}", root / "long.wav", "好", "A", (i % 100) / 10, seconds + i / 1000, i % 2)
        for i in range(n)
    ]
    write_corpus({"train": parts}, root, corpus="mine", jobs=1)
    return root


def read(cuts: CutSet, config: SpectrogramConfig | LogMelConfig) -> dict[str, Tensor]:
    tokenizer = Tokenizer.train(map(text_of, cuts), TokenizerConfig())
    dataset = SpeechDataset(config.build(), tokenizer, config.sample_rate)
    step = dataset[[list(cuts)]]
    if not step.batches:
        return {}
    batch = step.batches[0]
    rows = zip(batch.ids, batch.feats_BTF, batch.frames_B, strict=True)
    return {key: feats_TF[:n] for key, feats_TF, n in rows}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("normalize", ["utterance", "corpus"])
@pytest.mark.parametrize("kind", [SpectrogramConfig, LogMelConfig])
def test_stored_features_are_those_of_the_fly(tmp_path: Path, kind, normalize) -> None:
    config = kind(sample_rate=RATE, normalize=normalize, **({"n_mels": 20} if kind is LogMelConfig
                                                              else {}))  # fmt: skip
    out = prepare(tmp_path)
    before = read(load_cuts(out / "train.jsonl.gz"), config)
    # Normalisation comes after storage: the other kind's store does as well.
    other = {"utterance": "corpus", "corpus": "utterance"}[normalize]
    store(out, ["train"], config.model_copy(update={"normalize": other}), jobs=1)
    (out / "long.wav").unlink()  # only what is stored can be read now
    after = read(load_cuts(out / "train.jsonl.gz"), config)
    assert len(after) == 120 and same(before, after)
    size = sum(path.stat().st_size for path in (out / "features").iterdir())
    assert size < 0.95 * sum(feats.numel() * 4 for feats in after.values())


def test_copies_at_another_speed_and_parts_are_computed(tmp_path: Path) -> None:
    out = prepare(tmp_path, 8)
    plain = load_cuts(out / "train.jsonl.gz")
    factors = (0.9, 1.0, 1.1)
    expected = read(perturb_speed(plain, factors), CONFIG)
    part = read(
        CutSet.from_cuts(cut.truncate(duration=0.2, preserve_id=True) for cut in plain), CONFIG
    )
    store(out, ["train"], CONFIG, jobs=1)
    stored = load_cuts(out / "train.jsonl.gz")
    assert len(expected) == 24 and same(read(perturb_speed(stored, factors), CONFIG), expected)
    assert all(cut.has_features for cut in stored)  # perturbing left the cuts themselves alone
    shorter = CutSet.from_cuts(cut.truncate(duration=0.2, preserve_id=True) for cut in stored)
    assert same(read(shorter, CONFIG), part)


def test_a_recipe_of_other_features_is_refused_by_both_names(tmp_path: Path) -> None:
    out = prepare(tmp_path)
    store(out, ["train"], CONFIG, jobs=1)
    data = {"train": str(out / "train.jsonl.gz"), "dev": str(out / "train.jsonl.gz")}
    values = {"data": data, "features": {"kind": "spectrogram", "sample_rate": RATE}}
    Corpus(Config.model_validate(values))
    values["features"]["window_ms"] = 32
    with pytest.raises(DataError, match=r'"window_ms":20.0.*"window_ms":32.0.*--features'):
        Corpus(Config.model_validate(values))


def test_a_damaged_pack_costs_its_utterances_only(tmp_path: Path, caplog) -> None:
    out = prepare(tmp_path)  # 120 utterances: two packs
    store(out, ["train"], CONFIG, jobs=1)
    pack = max((out / "features").iterdir(), key=lambda path: path.stat().st_size)
    pack.write_bytes(pack.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        assert len(read(load_cuts(out / "train.jsonl.gz"), CONFIG)) == 20
    assert pack.name in caplog.text and "prepare the corpus again" in caplog.text


def test_changed_recordings_and_other_features_replace_what_was_stored(tmp_path: Path) -> None:
    out = prepare(tmp_path)
    store(out, ["train"], CONFIG, jobs=1)
    first = {path.name for path in (out / "features").iterdir()}
    wave, rate = sf.read(out / "long.wav")
    sf.write(out / "long.wav", wave[::-1], rate, subtype="PCM_16")
    parts = prepare_again(out)
    store(out, ["train"], CONFIG, jobs=1)
    second = {path.name for path in (out / "features").iterdir()}
    assert len(second) == len(first) == 2 and not first & second
    cut = next(iter(load_cuts(out / "train.jsonl.gz")))
    expected = CONFIG.build()(read_wave(cut, RATE))
    assert torch.equal(read(CutSet.from_cuts([cut]), CONFIG)[cut.id], expected)
    assert parts == 120


def prepare_again(out: Path) -> int:
    """The manifest as `prepare` writes it before features are stored."""
    cuts = list(load_cuts(out / "train.jsonl.gz"))
    parts = [
        Utterance(c.id, out / "long.wav", "好", "A", c.start, c.duration, c.channel) for c in cuts
    ]
    return write_corpus({"train": parts}, out, corpus="mine", jobs=1).splits["train"].utterances


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_kill_9_then_again_keeps_what_was_done(tmp_path: Path, monkeypatch) -> None:
    out = prepare(tmp_path, 1500, seconds=2.0)
    folder = out / "features"
    code = f"""if __name__ == "__main__":
        from pathlib import Path
        from asr.audio.features import SpectrogramConfig
        from data_prep import spectrograms
        spectrograms._PACK = 5
        spectrograms.store(Path({str(out)!r}), ["train"],
                           SpectrogramConfig(sample_rate={RATE}), jobs=2)"""
    (tmp_path / "run.py").write_text(code)
    command = [sys.executable, str(tmp_path / "run.py")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(folder.glob("*.safetensors"))) > 5 or process.poll() is not None)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: all(map(ended, workers)))
    done = {path: path.stat().st_mtime_ns for path in folder.glob("[!.]*.safetensors")}
    assert workers and 5 < len(done) < 300
    assert not any(cut.has_features for cut in load_cuts(out / "train.jsonl.gz"))
    monkeypatch.setattr(spectrograms, "_PACK", 5)
    store(out, ["train"], CONFIG, jobs=1)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list(folder.iterdir())) == 300  # and no half-written file is left
    cuts = load_cuts(out / "train.jsonl.gz")
    some = CutSet.from_cuts(list(cuts)[::50])
    assert same(read(some, CONFIG), read(some.drop_features(), CONFIG))
    assert all(cut.has_features for cut in cuts)


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch) -> None:
    out = prepare(tmp_path)
    monkeypatch.setattr(spectrograms, "_start_worker", os.abort)
    with pytest.raises(AsrError, match="fewer --jobs"):
        store(out, ["train"], CONFIG, jobs=2)


def test_command_stores_features_that_training_reads(tmp_path: Path) -> None:
    tree = tmp_path / "data_aishell"
    ids = {"train": "BAC009S0002W0001", "dev": "BAC009S0724W0001", "test": "BAC009S0764W0001"}
    for split, key in ids.items():
        folder = tree / "wav" / split / key[6:11]
        folder.mkdir(parents=True)
        noise = np.random.default_rng(0).normal(0, 0.1, RATE)
        sf.write(folder / f"{key}.wav", noise, RATE, subtype="PCM_16")
    (tree / "transcript").mkdir()
    lines = "".join(f"{key} 你 好\n" for key in ids.values())
    (tree / "transcript/aishell_transcript_v0.8.txt").write_text(lines, "utf-8")
    out = tmp_path / "out"
    recipe = write_recipe(tmp_path / "r.yaml", tones_recipe(out))
    env = {**os.environ, "COLUMNS": "99"}
    result = run_cli("prepare", "aishell1", tree, out, "--features", recipe, "--jobs", "1", env=env)
    assert result.returncode == 0, result.stderr
    assert "train speakers: 1, published 340; warning: they differ" in result.stderr
    for split in ids:
        (cut,) = load_cuts(out / f"{split}.jsonl.gz")
        assert (cut.features.num_frames, cut.features.num_features) == (101, 20)
    Corpus(Config.model_validate(tones_recipe(out)))
    wrong = run_cli("prepare", "aishell1", tree, tmp_path / "no", "--features", tmp_path / "x.yaml")
    assert wrong.returncode == 2 and "x.yaml" in wrong.stderr
    assert not (tmp_path / "no").exists()
