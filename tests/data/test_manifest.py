"""Errors in a manifest are reported with their lines, and a manifest runs no command."""

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from lhotse import CutSet, Recording, load_manifest
from lhotse.audio.utils import AudioLoadingError

from asr.data.manifest import load_cuts
from asr.errors import DataError


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
