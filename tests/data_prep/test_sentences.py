"""Sentences without recordings become synthetic speech that trains beside recordings."""

import gzip
import json
from pathlib import Path

import pytest

from asr.bundle import Bundle
from asr.config import Config
from asr.data.manifest import load_cuts, text_of
from asr.errors import ConfigError, DataError
from asr.train.datamodule import SpeechDataModule
from data_prep.sentences import prepare
from data_prep.synthesis import VOICES
from tests.helpers import run_cli, tones_recipe, write_recipe


def train_texts(folder: Path) -> list[str]:
    return [text_of(cut) for cut in load_cuts(folder / "train.jsonl.gz")]


def test_each_is_spoken_once_but_what_dev_and_test_say(
    tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held_out = {text_of(cut) for split in ("dev", "test")
                for cut in load_cuts(tones / f"{split}.jsonl.gz")}  # fmt: skip
    trained = next(text for text in train_texts(tones) if text not in held_out)
    new = [f"{digit}月{other}日" for digit in "一二三四五六" for other in "七八九十二三"]
    known = sorted(held_out)[:2]
    written = [*new, new[0], trained, f" {known[0][:1]} {known[0][1:]}。", known[1], ""]
    (tmp_path / "sentences.txt").write_text("\n".join(written), "utf-8")
    report = prepare(tmp_path / "sentences.txt", tones, tmp_path / "out", language="cmn")
    assert report.synthetic and list(report.splits) == ["train"]
    cuts = list(load_cuts(tmp_path / "out/train.jsonl.gz"))
    assert sorted(map(text_of, cuts)) == sorted([*new, trained])
    assert {cut.supervisions[0].speaker for cut in cuts} == set(VOICES["train"].split())
    assert all(cut.supervisions[0].custom == {"synthetic": True} for cut in cuts)
    assert f"2 of {len(new) + 3} sentences are in dev or test" in caplog.text

    before = (tmp_path / "out/train.jsonl.gz").read_bytes()
    prepare(tmp_path / "sentences.txt", tones, tmp_path / "out")
    assert (tmp_path / "out/train.jsonl.gz").read_bytes() == before, "the language is cmn by itself"


def test_what_cannot_be_used_is_told_and_leaves_nothing(tones: Path, tmp_path: Path) -> None:
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(text_of(cut) for cut in load_cuts(tones / "dev.jsonl.gz")))
    with pytest.raises(DataError, match="all of it is in dev or test: give other sentences"):
        prepare(sentences, tones, tmp_path / "out")
    with pytest.raises(DataError, match=r"has no dev\.jsonl\.gz: give the folder of `asr prepare`"):
        prepare(sentences, tmp_path, tmp_path / "out")
    sentences.write_text("你好\n")
    before = {path.name: path.read_bytes() for path in tones.glob("*.jsonl.gz")}
    with pytest.raises(ConfigError, match="holds another corpus, with dev or test"):
        prepare(sentences, tones, tones)
    assert before == {path.name: path.read_bytes() for path in tones.glob("*.jsonl.gz")}
    with pytest.raises(ConfigError, match="--language xx: espeak-ng has none of this name"):
        prepare(sentences, tones, tmp_path / "out", language="xx")
    assert not (tmp_path / "out").exists()


@pytest.mark.costly
def test_it_is_half_of_the_audio_and_its_characters_become_tokens(
    tones: Path, tmp_path: Path
) -> None:
    sentences, out = tmp_path / "sentences.txt", tmp_path / "synthetic"
    sentences.write_text(
        "\n".join(f"今天{a}点{b}分" for a in "一二三四五六七八" for b in "一二三四五六七八九十")
    )
    done = run_cli("prepare", "speech", sentences, tones, out)
    assert done.returncode == 0 and "synthetic voices speak 80 sentences in cmn" in done.stderr
    recipe = write_recipe(tmp_path / "r.yaml", tones_recipe(tones, training={"epochs": 1}))
    added = f"data.replay.train={out / 'train.jsonl.gz'}"
    done = run_cli("train", recipe, "--out", tmp_path / "b", "--set", added, "--set",
                   "data.replay.share=0.5", "--device", "cpu")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "50% of the audio from 80 synthetic ones" in done.stderr + done.stdout
    bundle = Bundle.load(tmp_path / "b")
    assert not bundle.tokenizer.unknown(["今天点分", *train_texts(tones)])
    data = SpeechDataModule(bundle.config)
    cuts = [cut for batch in data.plan(0) for cut in batch]
    spoken = [cut for cut in cuts if cut.id.startswith("replay-")]
    share = sum(cut.duration for cut in spoken) / sum(cut.duration for cut in cuts)
    assert 0.45 < share < 0.55 and len(cuts) - len(spoken) == len(train_texts(tones))
    assert data.replay and len(data.replay.utterances) == 80, "none is held out"


def test_recordings_by_url_are_beside_it_and_none_is_fetched(tones: Path, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        content = gzip.decompress((tones / f"{split}.jsonl.gz").read_bytes())
        lines = [json.loads(line) for line in content.splitlines()]
        for line in lines:
            name = Path(line["recording"]["sources"][0]["source"]).name
            line["recording"]["sources"][0] = {
                "type": "url", "channels": [0], "source": f"s3://nowhere/{name}"
            }  # fmt: skip
        with gzip.open(tmp_path / f"{split}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    sentences, out = tmp_path / "sentences.txt", tmp_path / "synthetic"
    known = next(iter(load_cuts(tones / "dev.jsonl.gz"))).supervisions[0].text
    sentences.write_text(f"今天天气很好\n{known}\n")
    assert prepare(sentences, tmp_path, out).splits["train"].utterances == 1
    replay = {"train": str(out / "train.jsonl.gz"), "share": 0.5}
    values = tones_recipe(tmp_path, data={"replay": replay, "allow": ["s3://nowhere"]})
    data = SpeechDataModule(Config.model_validate(values))
    assert data.replay and [text_of(cut) for cut in data.replay.utterances] == ["今天天气很好"]
