"""Errors in a manifest are reported with their lines, and a manifest runs no command."""

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from lhotse import CutSet, Recording, load_manifest
from lhotse.audio.utils import AudioLoadingError
from lhotse.utils import fastcopy

from asr.data.manifest import load_cuts, load_training_cuts
from asr.errors import DataError
from asr.training_config import DataConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:3], b'{"id": ', *lines[3:]], r"at line 4: "),
        (lambda lines: [b'{"id": "a", "type": "MonoCut"}', *lines[1:], b"[]"], r"at line 1, 9: "),
        (lambda lines: [*lines[:-1], "{\u597d}".encode("gbk")], r"at line 8: "),
        (lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]], "BOM"),
        (lambda lines: [*lines, lines[2]], r"1 ids more than once"),
    ],
    ids=["json", "key", "gbk", "bom", "duplicate"],
)
def test_a_broken_manifest_is_reported_by_line(
    tones: Path, tmp_path: Path, change, message: str
) -> None:
    lines = gzip.decompress((tones / "dev.jsonl.gz").read_bytes()).splitlines()
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"\r\n".join(lines))
    assert len(load_cuts(broken)) == len(lines) == 8
    broken.write_bytes(b"\n".join(change(lines)))
    with pytest.raises(DataError, match=rf"broken\.jsonl: .*{message}"):
        load_cuts(broken)


REVERB = {
    "name": "ReverbWithImpulseResponse",
    "kwargs": {
        "rir": {
            "id": "r", "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0,
            "sources": [{"type": "command", "channels": [0], "source": "touch {stain}; cat {wav}"}],
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"sources": [{"type": "command", "channels": [0], "source": "touch {stain}; cat {wav}"}]},
        {"sources": [{"type": "url", "channels": [0], "source": "pipe:touch {stain}; cat {wav}"}]},
        {"transforms": [REVERB]},
    ],
    ids=["command", "pipe", "impulse response"],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_manifest_runs_no_command(tones: Path, tmp_path: Path, change: dict, mixed: bool) -> None:
    cut = load_manifest(tones / "dev.jsonl.gz")[0]
    wav, stain = cut.recording.sources[0].source, tmp_path / "stain"
    text = json.dumps(cut.to_dict()["recording"] | change)
    filled = text.replace("{stain}", str(stain)).replace("{wav}", str(wav))
    cut.recording = Recording.from_dict(json.loads(filled))
    with contextlib.suppress(AudioLoadingError):
        cut.load_audio()  # what lhotse does with it
    assert stain.exists()
    stain.unlink()
    strange = tmp_path / "strange.jsonl"
    whole = cut.pad(cut.duration + 1) if mixed else cut
    CutSet.from_cuts([whole]).to_file(strange)
    with pytest.raises(DataError, match=rf"strange\.jsonl: .*{whole.id}"):
        load_cuts(strange)
    assert not stain.exists()


@pytest.mark.parametrize("order", [1, -1])
def test_no_utterance_of_several_manifests_is_lost(
    order: int, tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their ids may be alike, even where one has the number of its manifest already."""
    a, b, c, d = list(load_cuts(tones / "train.jsonl.gz"))[:4]
    texts = {cut.id: cut.supervisions[0].text for cut in (a, b, c, d)}
    again = fastcopy(a, id="pseudo", supervisions=[fastcopy(a.supervisions[0], text="false")])
    CutSet.from_cuts([a.with_id("x"), d]).to_file(tmp_path / "1.jsonl")
    second = [b.with_id("2-x"), c.with_id("x")][::order]
    CutSet.from_cuts([*second, again]).to_file(tmp_path / "2.jsonl")
    names = [str(tmp_path / name) for name in ("1.jsonl", "2.jsonl")]
    data = DataConfig.model_validate({"train": names, "dev": names[0]})
    found = load_training_cuts(data)
    assert sorted(cut.supervisions[0].text for cut in found) == sorted(texts.values())
    assert len({cut.id for cut in found}) == 4
    assert f"{names[1]}: 1 utterances have another text in an earlier manifest" in caplog.text
    for path, mixed in zip(names, ((a, b), (c, d)), strict=True):
        CutSet.from_cuts([mixed[0].append(mixed[1]).with_id("mix")]).to_file(path)
    assert len(load_training_cuts(data)) == 2, "mixes of other recordings, numbered alike"


def test_copies_of_utterances_train_too(
    tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cuts = CutSet.from_cuts(list(load_cuts(tones / "train.jsonl.gz"))[:3])
    copies = [cuts, cuts.perturb_speed(0.9), cuts.perturb_volume(0.5), cuts.map(_copy)]
    names = [str(tmp_path / f"{i}.jsonl") for i in range(len(copies))]
    for name, each in zip(names, copies, strict=True):
        each.to_file(name)
    found = load_training_cuts(DataConfig.model_validate({"train": names, "dev": names[0]}))
    assert len(found) == 12 and not caplog.text


def _copy(cut):
    return cut.with_id(f"copy-{cut.id}")
