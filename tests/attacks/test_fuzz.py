"""The fuzzer finds nothing in a few inputs of each parser, and would find what it looks for."""

import ctypes
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.audio.recording import Recording
from asr.errors import AudioError
from tests.attacks.fuzz import __main__ as fuzzer
from tests.attacks.fuzz.target import Target
from tests.attacks.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """The fuzzer as a process of its own."""
    command = [sys.executable, "-m", "tests.attacks.fuzz", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.costly
def test_no_earlier_finding_and_no_new_one_in_every_parser() -> None:
    """All inputs that once failed are answered, and so are new ones from a fixed seed."""
    done = run("--count", "100", "--seed", "1")
    assert not done.returncode, done.stdout + done.stderr
    counts = dict(re.findall(r"^(\w+): (\d+) inputs", done.stdout, re.MULTILINE))
    assert counts.keys() == TARGETS.keys() and min(map(int, counts.values())) >= 100


def crash(_data: bytes) -> None:
    ctypes.string_at(0)


def hang(_data: bytes) -> None:
    while True:
        pass


def fill(_data: bytes) -> None:
    bytearray(600 * 2**20)


def fail(_data: bytes) -> None:
    raise KeyError("unexpected")


@pytest.mark.parametrize("fault", [crash, hang, fill, fail])
def test_the_fuzzer_stores_the_input_that_does_harm(
    fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A crash, a hang, a loss of memory and an exception are each reported, with their input."""

    def answer(data: bytes) -> None:
        if data == b"bad":
            fault(data)

    monkeypatch.setitem(fuzzer.TARGETS, "broken", lambda _: Target([b"good", b"bad"], answer))
    monkeypatch.setattr(fuzzer, "SEEDS", tmp_path)
    monkeypatch.setattr(fuzzer, "SECONDS", 0.2)
    n_inputs, _, sound = fuzzer.supervise("broken", 1, 1.0, 0)
    assert not sound and n_inputs
    assert [path.read_bytes() for path in (tmp_path / "broken").iterdir()] == [b"bad"]


@pytest.mark.parametrize("format", ["SDS", "CAF"])
def test_no_recording_makes_the_decoder_print(
    format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """M13, A10: a damaged MIDI sample dump or ALAC wrote between the transcripts."""
    file = io.BytesIO()
    subtype = {"SDS": "PCM_16", "CAF": "ALAC_16"}[format]
    sf.write(file, np.zeros(16000), 16000, format=format, subtype=subtype)
    whole = file.getvalue()
    damaged = whole[:-100].replace(b"\x40", b"\x41")
    if format == "CAF":  # the last size in the table of packets is not whole
        end = whole.index(b"data")
        damaged = whole[: end - 1] + b"\x80" + whole[end:]
    with pytest.raises(AudioError, match="known format"):
        list(Recording(io.BytesIO(damaged), 16000))
    ctypes.CDLL(None).fflush(None)
    assert not capfd.readouterr().out
