"""The study as tables (Markdown), for programs (JSON) and as figures."""

import platform
from pathlib import Path

import torch

from asr.efficiency.bert_cost import BERT_BASE, THESIS, Price, prices
from asr.efficiency.break_even import BreakEven, break_even_length, break_evens
from asr.efficiency.claims import ELSEWHERE, Finding, findings
from asr.efficiency.grid import D_MODEL, MODES, Measurement
from asr.efficiency.plots import draw
from asr.efficiency.ratios import COSTS
from asr.reporting.tables import DASH, markdown_table
from asr.runtime.files import write_text
from asr.schema import FrozenModel

# Unit, factor and format of each measure.
_UNITS = {
    "seconds": ("ms", 1000, ".1f"),
    "memory_mib": ("MiB", 1, ".0f"),
    "parameters": ("parameters, million", 1e-6, ".2f"),
}


class Study(FrozenModel):
    """All results; `bert` is table 3.2 with the factors measured here, `thesis` as printed."""

    machine: str
    torch: str
    rows: list[Measurement]
    findings: list[Finding]
    break_even: list[BreakEven]
    bert: list[Price]
    thesis: tuple[Price, ...] = THESIS


def summarize(rows: list[Measurement]) -> Study:
    """Return the measurements of one device with what follows from them."""
    machine = f"{rows[0].device}, {platform.platform()}"
    return Study(
        machine=machine, torch=torch.__version__, rows=rows, findings=list(findings(rows)),
        break_even=list(break_evens(rows)), bert=prices(rows),
    )  # fmt: skip


def write_results(rows: list[Measurement], out: Path) -> str:
    """Write efficiency.json and the figures to a folder, and return the tables."""
    study = summarize(rows)
    write_text(out / "efficiency.json", study.model_dump_json(indent=2) + "\n")
    draw(rows, out)
    return markdown(study)


def markdown(study: Study) -> str:
    """Return tables of time, memory and size, of the thesis's claims and of the price of BERT."""
    runs, batches = (
        ", ".join(map(str, sorted({getattr(row, name) for row in study.rows})))
        for name in ("runs", "batch")
    )
    parts = [f"{study.machine}, torch {study.torch}; mean of {runs} runs, batch {batches}"]
    for mode in MODES:
        for measure in COSTS:
            parts.append(_by_length(study.rows, mode, measure, f"{mode}, {_UNITS[measure][0]}"))
    parts.append(_by_length(study.rows, MODES[0], "parameters", _UNITS["parameters"][0]))
    if any(finding.cases for finding in study.findings):
        head = ["the thesis", "here", "cases", "least", "greatest ratio"]
        parts.append(markdown_table(claims_table(study), head))
    if study.break_even:
        head = ["LRT takes less than Linformer below", *break_even_heads(study)]
        parts.append(markdown_table(break_even_table(study), head))
    if study.bert:
        parts.append(_bert(study.bert))
    return "\n\n".join(parts) + "\n"


def claims_table(study: Study) -> list[list[str]]:
    """Return a row for each of the thesis's claims."""
    elsewhere = [[text, "not measured", *[DASH] * 3] for text in ELSEWHERE]
    return [finding.cells for finding in study.findings] + elsewhere


def break_even_heads(study: Study) -> list[str]:
    """Return the headings of the break-even lengths."""
    found = {(e.measure, e.mode, e.matrices): None for e in study.break_even}
    return ["operations", *(_what(*key) for key in found)]


def break_even_table(study: Study) -> list[list[str]]:
    """Return a row for each rank: the break-even length by operations, then those measured."""
    ranks = sorted({each.rank for each in study.break_even})
    cells = {(e.rank, _what(e.measure, e.mode, e.matrices)): e.cell for e in study.break_even}
    return [
        [f"r = {rank}", f"{break_even_length(D_MODEL, rank):.0f}"]
        + [cells.get((rank, head), DASH) for head in break_even_heads(study)[1:]]
        for rank in ranks
    ]


def _what(measure: str, mode: str, matrices: bool) -> str:
    name = "time" if measure == "seconds" else "memory"
    return f"{name}, {mode}" + (", matrices" if matrices else "")


def _by_length(rows: list[Measurement], mode: str, measure: str, title: str) -> str:
    own = {(row.title, row.length): row for row in rows if row.mode == mode}
    models, lengths = dict.fromkeys(m for m, _ in own), list(dict.fromkeys(n for _, n in own))
    cells = [[m, *(_cell(own.get((m, n)), measure) for n in lengths)] for m in models]
    return markdown_table(cells, [title, *map(str, lengths)])


def _cell(row: Measurement | None, measure: str) -> str:
    if row is None:
        return DASH
    value, (_, factor, form) = getattr(row, measure), _UNITS[measure]
    return row.outcome if value is None else format(factor * value, form)


def _bert(prices: list[Price]) -> str:
    """Return table 3.2, as measured here / as printed in the thesis."""
    printed = {price.rank: price.cells for price in THESIS}
    head = ["BERT-base pre-training", "efficiency", "petaflop/s-day", "USD", "CO2 (kg)"]
    lines = [["dense", *BERT_BASE.cells]]
    for price in prices:
        pairs = zip(price.cells, printed.get(price.rank, [DASH] * 4), strict=True)
        lines.append([f"LRT, r = {price.rank} (here / thesis)", *(f"{a} / {b}" for a, b in pairs)])
    return markdown_table(lines, head)
