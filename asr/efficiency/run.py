"""The study's measurements: each one is stored at once, so that a killed study can continue."""

from collections.abc import Callable
from pathlib import Path

import torch

from asr.efficiency.grid import BASELINE, BenchmarkCase, Measurement
from asr.efficiency.measure import measure
from asr.errors import ConfigError, DataError
from asr.runtime.files import read_csv, write_csv

ROWS = "efficiency.csv"
_MAX_GIB = 1 << 20


def device_name(device: torch.device) -> str:
    """Return the name of a device in the results."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def study(
    cases: list[BenchmarkCase],
    device: torch.device,
    out: Path,
    memory_gib: float | None,
    on_row: Callable[[Measurement], object],
) -> list[Measurement]:
    """Return the measurements of all cases: those stored in `out`, and the others, added to it.

    `on_row` receives each of them. Raises DataError where the file in `out` is not a study's,
    ConfigError where a CPU's memory cannot be read or `memory_gib` is out of range.
    """
    if memory_gib is not None and not 0 < memory_gib <= _MAX_GIB:
        raise ConfigError(f"--memory {memory_gib:g}: give GiB above 0, at most {_MAX_GIB}")
    if device.type == "cpu" and not Path("/proc/self/clear_refs").exists():
        raise ConfigError(
            "the memory of a CPU's models is read from Linux's /proc, which is not here: run the "
            "study on Linux, or with --device cuda"
        )
    out.mkdir(parents=True, exist_ok=True)
    rows = read_csv(out / ROWS, Measurement, DataError)
    known = {row.case: row for row in rows}
    for case in cases:
        if case not in known:
            known[case] = measure(case, device, _batch(case, known), memory_gib)
            rows.append(known[case])
            write_csv(out / ROWS, [row.model_dump() for row in rows])
        on_row(known[case])
    return [known[case] for case in cases]


def _batch(case: BenchmarkCase, known: dict[BenchmarkCase, Measurement]) -> int | None:
    """Return 1 on a CPU; on a GPU return the batch size of the Transformer's training case."""
    if case.device == "cpu":
        return 1
    first = {"model": BASELINE, "rank": None, "mode": "training"}
    baseline = known.get(case.model_copy(update=first))
    return baseline.batch if baseline else None
