"""What a process gets at a time."""

from pathlib import Path

import pytest

from asr.transcription.jobs import Task, in_shares


@pytest.mark.parametrize(
    ("n", "size", "sizes"),
    [
        (60, 320_000, [8] * 7 + [4]),  # 60 recordings of ten seconds: every process has some
        (2, 320_000, [1, 1]),
        (400, 1_000_000, [20] * 20),  # ten minutes each, as ever
        (1000, 1, [64] * 15 + [40]),
    ],
)
def test_a_small_job_has_work_for_several_and_a_large_one_ten_minutes(
    tmp_path: Path, n: int, size: int, sizes: list[int]
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(bytes(size))
    tasks = [Task(path, None)] * n
    found = list(in_shares(tasks))
    assert [len(share) for share in found] == sizes
