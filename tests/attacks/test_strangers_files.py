"""Recipes, bundles, manifests, language models and archives of strangers: limits and refusals."""

import gzip
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch
import yaml
from lhotse import Recording, SupervisionSegment
from lhotse.cut import Cut, MonoCut

import asr
from asr.bundle import Bundle, load_bundle_config
from asr.config import Config, dump_config, load_config
from asr.data.manifest import load_cuts, read_wave
from asr.data.noise import NOISE_SEED
from asr.decoding.options import DecodingOptions
from asr.errors import AsrError, AudioError, BundleError, ConfigError, DataError
from asr.evaluation.cer import alignment
from asr.evaluation.evaluate import evaluate
from asr.lm.loading import load_language_model
from asr.normalization import normalize_text
from asr.runtime.files import remove_stale, write_atomically, write_text
from asr.tokenizer import Tokenizer
from data_prep import aishell1, hkust
from tests.helpers import (
    copied,
    make_tree,
    tone,
    tones_recipe,
    write_manifest,
    write_recipe,
)

CPU = torch.device("cpu")
PIPE = "pipe:touch PWNED; cat real.jsonl"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that holds a file with the name of a command, as the attack needs."""
    monkeypatch.chdir(tmp_path)
    tone(tmp_path / "a.wav")
    write_manifest(tmp_path / "real.jsonl", {"type": "file", "source": str(tmp_path / "a.wav")})
    (tmp_path / PIPE).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("key", ["data.train", "data.dev", "decoding.lm", "training.init"])
@pytest.mark.parametrize("path", [PIPE, "https://example.org/x.jsonl", "-"])
def test_a_recipe_or_bundle_names_no_command_or_address(
    here: Path, tiny_bundle: Path, key: str, path: str
) -> None:
    """S1: a path that a library could take for a command is refused before anything opens it."""
    recipe = write_recipe(here / "recipe.yaml", tones_recipe(here))
    with pytest.raises(ConfigError, match=rf"{key}: .*a command or an address"):
        load_config(recipe, [f"{key}={json.dumps(path)}"])
    section, name = key.split(".")
    bundle = copied(tiny_bundle, here / "bundle", **{f"{section}__{name}": path})
    with pytest.raises(BundleError, match=rf"{key}: .*a command or an address"):
        Bundle.load(bundle)
    assert not (here / "PWNED").exists()


def test_a_manifest_with_a_commands_name_is_not_run(here: Path) -> None:
    """S1: `asr evaluate`, `tune` and `compress` take manifests by name as well."""
    with pytest.raises(DataError, match="a command or an address"):
        load_cuts(Path(PIPE))
    (here / "pipe:touch PWNED; cat ").mkdir()
    nested = here / "pipe:touch PWNED; cat " / "real.jsonl"
    nested.write_bytes((here / "real.jsonl").read_bytes())
    with pytest.raises(DataError, match="a command or an address"):
        load_cuts(Path("pipe:touch PWNED; cat /real.jsonl"))
    assert len(load_cuts(nested)) == 1  # absolute, it is a name like others
    assert not (here / "PWNED").exists()


def test_shards_below_a_folder_with_a_commands_name_are_not_run(here: Path) -> None:
    """S1: lhotse sees the absolute paths of shards only."""
    shards = here / "pipe:touch PWNED;"
    shards.mkdir()
    shutil.copy(here / "real.jsonl", shards / "cuts.000000.jsonl")
    with tarfile.open(shards / "recording.000000.tar", "w"):
        pass
    with pytest.raises(DataError, match="a command or an address"):
        load_cuts(Path(shards.name))
    with pytest.raises(DataError, match="not a lhotse manifest"):
        load_cuts(shards)  # its tar file is empty
    assert not (here / "PWNED").exists()


def test_options_of_the_command_line_are_checked_too(here: Path) -> None:
    """S1: `--lm` is a file's path, and a beam has a limit."""
    for changes in ({"lm": Path(PIPE), "lm_weight": 0.3}, {"beam_size": 10**9}):
        with pytest.raises(ConfigError):
            DecodingOptions().changed(changes)
    assert not (here / "PWNED").exists()


@pytest.mark.parametrize(
    "source",
    [
        {"type": "file", "source": PIPE},
        {"type": "file", "source": "http://localhost:1/a.wav"},
        {"type": "url", "source": PIPE},
        {"type": "command", "source": "touch PWNED"},
        {"type": "tar_member", "source": "/etc/passwd:0:100"},
    ],
    ids=lambda source: f"{source['type']}-{source['source'][:5]}",
)
def test_a_recordings_source_is_a_file(here: Path, source: dict) -> None:
    """S1: a manifest's sources are neither run nor fetched, nor offsets into any file."""
    with pytest.raises(DataError, match=r"strange\.jsonl: is not a lhotse manifest.*at line 2"):
        load_cuts(write_manifest(here / "strange.jsonl", {"type": "file", "source": "a"}, source))
    assert not (here / "PWNED").exists()


def cut_of(wav: Path, name: str = "c") -> MonoCut:
    recording = Recording.from_file(wav, recording_id=name)
    said = SupervisionSegment(name, name, 0.0, recording.duration, 0, "好")
    return MonoCut(name, 0.0, recording.duration, 0, [said], recording=recording)


def written(path: Path, *items: dict) -> Path:
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), "utf-8")
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda cut: cut,
        lambda cut: cut.perturb_volume(4 / 3),
        lambda cut: cut.perturb_volume(0.123456789),
        lambda cut: cut.perturb_speed(1.1),
        lambda cut: cut.resample(8000).perturb_speed(0.9).resample(22050),
        lambda cut: cut.narrowband("mulaw"),
        lambda cut: cut.narrowband("mulaw", restore_orig_sr=False).resample(16000),
        lambda cut: cut.resample(44100).perturb_volume(1.7),
        lambda cut: cut.clip_amplitude(gain_db=3.0),
        lambda cut: cut.pad(duration=1.0),
        lambda cut: cut.pad(duration=1.0, direction="both").resample(8000),
        lambda cut: cut.append(cut.perturb_speed(1.1)).append(cut),
        lambda cut: cut.mix(cut, snr=10).mix(cut.pad(duration=1.0), snr=5),
        lambda cut: cut.truncate(offset=0.05, duration=0.1),
    ],
    ids=[
        "plain", "volume", "quiet", "speed", "rates", "narrowband", "narrowest", "resample", "clip",
        "pad", "pad both", "append", "mix", "truncate",
    ],
)  # fmt: skip
def test_what_lhotse_writes_is_read(tmp_path: Path, change: Callable[[Cut], Cut]) -> None:
    """S1, S2: a factor of loudness is no speed, and honest manifests pass all checks."""
    wanted = change(cut_of(tone(tmp_path / "a.wav")))
    (cut,) = load_cuts(written(tmp_path / "m.jsonl", wanted.to_dict()))
    assert len(read_wave(cut, wanted.sampling_rate)) == wanted.num_samples


@pytest.mark.parametrize("deep", [1, 2])
@pytest.mark.parametrize("what", ["source", "transform"])
def test_a_mix_inside_a_mix_hides_nothing(here: Path, deep: int, what: str) -> None:
    """C1: neither a command nor a transform is run from below a track."""
    hidden = cut_of(here / "a.wav").to_dict()
    run = {"type": "command", "channels": [0], "source": "touch PWNED; cat a.wav"}
    if what == "source":
        hidden["recording"]["sources"] = [run]
    else:
        rir = hidden["recording"] | {"sources": [run]}
        hidden["recording"] = hidden["recording"] | {
            "transforms": [{"name": "ReverbWithImpulseResponse", "kwargs": {"rir": rir}}]
        }
    mixed = hidden
    for name in range(deep):
        other = {"type": "MonoCut", "cut": cut_of(here / "a.wav").to_dict(), "offset": 0}
        tracks = [{"type": mixed["type"], "cut": mixed, "offset": 0}, other]
        mixed = {"type": "MixedCut", "id": str(name), "tracks": tracks}
    with pytest.raises(DataError, match="at line 1: "):
        (cut,) = load_cuts(written(here / "m.jsonl", mixed))
        read_wave(cut, 16000)
    assert not (here / "PWNED").exists()


def test_an_honest_mix_inside_a_mix_is_refused_by_name(here: Path) -> None:
    """C1: lhotse writes none, for it makes one mix of several."""
    mono = cut_of(here / "a.wav")
    inner = mono.pad(duration=1.0).to_dict()
    tracks = [{"type": "MixedCut", "cut": inner, "offset": 0}]
    mixed = {"type": "MixedCut", "id": "m", "tracks": tracks}
    with pytest.raises(DataError, match="m: a track is a MixedCut"):
        load_cuts(written(here / "m.jsonl", mixed))


def resample(source: int, target: int) -> dict:
    return {
        "name": "Resample",
        "kwargs": {"source_sampling_rate": source, "target_sampling_rate": target},
    }


def narrowband(source: int) -> dict:
    kwargs = {"codec": "mulaw", "source_sampling_rate": source, "restore_orig_sr": True}
    return {"name": "Narrowband", "kwargs": kwargs}


SLOW = {"name": "Speed", "kwargs": {"factor": 0.2}}
COSTLY = {
    "pair": (364807, [resample(364200, 364206)]),
    "steps": (16000, [resample(16000, 47777), resample(47777, 16000)]),
    "order": (16000, [resample(8000, 48000), resample(8000, 16000)]),
    "narrowband": (383999, [narrowband(383999)]),
    "tiny rate": (16000, [resample(16000, 1), resample(1, 16000)]),
    "speed": (44101, [{"name": "Speed", "kwargs": {"factor": 1.0123}}]),
    "slow": (8000, [{"name": "Speed", "kwargs": {"factor": 1e-3}}]),
    "slower": (8000, [SLOW, SLOW]),
    "tempo": (8000, [{"name": "Tempo", "kwargs": {"factor": 1e-4}}]),
    "nan": (8000, [{"name": "Tempo", "kwargs": {"factor": float("nan")}}]),
    "many": (8000, [resample(8000, 16000), resample(16000, 8000)] * 100),
}


@pytest.mark.parametrize("case", COSTLY)
@pytest.mark.parametrize("kind", ["cut", "mix", "shard"])
def test_changes_that_take_much_memory_are_refused(tmp_path: Path, case: str, kind: str) -> None:
    """S2: each step's own rates count, in recordings, in mixes and in shards' descriptions."""
    rate, transforms = COSTLY[case]
    wav = tmp_path / "a.wav"
    sf.write(wav, np.zeros(rate // 10), rate)
    cut = cut_of(wav).to_dict()
    described = cut["recording"] | {"transforms": transforms}
    manifest = tmp_path / "cuts.000000.jsonl"
    if kind == "cut":
        written(manifest, cut | {"recording": described})
    elif kind == "mix":
        tracks = [{"type": "MonoCut", "cut": cut, "offset": 0}]
        mixed = {"type": "MixedCut", "id": "m", "tracks": tracks, "transforms": transforms}
        written(manifest, mixed)
    else:
        written(manifest, cut)
        with tarfile.open(tmp_path / "recording.000000.tar", "w") as tar:
            for name, content in (
                ("c.wav", wav.read_bytes()), ("c.json", json.dumps(described).encode()),
            ):  # fmt: skip
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError, match=r"is resampled|its speed is|has 200 transforms"):
        load_cuts(tmp_path if kind == "shard" else manifest)


@pytest.mark.parametrize("kind", ["file", "shard"])
@pytest.mark.parametrize(("channels", "rate"), [(1, 16000), (8, 96000)])
def test_a_recording_longer_than_said_is_not_decoded(
    tmp_path: Path, kind: str, channels: int, rate: int
) -> None:
    """S3: half a megabyte of FLAC would be gigabytes of samples."""
    bomb = tmp_path / "a.flac"
    with sf.SoundFile(bomb, "w", rate, channels, "PCM_16", format="FLAC") as file:
        for _ in range(120):
            file.write(np.zeros((rate, channels), "int16"))
    cut = cut_of(tone(tmp_path / "a.wav")).to_dict()
    cut["recording"]["sampling_rate"] = rate
    cut["recording"]["num_samples"] = rate // 5
    cut["recording"]["sources"][0]["source"] = str(bomb)
    path = written(tmp_path / "cuts.000000.jsonl", cut)
    if kind == "shard":
        path = tmp_path
        with tarfile.open(tmp_path / "recording.000000.tar", "w") as tar:
            tar.add(bomb, "c.flac")
            tar.add(written(tmp_path / "c.json", cut["recording"]), "c.json")
    (cut,) = load_cuts(path)
    with pytest.raises(AudioError, match=r"has [\d,]+ samples, its manifest says"):
        read_wave(cut, 16000)


def test_a_recording_of_another_rate_is_refused(here: Path) -> None:
    """S3: the file's own header counts."""
    cut = cut_of(here / "a.wav").to_dict()
    cut["recording"] |= {"sampling_rate": 8000, "num_samples": 1600}
    (cut,) = load_cuts(written(here / "m.jsonl", cut))
    with pytest.raises(AudioError, match="has 16000 Hz, its manifest says 8000"):
        read_wave(cut, 8000)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_rate": 10**12}, {"sampling_rate": 48000}, {"duration": 1e400}, {"duration": -1},
        {"offset": -1.0}, {"offset": 1e400},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_padding_has_the_rate_of_its_mix(here: Path, change: dict, first: bool) -> None:
    """S4: zeros are made at the padding's own rate."""
    mixed = cut_of(here / "a.wav").pad(0.5, direction="left" if first else "right").to_dict()
    (padding,) = (t for t in mixed["tracks"] if t["type"] == "PaddingCut")
    (padding if "offset" in change else padding["cut"]).update(change)
    with pytest.raises(DataError, match="at line 1: "):
        load_cuts(written(here / "m.jsonl", mixed))


@pytest.mark.parametrize("kind", ["padding", "offset", "many"])
def test_a_mix_is_not_made_long_by_silence(here: Path, kind: str) -> None:
    """A7: a short line took more than a gigabyte of memory."""
    cut = cut_of(here / "a.wav")
    padded = cut.pad(duration=1000.0)  # 17 minutes at 16 kHz are allowed
    (kept,) = load_cuts(written(here / "m.jsonl", padded.to_dict()))
    assert len(read_wave(kept, 16000)) == padded.num_samples
    values = padded.to_dict()
    recorded, silence = values["tracks"]
    if kind == "padding":
        silence["cut"]["duration"] = 10_000.0
    elif kind == "offset":
        values["tracks"] = [recorded, {**recorded, "offset": 10_000.0}]
    else:
        values["tracks"] += 100 * [silence]
    with pytest.raises(DataError, match="of padding"):
        load_cuts(written(here / "m.jsonl", values))


@pytest.mark.parametrize("key", ["id", "text"])
def test_half_a_character_is_refused(here: Path, key: str) -> None:
    """A6: JSON can escape half a surrogate pair, which no result can be written with."""
    cut = cut_of(here / "a.wav").to_dict()
    (cut if key == "id" else cut["supervisions"][0])[key] = "\ud800"
    with pytest.raises(DataError, match=r"at line 1: .*surrogates not allowed"):
        load_cuts(written(here / "m.jsonl", cut))


def test_a_text_of_megabytes_is_aligned_in_a_moment() -> None:
    """The worst utterances of a manifest are shown: a time quadratic in the text took minutes."""
    start = time.process_time()
    assert len(alignment("x" * 300_000, "y").splitlines()[0]) == 300_005
    assert time.process_time() - start < 3


def test_a_cut_without_a_sample_is_left_out(
    here: Path, tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A6: a manifest of nothing else divided by zero."""
    cut = cut_of(here / "a.wav").to_dict() | {"duration": 1e-9}
    cuts = load_cuts(written(here / "m.jsonl", cut))
    with pytest.raises(DataError, match="no utterance with a transcript could be read"):
        evaluate(asr.load(tiny_bundle, "cpu"), cuts)
    assert "c: holds no samples" in caplog.text


def test_a_cut_does_not_start_before_its_recording(here: Path) -> None:
    """S4: lhotse would read another part."""
    for start in (-0.1, float("nan")):
        cut = cut_of(here / "a.wav").to_dict() | {"start": start}
        with pytest.raises(DataError, match="starts at "):
            load_cuts(written(here / "m.jsonl", cut))


@pytest.mark.parametrize("mixed", [False, True])
def test_a_manifest_gives_no_seed_of_noise(here: Path, mixed: bool) -> None:
    """A key that only the training adds to its cuts is dropped, others stay."""
    cut: Cut = cut_of(here / "a.wav")
    cut.custom = {NOISE_SEED: "x", "other": 1}
    cut = cut.pad(duration=1.0) if mixed else cut
    (read,) = load_cuts(written(here / "m.jsonl", cut.to_dict()))
    assert (read.tracks[0].cut if mixed else read).custom == {"other": 1}


def test_a_tar_file_is_not_opened_by_a_recordings_path(here: Path) -> None:
    """A pipe with such a name would have no end."""
    os.mkfifo(here / "f.tar")
    source = {"type": "file", "source": str(here / "f.tar/a.wav")}
    with pytest.raises(DataError, match="inside a tar file"):
        load_cuts(write_manifest(here / "m.jsonl", source))


def test_a_colon_in_a_recordings_path_is_no_address(here: Path) -> None:
    """An address has two slashes after its scheme."""
    (here / "nas:").mkdir()
    shutil.copy(here / "a.wav", here / "nas:")
    source = {"type": "file", "source": "nas:/a.wav"}
    (cut,) = load_cuts(write_manifest(here / "m.jsonl", source))
    assert len(read_wave(cut, 16000)) == 3200


@pytest.mark.parametrize("kind", ["/dev/zero", "fifo"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, tiny_bundle: Path, kind: str) -> None:
    """M5: a file without an end (/dev/zero, a pipe) is refused at once, wherever it is named."""
    endless = Path(kind)
    if kind == "fifo":
        endless = tmp_path / "fifo"
        os.mkfifo(endless)
    tokenizer = Bundle.load(tiny_bundle).tokenizer
    with pytest.raises(BundleError, match="not a plain file"):
        load_language_model(endless, tokenizer, CPU)
    with pytest.raises(ConfigError, match="not a plain file"):
        load_config(endless)
    with pytest.raises(DataError, match="not a plain file"):
        load_cuts(endless)
    (cut,) = load_cuts(
        write_manifest(tmp_path / "m.jsonl", {"type": "file", "source": str(endless)})
    )
    with pytest.raises(AudioError, match="not a regular file"):
        read_wave(cut, 16000)
    for name in ("config.yaml", "tokenizer.model", "model.safetensors"):
        bundle = Path(shutil.copytree(tiny_bundle, tmp_path / name))
        (bundle / name).unlink()
        (bundle / name).symlink_to(endless)
        with pytest.raises(BundleError):
            Bundle.load(bundle)


@pytest.mark.parametrize("lm", ["/etc/passwd", "../other/lm.arpa", "linked.arpa"])
def test_a_bundles_language_model_is_in_its_folder(
    tmp_path: Path, tiny_bundle: Path, lm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """M5, S9: a bundle's `decoding.lm` cannot name any file of the machine."""
    bundle = copied(tiny_bundle, tmp_path / "bundle", decoding__lm=lm, decoding__lm_weight=0.3)
    (bundle / "linked.arpa").symlink_to("/etc/passwd")
    decoding = Bundle.load(bundle).config.decoding
    assert (decoding.lm, decoding.lm_weight) == (None, 0)
    assert "is not used, for it is not in this folder" in caplog.text
    unused = copied(tiny_bundle, tmp_path / "unused", decoding__lm=lm)
    if not lm.startswith("linked"):
        assert Bundle.load(unused).config.decoding.lm is None  # so no option can bring it back


def test_a_language_model_in_the_bundle_is_found_from_anywhere(
    tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M5: its path is relative to the folder, which can be moved."""
    bundle = copied(tiny_bundle, tmp_path / "bundle", decoding__lm="lm.arpa", decoding__lm_weight=1)
    loaded = Bundle.load(bundle)
    assert loaded.config.decoding.lm == bundle / "lm.arpa"
    loaded.save(bundle, "card")
    moved = bundle.rename(tmp_path / "moved")
    monkeypatch.chdir("/")
    assert load_bundle_config(moved).decoding.lm == moved / "lm.arpa"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "an alias"),
        ("a: " + "[" * 5000, "more than 20 levels"),
        ("a: " + "{b: " * 5000, "more than 20 levels"),
        ("# a comment\n" * 100_000, "more than 262,144 bytes"),
        ("seed: " + "9" * 5000, "more than 100 characters"),
        ("seed: 0x" + "f" * 100_000, "more than 100 characters"),
        ("seed: " + "1:" * 50_000 + "1", "more than 100 characters"),
        ("seed: 2001-99-99", "not YAML"),
        ("".join(f"k{i}: 1\n" for i in range(5000)), "k18: unknown key.*; and 4981 more"),
        ("search: {" + ", ".join(f"k{i}: 1" for i in range(4000)) + "}", "k19: .*; and 3980 more"),
    ],
    ids=[
        "aliases", "lists", "mappings", "comments", "digits", "hex", "base 60", "date", "keys",
        "renamed",
    ],
)  # fmt: skip
def test_yaml_that_grows_is_refused_at_once(tmp_path: Path, text: str, message: str) -> None:
    """M5: aliases, depth, size and numbers of a configuration have limits."""
    path, start = tmp_path / "config.yaml", time.process_time()
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "text",
    [
        "seed: !!int ''", "seed: !!float '_'", "seed: !!bool maybe", "seed: !!timestamp foo",
        "seed: !!set {a}", "seed: !!seq [1]", "seed: !<tag:yaml.org,2002:int> ''", "seed: !x 1",
        "%TAG ! tag:yaml.org,2002:\n---\nseed: !int ''",
    ],
)  # fmt: skip
def test_yaml_has_no_tags(tmp_path: Path, text: str) -> None:
    """A4: a tag makes PyYAML read a text as what it is not, which was a traceback."""
    (tmp_path / "config.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"not YAML \(a tag \(.*\) is not allowed"):
        load_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "change",
    [
        "model.d_model=400000", "model.encoder.n_layers=100000", "model.decoder.n_layers=100000",
        "data.num_workers=1000000", "decoding.beam_size=1000000000", "decoding.n_best=1000000000",
        "training.epochs=1000000000000", "tokenizer.vocab_size=1000000000000",
        "data.speed_factors=[1e-9]",
    ],
)  # fmt: skip
def test_absurd_sizes_are_refused_by_name(tmp_path: Path, change: str) -> None:
    """M5: a recipe's sizes have limits, before anything is built."""
    recipe = write_recipe(tmp_path / "recipe.yaml", tones_recipe(tmp_path))
    with pytest.raises(ConfigError, match=change.split("=", maxsplit=1)[0].replace(".", r"\.")):
        load_config(recipe, [change])


@pytest.mark.parametrize(
    "change",
    [
        {"model__d_model": 16384, "model__projection": {"kind": "dense"}},
        {"model__d_inner": 65536, "model__encoder": {"n_layers": 128}},
    ],
    ids=["wide", "deep"],
)
def test_a_bundle_whose_weights_do_not_fit_takes_no_memory(
    tmp_path: Path, tiny_bundle: Path, change: dict
) -> None:
    """M5: shapes are compared with the file of weights before anything is allocated."""
    bundle = copied(tiny_bundle, tmp_path / "bundle", **change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match=r"model\.safetensors: tensor "):
        Bundle.load(bundle)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_a_language_models_folder_takes_no_memory_either(tmp_path: Path, tiny_bundle: Path) -> None:
    """M5: as for a bundle."""
    loaded = Bundle.load(tiny_bundle)
    model = loaded.config.model.model_copy(update={"d_model": 65536, "n_heads": 64})
    sizes = {"vocab_size": 1 << 18, "model": model.model_dump(mode="json")}
    write_text(tmp_path / "lm" / "config.yaml", yaml.safe_dump(sizes))
    shutil.copy(tiny_bundle / "model.safetensors", tmp_path / "lm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match="tensor "):
        load_language_model(tmp_path / "lm", loaded.tokenizer, CPU)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_tokenizer_cannot_make_long_texts_of_few_tokens() -> None:
    """M5: a piece of a megabyte would be repeated by every token of a text."""
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto()
    model.ParseFromString(Tokenizer.train(["今天"], Config.model_validate(
        {"data": {"train": "a", "dev": "b"}}).tokenizer).model)  # fmt: skip
    model.pieces[-1].piece = "长" * 1000
    with pytest.raises(BundleError, match="more than 256 characters"):
        Tokenizer(model.SerializeToString())


def test_lines_without_an_end_are_not_read_into_memory(tmp_path: Path, tiny_bundle: Path) -> None:
    """M5: neither a sparse ARPA file nor a gzip bomb as a manifest fills the memory."""
    arpa = tmp_path / "lm.arpa"
    with arpa.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match="more than 9,999 characters"):
        load_language_model(arpa, Bundle.load(tiny_bundle).tokenizer, CPU)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b"\0" * (1 << 20), 1) * 100)  # members follow each other
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="a line has"):
        load_cuts(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def archive_of(path: Path, *members: tuple[str, int]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(b"\0" * size))
    return path


@pytest.mark.parametrize("name", [".", ""])
def test_a_member_without_a_name_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    """M6: an archive's file named "." or "" is no traceback."""
    archive = archive_of(tmp_path / "data_aishell.tgz", (name, 10))
    with pytest.raises(DataError, match=re.escape(f"a file named {name!r}")):
        aishell1.prepare(archive, tmp_path / "out")


def test_what_an_archive_unpacks_to_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M6: files in all archives together, inner ones and what follows the last file included."""
    tree = make_tree(tmp_path / "corpus")
    (tree / "wav" / "train").rename(tree / "wav" / "kept")
    for i in range(3):
        archive_of(tree / "wav" / f"S090{i}.tar.gz", (f"train/S090{i}/a.wav", 400_000))
    monkeypatch.setattr(aishell1, "MAX_BYTES", 1_000_000, raising=False)
    with pytest.raises(DataError, match="more than 1,000,000 bytes"):
        aishell1.prepare(tree, tmp_path / "out")
    written = [p.stat().st_size for p in (tmp_path / "out").rglob("*.wav")]
    assert sum(written) <= 1_000_000
    tail = archive_of(tmp_path / "data_aishell.tgz", ("data_aishell/a", 10))
    tail.write_bytes(tail.read_bytes() + gzip.compress(b"\0" * 3_000_000))
    with pytest.raises(DataError, match="more than 1,000,000 bytes"):
        aishell1.prepare(tail, tmp_path / "tail")


def test_a_members_name_takes_little_memory(tmp_path: Path) -> None:
    """M6: tarfile would read a name of gigabytes."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 8 << 30
    content = header.tobuf(tarfile.GNU_FORMAT) + b"a" * (1 << 20)
    archive = tmp_path / "data_aishell.tgz"
    archive.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=r"damaged or incomplete \(a header of 8,589,934,592"):
        aishell1.prepare(archive, tmp_path / "out")


def header(kind: bytes, size: int) -> bytes:
    """Return a header of a member of a kind."""
    info = tarfile.TarInfo("data_aishell/a")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(**headers: str) -> bytes:
    """Return a header for the next member of an archive."""
    info = tarfile.TarInfo("data_aishell/a")
    info.pax_headers = {key.replace("__", "."): value for key, value in headers.items()}
    return info.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.parametrize(
    "content",
    [
        pax(GNU__sparse__major="1", GNU__sparse__minor="0") + b"999999999999\n" + b"0\n" * 500_000,
        pax(GNU__sparse__map="a,b"),
        pax(GNU__sparse__size="x"),
        pax(GNU__sparse__realsize="39000000000"),
        header(tarfile.GNUTYPE_SPARSE, 0),
        (header(tarfile.GNUTYPE_LONGNAME, 2) + b"a".ljust(512, b"\0")) * 3000,
        pax(path="data_aishell/a\0b") + bytes(1024),
    ],
    ids=["map", "old map", "size", "real size", "GNU", "chain", "NUL"],
)
def test_headers_of_no_published_archive_are_damage(tmp_path: Path, content: bytes) -> None:
    """S10: a sparse file's map has no end; a chain of headers, or a NUL, is no traceback."""
    archive = tmp_path / "data_aishell.tgz"
    archive.write_bytes(gzip.compress(content + bytes(1024), 1))
    begun = time.process_time()
    with pytest.raises(DataError, match=r"damaged or incomplete"):
        aishell1.prepare(archive, tmp_path / "out")
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    "line",
    [
        "((",
        "<noise>",
        "<noise></noise>",
        "{",
        "[a",
        "<a",
        '<foreign language="',
        " ",
        " 好",
        "'",
        "%",
    ],
)
def test_normalizing_takes_time_in_proportion_to_the_line(line: str) -> None:
    """M7: no rule for HKUST's transcripts, nor of texts, is quadratic."""
    start = time.process_time()
    hkust.normalize("a" + line * 40_000 + "b")
    normalize_text("a" + line * 40_000 + "b")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("time_of_day", ["1" * 320, "1." + "1" * 320, "9" * 30])
def test_times_of_hundreds_of_digits_are_malformed_lines(tmp_path: Path, time_of_day: str) -> None:
    """M7: such a time is no OverflowError, the line is left out."""
    transcript, dropped = tmp_path / "call.txt", []
    transcript.write_text(f"0.1 {time_of_day} A: 好\n0.1 1.2 A: 好\n", "utf-8")
    transcript.write_bytes(transcript.read_text("utf-8").encode("gbk"))
    (segment,) = hkust._read_transcript(transcript, "train", dropped)
    assert (segment.id, [one.reason for one in dropped]) == (
        "call-A-000010-000120", ["malformed_line"],
    )  # fmt: skip


def test_temporary_names_are_short_and_differ_between_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8, M11: a file may have the longest name, and two processes with one PID do not collide."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    used: list[str] = []
    for name in ("a", "长" * 85):
        write_text(tmp_path / name, "text")
        for _ in range(2):
            write_atomically(tmp_path / name, lambda path: used.append(path.name) or path.touch())
    assert len(set(used)) == 4 and max(map(len, used)) < 40
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "长" * 85]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_stays_as_private_as_it_was(tmp_path: Path, mode: int) -> None:
    """M5: and so is what is being written."""
    path = tmp_path / "a.txt"
    write_text(path, "old")
    path.chmod(mode)

    def write(temporary: Path) -> None:
        temporary.write_text("new", "utf-8")
        assert not temporary.stat().st_mode & 0o077

    write_atomically(path, write)
    assert path.read_text("utf-8") == "new" and path.stat().st_mode & 0o777 == mode


def test_temporary_files_of_killed_processes_do_not_stay(tmp_path: Path) -> None:
    """M11: what is older than a day is removed, what another process writes now is not."""
    kill = "import os; from asr.runtime.files import write_text; from pathlib import Path\n"
    kill += "Path.replace = lambda *_: os.kill(os.getpid(), 9)\n"
    for _ in range(2):
        code = f"{kill}write_text(Path({str(tmp_path / 'a')!r}), 'text')"
        subprocess.run([sys.executable, "-c", code], check=False)
    old, new = tmp_path.iterdir()
    os.utime(old, (0, 0))
    remove_stale(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_a_shipped_configuration_keeps_working(tiny_bundle: Path, tmp_path: Path) -> None:
    """M5: what the program writes itself is within its limits."""
    config = load_bundle_config(tiny_bundle)
    write_text(tmp_path / "config.yaml", dump_config(config))
    assert load_config(tmp_path / "config.yaml") == config
    with pytest.raises(AsrError):
        load_config(tmp_path / "config.yaml", ["model.d_model=&a 4"])
