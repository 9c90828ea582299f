"""Record the main tables of a study that `asr bench efficiency` made.

The first command makes the study, the second one records its tables:

    asr bench efficiency --out exp/efficiency
    python -m benchmarks.efficiency exp/efficiency/efficiency.json [--record]
"""

import argparse
from pathlib import Path

from asr.efficiency.grid import MODES, Measurement
from asr.efficiency.tables import Study, break_even_heads, break_even_table, claims_table
from benchmarks import record
from benchmarks.record import Result, Value

UNITS = {"ms": ".1f", "MiB": ".0f", "parameters, million": ".2f"}


def value(row: Measurement, unit: str) -> Value:
    """Return what was measured in this unit, or why nothing was."""
    if unit == "parameters, million":
        return row.parameters / 1e6
    if row.seconds is None or row.memory_mib is None:
        return row.outcome
    return 1000 * row.seconds if unit == "ms" else row.memory_mib


def by_length(rows: list[Measurement], mode: str, unit: str, title: str) -> Result:
    """Return the table of one measure (`unit`) of every model by length."""
    own = [row for row in rows if row.mode == mode]
    lengths = list(dict.fromkeys(row.length for row in own))
    cases = {(row.title, row.length): value(row, unit) for row in own}
    columns = {"model": "", **{str(length): UNITS[unit] for length in lengths}}
    lines: list[list[Value]] = [
        [model, *(cases.get((model, length)) for length in lengths)]
        for model in dict.fromkeys(row.title for row in own)
    ]
    return Result(title=title, columns=columns, rows=lines)


def claims(study: Study) -> Result:
    """Return which of the thesis's claims are reproduced."""
    rows: list[list[Value]] = [[*cells] for cells in claims_table(study)]
    columns = dict.fromkeys(["the thesis", "here", "cases", "least ratio", "greatest ratio"], "")
    return Result(title="The thesis's claims", columns=columns, rows=rows)


def break_even(study: Study) -> Result:
    """Return the lengths below which LRT takes less than Linformer."""
    rows: list[list[Value]] = [[*cells] for cells in break_even_table(study)]
    columns = dict.fromkeys(["rank", *break_even_heads(study)], "")
    return Result(title="Break-even lengths", columns=columns, rows=rows)


def main() -> None:
    """Read a study, print and record its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    record.add_option(parser)
    args = parser.parse_args()
    study = Study.model_validate_json(args.study.read_text("utf-8"))
    results = [claims(study)]
    if study.break_even:
        results.append(break_even(study))
    for mode in MODES:
        for unit in ("ms", "MiB"):
            results.append(by_length(study.rows, mode, unit, f"{mode.capitalize()}, {unit}"))
    unit = "parameters, million"
    results.append(by_length(study.rows, MODES[0], unit, unit.capitalize()))
    record.publish(args, "efficiency", results)


if __name__ == "__main__":
    main()
