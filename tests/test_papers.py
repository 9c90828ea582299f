"""docs/papers.md: nothing of the thesis is left out, and what the page names exists."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from asr.efficiency.claims import CLAIMS, ELSEWHERE
from benchmarks.tables import PAGE as RESULTS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/papers.md").read_text("utf-8")
# How many equations, tables and figures the chapters of Cahyawijaya 2021 have.
NUMBERED = {
    "Eq.": {2: 11, 3: 10, 4: 1},
    "Table": {1: 2, 3: 2, 4: 3, 5: 3},
    "Figure": {2: 11, 3: 7, 4: 3, 5: 5},
}
VERDICTS = ("reproduced", "partly", "not reproduced", "not attempted", "survey")


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(start: str, end: str = "") -> list[list[str]]:
    """Return the rows of tables that have a verdict, between two texts of the page."""
    part = PAGE[PAGE.index(start) :]
    part = part[: part.index(end)] if end else part
    lines = [cells_of(line) for line in part.splitlines() if line.startswith("|")]
    return [cells for cells in lines if cells[-1].startswith("**")]


ALL = rows("## The thesis")


@pytest.mark.parametrize("kind", NUMBERED)
def test_every_numbered_item_of_the_thesis_has_a_row(kind: str) -> None:
    found = set()
    for item, *_ in rows("## The thesis", "## The talk"):
        for own in re.findall(rf"{re.escape(kind)} (\d\.\d+(?:, \d\.\d+)*)", item):
            found |= set(own.split(", "))
    expected = {f"{c}.{i}" for c, n in NUMBERED[kind].items() for i in range(1, n + 1)}
    assert found == expected


def test_rows_have_a_verdict_and_equations_have_code_and_a_test() -> None:
    for item, *middle, last in ALL:
        verdict = re.match(r"\*\*(.+?)\*\*", last)
        assert verdict and verdict[1] in VERDICTS, item
        if item.startswith("Eq."):
            code, test = middle
            assert code.startswith("`asr.") and test.startswith("`test_"), item


def test_the_verdicts_are_counted() -> None:
    counts = Counter(last.split("**")[1] for *_, last in ALL)
    line = next(line for line in PAGE.splitlines() if re.fullmatch(r"\|( \d+ \|)+", line))
    assert cells_of(line) == [str(len(ALL)), *(str(counts[verdict]) for verdict in VERDICTS)]


@cache
def _definitions(path: Path) -> dict[str, dict[str, object]]:
    """Return the names that a file defines, and those that its classes define."""

    def names(body: list[ast.stmt]) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {}
        for each in body:
            if isinstance(each, ast.FunctionDef):
                found[each.name] = {}
            elif isinstance(each, ast.ClassDef):
                found[each.name] = dict(names(each.body))
            elif isinstance(each, ast.Assign | ast.AnnAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                found |= {target.id: {} for target in targets if isinstance(target, ast.Name)}
        return found

    return names(ast.parse(path.read_text("utf-8")).body)


def _exists(dotted: str) -> bool:
    parts = dotted.split(".")
    for i in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:i]).with_suffix(".py")
        if path.is_file():
            found: object = _definitions(path)
            for name in parts[i:]:
                if not isinstance(found, dict) or name not in found:
                    return False
                found = found[name]
            return True
    return False


def test_all_code_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:asr|benchmarks|data_prep|experiments)\.[\w.]+)`", PAGE)
    assert len(set(named)) > 50
    assert not [name for name in set(named) if not _exists(name)]
    assert not _exists("asr.model.layers.FeedBackward") and not _exists("asr.nothing.at_all")
    files = re.findall(r"`(\w+/[\w./]+\.\w+)`", PAGE)
    assert files and all((ROOT / name).is_file() for name in files)


def test_all_tests_that_the_page_names_exist() -> None:
    known = set[str]()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= set(re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 50 and not named - known


def test_the_claims_are_those_of_the_study_with_the_recorded_verdicts() -> None:
    lines = map(cells_of, RESULTS.read_text("utf-8").splitlines())
    recorded = {cells[0]: cells for cells in lines if len(cells) == 5}
    listed = {
        item: last for item, _, last in rows("| claim | section |", "\nThe thesis recommends")
    }
    assert listed.keys() == {claim.text for claim in CLAIMS} | set(ELSEWHERE)
    for claim in CLAIMS:
        what = ["size"] if claim.measure == "parameters" else claim.modes
        found = [recorded[f"{claim.text}: {each}"] for each in what]
        verdicts = {verdict for _, verdict, *_ in found}
        whole = verdicts.pop() if len(verdicts) == 1 else "partly"
        parts = [f"{each} {cells[1]} ({cells[2]})" for each, cells in zip(what, found, strict=True)]
        assert listed[claim.text] == f"**{whole}**: {'; '.join(parts)}"
