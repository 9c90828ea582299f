"""A bundle is complete or refused, by name; nothing in it can run."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from asr.bundle import Bundle
from asr.config import Config
from asr.errors import AsrError, BundleError
from asr.runtime.files import write_atomically
from asr.tokenizer import Tokenizer
from tests.helpers import tones_recipe


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    config = Config.model_validate(tones_recipe(tmp_path))
    torch.manual_seed(0)
    folder = tmp_path / "bundle"
    Bundle.create(config, Tokenizer.train(["一二三四五"], config.tokenizer)).save(folder, "card")
    return folder


def test_what_is_saved_is_what_is_loaded(bundle: Path, tmp_path: Path) -> None:
    loaded = Bundle.load(bundle)
    assert sorted(p.name for p in bundle.iterdir()) == [
        "README.md", "config.yaml", "model.safetensors", "tokenizer.model",
    ]  # fmt: skip
    loaded.save(tmp_path / "again", "card")
    for name in ("config.yaml", "model.safetensors", "tokenizer.model"):
        assert (bundle / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_bundle_without_a_policy_of_texts_is_as_it_was(bundle: Path) -> None:
    config = yaml.safe_load((bundle / "config.yaml").read_text("utf-8"))
    assert config["tokenizer"].pop("case") == "upper"
    assert config["tokenizer"].pop("punctuation") == "keep"
    (bundle / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    assert Bundle.load(bundle).tokenizer.normalize("Don’t, 今天。 go!") == "DON’T,今天。 GO!"


def test_a_bundle_stores_case_and_punctuation(tmp_path: Path) -> None:
    policy = {"case": "lower", "punctuation": "remove"}
    config = Config.model_validate(tones_recipe(tmp_path) | {"tokenizer": policy})
    tokenizer = Tokenizer.train(["Don't go, Tom."], config.tokenizer)
    Bundle.create(config, tokenizer).save(tmp_path / "bundle", "card")
    loaded = Bundle.load(tmp_path / "bundle").tokenizer
    assert loaded.decode(loaded.encode("DON’T GO, TOM")) == "don't go tom"


def refuse(bundle: Path, *words: str) -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.load(bundle)
    assert caught.value.exit_code == 4
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, str(bundle)):
        assert word in message


def test_ranks_of_what_the_network_lacks_are_named(bundle: Path) -> None:
    config = yaml.safe_load((bundle / "config.yaml").read_text("utf-8"))
    config["model"]["ranks"] = {"nonsense": 3}
    (bundle / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    refuse(bundle, "config.yaml", "nonsense")


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "tokenizer.model"])
def test_a_missing_or_foreign_or_empty_file_is_named(bundle: Path, name: str) -> None:
    whole = (bundle / name).read_bytes()
    (bundle / name).unlink()
    refuse(bundle, name)
    for content in (b"", b"\x80\x04garbage" * 50, b"PK\x03\x04" + b"\0" * 300):
        (bundle / name).write_bytes(content)
        refuse(bundle, name)
    (bundle / name).write_bytes(whole)
    Bundle.load(bundle)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_truncated_weights_are_refused(bundle: Path, share: float) -> None:
    weights = bundle / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: int(len(data) * share)])
    refuse(bundle, "model.safetensors")


def test_tensors_that_are_missing_foreign_misshapen_or_nan_are_named(bundle: Path) -> None:
    path = bundle / "model.safetensors"
    good, name = load_file(path), "model.decoder.output.bias"
    bad = {k: v for k, v in good.items() if k != name}
    for tensors, word in (
        (bad, "missing"),
        ({**good, "model.extra": torch.zeros(1)}, "model.extra"),
        ({**good, name: torch.zeros(3)}, "(3,)"),
        ({**good, name: torch.full_like(good[name], float("nan"))}, "NaN"),
    ):
        save_file(tensors, path)
        refuse(bundle, "model.extra" if word == "model.extra" else name, word)


def test_a_pickle_in_the_place_of_weights_does_not_run(bundle: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    torch.save(Bomb(), bundle / "model.safetensors")
    refuse(bundle, "model.safetensors")
    assert not (tmp_path / "owned").exists()


def test_a_tokenizer_of_another_model_is_refused(bundle: Path, tmp_path: Path) -> None:
    config = Config.model_validate(tones_recipe(tmp_path))
    other = Tokenizer.train(["一二三四五六七"], config.tokenizer)
    (bundle / "tokenizer.model").write_bytes(other.model)
    refuse(bundle, "11", "9")


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def full_disk(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(AsrError, match="No space left"):
        write_atomically(path, full_disk)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_saving_onto_a_full_disk_keeps_the_old_weights(bundle: Path, monkeypatch) -> None:
    loaded, before = Bundle.load(bundle), (bundle / "model.safetensors").read_bytes()
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        """A disk that holds everything but the weights: /dev/full is always full."""
        return write(Path("/dev/full") if b"data_offsets" in data[:4000] else path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(AsrError, match=r"model\.safetensors: .*No space left"):
        loaded.save(bundle, "card")
    assert (bundle / "model.safetensors").read_bytes() == before
    assert not list(bundle.glob(".*.tmp"))
    Bundle.load(bundle)


def test_weights_know_their_tokenizer(bundle: Path, tmp_path: Path) -> None:
    config = Config.model_validate(tones_recipe(tmp_path))
    other = Tokenizer.train(["六七八九十"], config.tokenizer)
    (bundle / "tokenizer.model").write_bytes(other.model)
    refuse(bundle, "two models")
