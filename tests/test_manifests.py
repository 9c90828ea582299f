"""What is wrong in a manifest is told by its line."""

import gzip
from pathlib import Path

import pytest

from asr.data import load_cuts
from asr.errors import DataError


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [*lines[:3], b'{"id": ', *lines[3:]], r"at line 4: "),
        (lambda lines: [b'{"id": "a", "type": "MonoCut"}', *lines[1:], b"[]"], r"at line 1, 9: "),
        (lambda lines: [*lines[:-1], "{\u597d}".encode("gbk")], r"at line 8: "),
        (lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]], "BOM"),
        (lambda lines: [*lines, lines[2]], r"1 ids more than once"),
    ],
    ids=["json", "key", "gbk", "bom", "duplicate"],
)
def test_a_broken_manifest_is_told_by_line(tones: Path, tmp_path: Path, change, told: str) -> None:
    lines = gzip.decompress((tones / "dev.jsonl.gz").read_bytes()).splitlines()
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"\r\n".join(lines))
    assert len(load_cuts(broken)) == len(lines) == 8
    broken.write_bytes(b"\n".join(change(lines)))
    with pytest.raises(DataError, match=rf"broken\.jsonl: .*{told}"):
        load_cuts(broken)
