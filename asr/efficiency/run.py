"""The study as it runs: what is measured stays measured, whatever happens to the process."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import ValidationError

from asr.efficiency.grid import BASELINE, BenchmarkCase, Measurement
from asr.efficiency.measure import measure
from asr.errors import ConfigError, DataError
from asr.runtime.files import write_atomically

ROWS = "efficiency.csv"
_MOST_GIB = 1 << 20


def device_name(device: torch.device) -> str:
    """How rows name a device."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def study(
    cells: list[BenchmarkCase], device: torch.device, out: Path, memory_gib: float | None,
    on_row: Callable[[Measurement], object],
) -> list[Measurement]:  # fmt: skip
    """The rows of all cells: those of `out` as they are, the others measured and added to it.

    `on_row` is told each row. Raises DataError where the file in `out` is not a study's,
    ConfigError where a CPU's memory cannot be read or `memory_gib` is none.
    """
    if memory_gib is not None and not 0 < memory_gib <= _MOST_GIB:
        raise ConfigError(f"--memory {memory_gib:g}: give GiB above 0, at most {_MOST_GIB}")
    if device.type == "cpu" and not Path("/proc/self/clear_refs").exists():
        raise ConfigError(
            "the memory of a CPU's models is read from Linux's /proc, which is not here: run the "
            "study on Linux, or with --device cuda"
        )
    out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(out / ROWS)
    known = {row.cell: row for row in rows}
    for cell in cells:
        if cell not in known:
            known[cell] = measure(cell, device, _batch(cell, known), memory_gib)
            rows.append(known[cell])
            _write(out / ROWS, rows)
        on_row(known[cell])
    return [known[cell] for cell in cells]


def _batch(cell: BenchmarkCase, known: dict[BenchmarkCase, Measurement]) -> int | None:
    """One sequence on a CPU; on a GPU what fits for the Transformer, whose training comes first."""
    if cell.device == "cpu":
        return 1
    first = {"model": BASELINE, "rank": None, "mode": "training"}
    baseline = known.get(cell.model_copy(update=first))
    return baseline.batch if baseline else None


def read_rows(path: Path) -> list[Measurement]:
    """What was measured before. Raises DataError that names the file, or a line that is no row."""
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: not the rows of a study ({error}): mend it, or give another --out"
        ) from error
    rows = []
    for number, line in enumerate(lines, 2):
        try:
            rows.append(
                Measurement.model_validate({k: None if v == "" else v for k, v in line.items()})
            )
        except ValidationError as error:
            raise DataError(
                f"{path}, line {number}: not a row of a study: mend it, or give another --out"
            ) from error
    return rows


def _write(path: Path, rows: list[Measurement]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Measurement.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in rows)
    write_atomically(path, lambda temporary: temporary.write_text(text.getvalue(), "utf-8"))
