"""The study as tables (Markdown) and for programs (JSON)."""

import platform

import torch
from pydantic import TypeAdapter

from asr.efficiency.bert_cost import BERT_BASE, THESIS, Price, Pricing, pricing
from asr.efficiency.claims import Finding, findings
from asr.efficiency.grid import MODES, Measurement
from asr.reporting.markdown import table
from asr.schema import FrozenModel

_DASH = "—"
_UNITS = {"seconds": "ms", "memory_mib": "MiB"}


class Study(FrozenModel):
    """All that was found; `bert` is table 3.2 by our factors, `thesis` by the thesis's."""

    machine: str
    torch: str
    rows: list[Measurement]
    findings: list[Finding]
    bert: list[Pricing]
    thesis: tuple[Pricing, ...] = THESIS


def summarise(rows: list[Measurement]) -> Study:
    """The rows of one device, and what follows from them."""
    return Study(
        machine=f"{rows[0].device}, {platform.platform()}", torch=torch.__version__,
        rows=rows, findings=list(findings(rows)), bert=pricing(rows),
    )  # fmt: skip


def as_json(study: Study) -> str:
    """For programs."""
    return TypeAdapter(Study).dump_json(study, indent=2).decode() + "\n"


def markdown(study: Study) -> str:
    """Tables of time, memory and size; the thesis's findings here; the price of BERT."""
    runs, batches = ({getattr(row, name) for row in study.rows} for name in ("runs", "batch"))
    said = f"{study.machine}, torch {study.torch}; mean of {_all(runs)} runs, batch {_all(batches)}"
    parts = [said]
    for mode in MODES:
        for measure, unit in _UNITS.items():
            parts.append(_by_length(study.rows, mode, measure, f"{mode}, {unit}"))
    parts += [_by_length(study.rows, MODES[0], "parameters", "parameters, million")]
    if study.findings:
        parts.append(_findings(study.findings))
    if study.bert:
        parts.append(_bert(study.bert))
    return "\n\n".join(parts) + "\n"


def _all(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def name(row: Measurement) -> str:
    """A model with its rank."""
    return f"{row.model}, r = {row.rank}" if row.rank else row.model


def _by_length(rows: list[Measurement], mode: str, measure: str, title: str) -> str:
    own = [row for row in rows if row.mode == mode]
    lengths = list(dict.fromkeys(row.length for row in own))
    cells = {(name(row), row.length): row for row in own}
    lines = [
        [subject, *(_cell(cells.get((subject, length)), measure) for length in lengths)]
        for subject in dict.fromkeys(map(name, own))
    ]
    return table([title, *map(str, lengths)], lines)


def _cell(row: Measurement | None, measure: str) -> str:
    if row is None:
        return _DASH
    if measure == "parameters":
        return f"{row.parameters / 1e6:.2f}"
    if row.seconds is None or row.memory_mib is None:
        return row.outcome
    return f"{1000 * row.seconds:.1f}" if measure == "seconds" else f"{row.memory_mib:.0f}"


def _findings(found: list[Finding]) -> str:
    head = ["the thesis", "here", "cells", "least", "greatest ratio"]
    return table(head, [
        [
            f"{f.claim.text}: {'size' if f.claim.measure == 'parameters' else f.mode}",
            "reproduced" if f.holds else "not reproduced", f"{f.holding} of {f.cells}",
            *(f"{r.value:.2f} (n = {r.length}, r = {r.rank})" for r in (f.least, f.greatest)),
        ]
        for f in found
    ])  # fmt: skip


def _bert(rows: list[Pricing]) -> str:
    """Ours / the thesis's."""
    printed = {row.rank: row for row in THESIS}
    head = ["BERT-base pre-training", "efficiency", "petaflop/s-day", "USD", "CO2 (kg)"]
    lines = [["dense", "1.00", *_price(BERT_BASE)]]
    for row in rows:
        ours = [f"{row.efficiency:.2f}", *_price(row.price)]
        thesis = printed.get(row.rank)
        theirs = [f"{thesis.efficiency:.2f}", *_price(thesis.price)] if thesis else [_DASH] * 4
        both = [f"{a} / {b}" for a, b in zip(ours, theirs, strict=True)]
        lines.append([f"LRT, r = {row.rank} (here / thesis)", *both])
    return table(head, lines)


def _price(price: Price) -> list[str]:
    low, high = price.usd
    return [f"{price.petaflop_s_days:.2f}", f"{low:,.0f} – {high:,.0f}", f"{price.co2_kg:.1f}"]
