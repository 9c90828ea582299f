"""A training process keeps freed buffers."""

import os
import subprocess
import sys

import pytest
import torch


@pytest.mark.costly
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


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_a_training_process_keeps_the_kernels_of_many_sizes() -> None:
    code = """
import sys, torch
from asr.runtime.memory import keep_kernels
if sys.argv[1] == "keep": keep_kernels()
weight = torch.ones(8, 8, 3, 3)
convolve = lambda n: torch.nn.functional.conv2d(torch.ones(2, 8, n, 16), weight)
for n in range(3, 1203): convolve(n)
print("again", flush=True)
convolve(3)
"""

    def compiled_again(how: str) -> bool:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ONEDNN")}
        found = subprocess.run(
            [sys.executable, "-c", code, how], capture_output=True, text=True, check=True,
            env=environment | {"ONEDNN_VERBOSE": "2"},
        )  # fmt: skip
        after = found.stdout.partition("\nagain\n")[2]
        assert "create:cache_" in after
        return "create:cache_miss" in after

    assert compiled_again("leave") and not compiled_again("keep")
