"""`asr jobs status`: a job as its storage tells it, with the times of the storage alone."""

import json
import os
from pathlib import Path

import pytest

from asr.transcription.job_status import read_status
from asr.transcription.leases import EXPIRY
from asr.transcription.shares import JobNote
from tests.helpers import run_cli

START, HOUR = 1_700_000_000, 3600.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """An hour old: two of five shares are done, one is in work, one given back, one's worker gone.

    The share that was given back had been taken over from a worker that is gone.
    """
    note = JobNote(recordings=40, shares=5, n_bytes=9, options={}).model_dump_json()
    done = json.dumps({"seconds": 1800.0})
    files = {
        "job.json": (0, note),
        "0a/0a1.lease.1": (0, "x"), "0a/0a1.done": (HOUR / 2, done), "0a/0a1.failed.0": (9, "{}"),
        "0b/0b2.lease.1": (0, "x"), "0b/0b2.done": (HOUR, done),
        "0c/0c3.lease.1": (HOUR - 3 * EXPIRY, "x"), "0c/0c3.lease.2": (HOUR - EXPIRY / 2, "y"),
        "0d/0d4.lease.1": (HOUR - 2 * EXPIRY, "z"),
        "0e/0e5.lease.1": (9, "x"), "0e/0e5.lease.2": (HOUR - 9, "y"), "0e/0e5.free.2": (HOUR, ""),
    }  # fmt: skip
    for name, (at, content) in files.items():
        path = tmp_path / ".asr/j" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
        os.utime(path, (START + at, START + at))
    return tmp_path


def test_a_job_is_told_with_its_speed_and_what_is_left(job: Path) -> None:
    (status,) = read_status(f"file://{job}")
    assert (status.name, status.recordings, status.shares) == ("j", 40, 5)
    assert (status.done, status.running, status.silent, status.failed) == (2, 1, 1, 1)
    assert (status.hours_done, status.speed, status.hours_left) == (1.0, 1.0, 1.5)
    shown = run_cli("jobs", "status", f"file://{job}").stdout
    assert "j: 2 of 5 shares done, 1 running, 1 silent; 1 of 40 recordings failed" in shown
    assert "1.00 h of audio, 1.0 h per hour; about 1.5 h left" in shown
    for left in (job / ".asr/j").rglob("*.done"):
        left.unlink()
    (status,) = read_status(f"file://{job}")
    assert (status.done, status.speed, status.hours_left) == (0, None, None)


def test_what_is_no_job_is_told(tmp_path: Path) -> None:
    for given, reason in ((str(tmp_path), "not a URL"), (f"file://{tmp_path}", "no job there")):
        result = run_cli("jobs", "status", given)
        assert result.returncode and result.stdout == ""
        assert reason in result.stderr and result.stderr.count("\n") == 1
