"""The study as tables (Markdown), for programs (JSON) and as figures."""

import platform
from pathlib import Path

import torch

from asr.efficiency.bert_cost import BERT_BASE, THESIS, Price, prices
from asr.efficiency.claims import Finding, findings
from asr.efficiency.grid import MODES, Measurement
from asr.efficiency.plots import draw
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
    """All results; `bert` is table 3.2 by our factors, `thesis` by the thesis's."""

    machine: str
    torch: str
    rows: list[Measurement]
    findings: list[Finding]
    bert: list[Price]
    thesis: tuple[Price, ...] = THESIS


def summarize(rows: list[Measurement]) -> Study:
    """Return the measurements of one device with what follows from them."""
    machine = f"{rows[0].device}, {platform.platform()}"
    found, bert = list(findings(rows)), prices(rows)
    return Study(machine=machine, torch=torch.__version__, rows=rows, findings=found, bert=bert)


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
        for measure in ("seconds", "memory_mib"):
            parts.append(_by_length(study.rows, mode, measure, f"{mode}, {_UNITS[measure][0]}"))
    parts.append(_by_length(study.rows, MODES[0], "parameters", _UNITS["parameters"][0]))
    if study.findings:
        head = ["the thesis", "here", "cases", "least", "greatest ratio"]
        parts.append(markdown_table([f.cells for f in study.findings], head))
    if study.bert:
        parts.append(_bert(study.bert))
    return "\n\n".join(parts) + "\n"


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
    """Return table 3.2: ours / the thesis's."""
    printed = {price.rank: price.cells for price in THESIS}
    head = ["BERT-base pre-training", "efficiency", "petaflop/s-day", "USD", "CO2 (kg)"]
    lines = [["dense", *BERT_BASE.cells]]
    for price in prices:
        pairs = zip(price.cells, printed.get(price.rank, [DASH] * 4), strict=True)
        lines.append([f"LRT, r = {price.rank} (here / thesis)", *(f"{a} / {b}" for a, b in pairs)])
    return markdown_table(lines, head)
