"""A training process keeps freed buffers."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc's allocator")
def test_a_training_process_keeps_the_memory_of_large_buffers() -> None:
    code = """
import resource, sys, torch
from asr.runtime.memory import keep_buffers
if sys.argv[1] == "keep": keep_buffers()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    for _ in range(10): torch.ones(10_000_000)
step(); before = faults(); step()
print(faults() - before)
"""

    def faults(how: str) -> int:
        run = [sys.executable, "-c", code, how]
        return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < faults("leave") / 5
