"""Corpora by URL: the same batches as from a disk, and nothing that the user did not name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lhotse import CutSet

from asr.bundle import Bundle
from asr.config import Config, load_config
from asr.data.manifest import load_cuts
from asr.data.places import allowed_by, is_allowed, read_bytes_of
from asr.data.sampling import EpochSteps, loader
from asr.errors import AsrError, ConfigError, DataError
from asr.lm.texts import read_texts
from asr.runtime import storage
from asr.tokenizer import Tokenizer
from asr.train.datamodule import SpeechDataModule
from asr.train.run import train
from tests.helpers import copied, read_card, tones_recipe, write_manifest, write_recipe


@pytest.fixture(scope="module")
def corpora(s3: Any, tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tone corpus as shards here, and as shards and as a manifest of URLs in s3://job."""
    folder = tmp_path_factory.mktemp("shards")
    cuts = load_cuts(tones / "train.jsonl.gz")
    cuts.to_shar(folder, fields={"recording": "flac"}, shard_size=14)
    s3.put(f"{folder}/", "job/shards/", recursive=True)
    s3.put(f"{tones}/wav/", "job/recordings/", recursive=True)
    elsewhere = tmp_path_factory.mktemp("manifests")
    for split in ("train", "dev"):
        moved = []
        for cut in load_cuts(tones / f"{split}.jsonl.gz"):
            (source,) = cut.recording.sources
            source.source = f"s3://job/recordings/{Path(source.source).name}"
            source.type = "url" if split == "train" else "file"
            moved.append(cut)
        CutSet.from_cuts(moved).to_file(elsewhere / f"{split}.jsonl.gz")
    s3.put(f"{elsewhere}/", "job/manifests/", recursive=True)
    return folder


def batches(
    values: dict[str, Any], epochs: Sequence[int | None]
) -> list[tuple[list[str], torch.Tensor]]:
    """The micro-batches of epochs; None is dev."""
    config = Config.model_validate(values)
    data = SpeechDataModule(config)
    texts = (said.text for cut in data.train_cuts for said in cut.supervisions)
    data.read_with(Bundle.create(config, Tokenizer.train(texts, config.tokenizer)))
    assert data.dataset is not None
    loaders = [
        loader(data.dataset, EpochSteps(data._steps(epoch)), data.n_workers) for epoch in epochs
    ]
    steps = (step for one in loaders for step in one)
    return [(part.ids, part.feats_BTF) for step in steps for part in step.batches]


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("workers", "epochs"), [(0, (0, 1, None)), (1, (2,))])
def test_epochs_by_url_are_those_from_a_disk(
    s3: Any, corpora: Path, tones: Path, workers: int, epochs: Sequence[int | None]
) -> None:
    common = {"num_workers": workers}
    for here, there, allow in (
        (str(corpora), "s3://job/shards", []),
        (str(tones / "train.jsonl.gz"), "s3://job/manifests/train.jsonl.gz", ["s3://job/recordings"]),
    ):  # fmt: skip
        local = tones_recipe(tones, data={"train": here, **common})
        dev = "s3://job/manifests/dev.jsonl.gz" if allow else local["data"]["dev"]
        remote = tones_recipe(tones, data={"train": there, "dev": dev, "allow": allow, **common})
        pairs = list(zip(batches(local, epochs), batches(remote, epochs), strict=True))
        assert len(pairs) >= 15
        for (ids, feats), (found_ids, found) in pairs:
            assert ids == found_ids and torch.equal(feats, found)


def test_a_run_trains_by_url_alone(s3: Any, corpora: Path, tones: Path, tmp_path: Path) -> None:
    values = tones_recipe(tones, data={"train": "s3://job/shards/"}, training={"epochs": 1})
    recipe = write_recipe(tmp_path / "r.yaml", values)
    out = train(load_config(recipe), tmp_path / "run")
    assert "s3://job/shards" in read_card(out) and "skipped as unreadable | 0" in read_card(out)
    with pytest.raises(DataError, match="an address, which only `asr train` opens"):
        list(read_texts(Bundle.load(out).config.data.train[0]))


@pytest.mark.parametrize(
    "url",
    [
        "s3://other/recordings/train0.wav", "s3://job/recordings-of-others/a.wav",
        "s3://job/recordings/../private/a.wav", "file:///etc/passwd", "s3://job/recordings",
        "http://job/recordings/a.wav", "gs://job/recordings/a.wav", "S3://job/recordings/a.wav",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["file", "url"])
def test_a_manifest_opens_no_url_that_the_recipe_does_not_name(
    url: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "file_system", None)  # to open anything is an error
    manifest = write_manifest(tmp_path / "m.jsonl", {"type": kind, "source": url})
    data = {"train": str(manifest), "dev": str(manifest), "allow": ["s3://job/recordings"]}
    with pytest.raises(DataError, match="not run"):
        SpeechDataModule(Config.model_validate(tones_recipe(tmp_path, data=data)))
    allowed = "s3://job/recordings/train0.wav"
    manifest = write_manifest(tmp_path / "m.jsonl", {"type": kind, "source": allowed})
    assert len(load_cuts(manifest, ["s3://job/recordings"])) == 1
    with pytest.raises(DataError, match="not run"):
        load_cuts(manifest)


def test_what_a_recipe_allows(tmp_path: Path, tiny_bundle: Path) -> None:
    places = ["s3://a/m/train.jsonl.gz", Path("/data/dev.jsonl"), "s3://b/shards/"]
    allowed = allowed_by(places, ["gs://c/d"])
    for url, expected in {
        "s3://a/m/wav/0.wav": True, "s3://a/0.wav": False, "s3://b/shards/0.wav": True,
        "s3://b/0.wav": False, "gs://c/d/0.wav": True, "gs://c/d": False, "/data/0.wav": False,
    }.items():  # fmt: skip
        assert is_allowed(url, allowed) == expected, url
    recipe = write_recipe(tmp_path / "r.yaml", tones_recipe(tmp_path))
    for place in ("https://a/b.jsonl", "s3://a/../b.jsonl", "ssh://a/b.jsonl"):
        with pytest.raises(ConfigError, match=r"data\.dev: "):
            load_config(recipe, [f"data.dev={place}"])
    with pytest.raises(ConfigError, match=r"data\.allow\.0: not a place in storage"):
        load_config(recipe, ["data.allow=[/etc]"])
    here = load_config(recipe, [f"data.dev=file://{tmp_path}/dev.jsonl"])
    assert here.data.dev == tmp_path / "dev.jsonl"  # which is opened as any other file
    stranger = copied(tiny_bundle, tmp_path / "b", data__train="s3://a/b.jsonl")
    with pytest.raises(DataError, match="an address"):
        list(read_texts(Bundle.load(stranger).config.data.train[0]))


def test_storage_that_is_away_ends_a_run_and_skips_nothing(
    s3: Any, corpora: Path, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, _ = storage.file_system("s3://job")
    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    read, n_reads = system.cat_file, []

    def away(path: str, **given: Any) -> Any:
        n_reads.append(path)
        if len(n_reads) > 9:
            raise ConnectionError("no route")
        return read(path, **given)

    monkeypatch.setattr(system, "cat_file", away)
    config = Config.model_validate(tones_recipe(tones, data={"train": "s3://job/shards"}))
    with pytest.raises(AsrError, match=r"s3://job/shards/.*no route.* continue with --resume"):
        train(config, tmp_path / "run")


def test_damaged_corpora_by_url_are_named(s3: Any, corpora: Path) -> None:
    s3.pipe_file("job/broken/cuts.000000.jsonl", b'{"id": 1}\n')
    s3.pipe_file("job/broken/lines.jsonl", json.dumps({"id": 1}).encode() + b"\n")
    with pytest.raises(DataError, match=r"s3://job/broken: .*recording\.000000\.tar"):
        load_cuts("s3://job/broken", ["s3://job/broken"])
    with pytest.raises(DataError, match=r"lines\.jsonl: is not a lhotse manifest .*at line 1"):
        load_cuts("s3://job/broken/lines.jsonl", ["s3://job/broken"])
    with pytest.raises(DataError, match="nothing: holds no utterances"):
        load_cuts("s3://job/nothing", ["s3://job/nothing"])
    with pytest.raises(DataError, match=r"^s3://job/no\.jsonl: there is no such manifest"):
        load_cuts("s3://job/no.jsonl", ["s3://job"])


def test_a_manifest_in_storage_that_is_away_is_not_called_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    monkeypatch.setattr(type(storage.file_system("memory://a")[0]), "_open", away)
    with pytest.raises(DataError, match=r"^memory://a/b\.jsonl: the storage .*no route.*try again"):
        load_cuts("memory://a/b.jsonl", ["memory://a"])


def test_an_empty_or_short_file_is_no_outage(s3: Any) -> None:
    """S3 refuses a range that begins at the end of a file; such a recording is skipped."""
    s3.pipe_file("job/empty.wav", b"")
    s3.pipe_file("job/short.tar", b"abc")
    assert read_bytes_of("s3://job/empty.wav") == b""
    assert read_bytes_of("s3://job/short.tar", 3, 20) == b""
    assert read_bytes_of("s3://job/short.tar", 2, 20) == b"c"
