"""The efficiency study: what it measures, what it survives, what the thesis says."""

import json
import math
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from asr.cli import app
from asr.cli.bench import _kinds
from asr.efficiency.bert_cost import BERT_BASE, THESIS, efficiency, prices
from asr.efficiency.claims import findings
from asr.efficiency.grid import MODELS, BenchmarkCase, Measurement, grid
from asr.efficiency.measure import _runner
from asr.efficiency.run import ROWS, study
from asr.efficiency.tables import markdown, summarize
from asr.errors import ConfigError, DataError
from asr.model.projection import SetSparse
from asr.runtime.files import read_csv
from tests.helpers import ENCODER, run_cli, start_cli, wait_for

D, INNER, LAYERS = 768, 3072, 2
CPU = torch.device("cpu")


def read_rows(path: Path) -> list[Measurement]:
    return read_csv(path, Measurement, DataError)


def case(
    model: str, rank: int | None = None, length: int = 128, **changes: object
) -> BenchmarkCase:
    values = {"device": "cpu", "mode": "inference", "runs": 1, **changes}
    return BenchmarkCase.model_validate({**values, "model": model, "rank": rank, "length": length})


def row(
    model: str, rank: int | None, length: int, seconds: float, mode: str = "training"
) -> Measurement:
    own = case(model, rank, length, mode=mode)
    return Measurement(
        **own.model_dump(), batch=1, seconds=seconds, deviation=0, memory_mib=100 * seconds,
        parameters=own.count_parameters(), outcome="measured",
    )  # fmt: skip


def test_parameters_are_those_of_the_formulas() -> None:
    norms, biases = 4 * D, 5 * D + INNER
    dense = LAYERS * (4 * D * D + 2 * D * INNER + biases + norms)
    assert case("transformer").count_parameters() == dense
    assert case("matrix").count_parameters() == dense
    sparse = LAYERS * (20 * (4 * 2 * D + 2 * (D + INNER)) + biases + norms)
    assert case("set_sparse").count_parameters() == sparse
    for rank in (32, 64, 128, 256):
        low = LAYERS * (rank * (4 * 2 * D + 2 * (D + INNER)) + biases + norms)
        assert case("lrt", rank).count_parameters() == low
        for length in (128, 512):
            with_ef = dense + LAYERS * 2 * rank * length
            assert case("linformer", rank, length).count_parameters() == with_ef


def test_every_kind_can_be_built_and_the_transformers_training_comes_first() -> None:
    cases = list(grid(list(MODELS), [256, 128], [32, 64], 3, "cpu"))
    assert set(ENCODER) - {"full"} <= set(MODELS)
    assert len(cases) == len(set(cases)) == 2 * 2 * (8 * 2 + 17)
    assert all(each.count_parameters() > 0 for each in cases[:33])
    for start, length in ((0, 128), (66, 256)):
        assert cases[start] == case("transformer", length=length, mode="training", runs=3)


def test_sparse_maps_infer_in_the_form_that_a_recognizer_uses() -> None:
    for mode, stays in (("training", True), ("inference", False)):
        own = case("set_sparse", length=8, mode=mode)
        model = own.build()
        _runner(own, model, 1)()
        assert any(isinstance(part, SetSparse) for part in model.modules()) == stays


QUICK = ["bench", "efficiency", "--quick", "--ranks", "32", "--runs", "1", "--device", "cpu"]


def test_a_quick_study_has_two_lengths_two_ranks_and_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def ask(cases: list[BenchmarkCase], *_: object) -> None:
        raise Asked(cases)

    monkeypatch.setattr("asr.efficiency.run.study", ask)
    with pytest.raises(Asked) as asked:
        app(["bench", "efficiency", "--quick", "--out", str(tmp_path), "--device", "cpu"])
    assert asked.value.args == (list(grid(["lrt", "linformer"], [128, 512], [32, 128], 2, "cpu")),)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A quick study that was killed on its way and went on; its folder, table and first rows."""
    out = tmp_path_factory.mktemp("study") / "out"
    with start_cli(*QUICK, "--out", out, before="import os; os.setsid()") as run:
        while not (out / ROWS).is_file() or len(read_rows(out / ROWS)) < 3:
            assert not run.ends(0.05)
        os.kill(run.pid, signal.SIGKILL)
        assert run.result().returncode == -signal.SIGKILL
    before = (out / ROWS).read_text()
    # Its worker processes end with it.
    wait_for(lambda: not _session_lives(run.pid), 10)
    assert (out / ROWS).read_text() == before
    resumed = run_cli(*QUICK, "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    return out, resumed.stdout, before


def _session_lives(session: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            return True
    return False


def test_a_killed_study_continues_and_measures_nothing_twice(quick: tuple[Path, str, str]) -> None:
    out, _, before = quick
    assert (out / ROWS).read_text().startswith(before)
    rows = read_rows(out / ROWS)
    expected = list(grid(["lrt", "linformer"], [128, 512], [32], 1, rows[0].device))
    assert [r.case for r in rows] == expected
    again = run_cli(*QUICK, "--out", out)
    assert again.returncode == 0
    assert read_rows(out / ROWS) == rows


def test_a_quick_study_reports_times_memory_and_the_price_of_bert(
    quick: tuple[Path, str, str],
) -> None:
    from matplotlib.image import imread

    out, table, _ = quick
    for number in (4, 5, 6, 7):
        picture = imread(out / f"figure_3_{number}.png")
        assert picture.shape[0] > 300 and picture.std() > 0.05
    found = json.loads((out / "efficiency.json").read_text())
    rows = {(r["mode"], r["model"], r["rank"], r["length"]): r for r in found["rows"]}
    for mode in ("training", "inference"):
        dense = [rows[mode, "transformer", None, length] for length in (128, 512)]
        low_rank = [rows[mode, "lrt", 32, length] for length in (128, 512)]
        for a, b in zip(dense, low_rank, strict=True):
            # Four bytes a weight at the least; a gradient for each in training.
            copies = 2 if mode == "training" else 1
            assert a["memory_mib"] > copies * a["parameters"] * 4 / 2**20 - 2
            assert b["memory_mib"] < a["memory_mib"]
        # 4 times the steps.
        assert dense[1]["seconds"] > 1.5 * dense[0]["seconds"]
    speedups = {
        n: rows["training", "transformer", None, n]["seconds"]
        / rows["training", "lrt", 32, n]["seconds"]
        for n in (128, 512)
    }
    assert found["bert"][-1]["rank"] == 32
    assert found["bert"][-1]["efficiency"] == pytest.approx(
        0.9 * speedups[128] + 0.1 * speedups[512]
    )
    assert "LRT, r = 32 (here / thesis)" in table and re.search(r"\| transformer +\|", table)


def test_what_does_not_fit_is_recorded_and_the_study_continues(tmp_path: Path) -> None:
    cases = [
        case("transformer", length=2048, mode="training"),
        case("transformer", length=128, mode="training"),
        case("lrt", 32, 128, mode="training"),
    ]
    rows = study(cases, CPU, tmp_path, 0.4, lambda _: None)
    assert [r.outcome for r in rows] == ["out of memory", "measured", "measured"]
    assert rows[0].seconds is None and rows[0].memory_mib is None and rows[0].parameters
    assert rows[1].memory_mib and rows[1].memory_mib < 0.4 * 1024
    assert read_rows(tmp_path / ROWS) == rows
    assert study(cases, CPU, tmp_path, 16, lambda _: None) == rows  # known, whatever the memory
    assert "out of memory" in markdown(summarize(rows))


def test_a_wrong_row_is_named_by_its_line(tmp_path: Path) -> None:
    for row in ("cpu,sleeping", "cpu,training,more"):
        (tmp_path / ROWS).write_text(f"device,mode\n{row}\n")
        with pytest.raises(DataError, match="line 2: not a row of device,mode,model"):
            study([case("transformer")], CPU, tmp_path, None, lambda _: None)


@pytest.mark.parametrize("content", [b"device\n\xff\n", b"device\n" + b"x" * 200_000 + b"\n"])
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ROWS).write_bytes(content)
    with pytest.raises(DataError, match=f"{ROWS}: not a CSV file"):
        study([case("transformer")], CPU, tmp_path, None, lambda _: None)


@pytest.mark.parametrize("memory", [math.inf, math.nan, 1e30, 0.0])
def test_an_invalid_memory_is_reported_before_the_work(tmp_path: Path, memory: float) -> None:
    with pytest.raises(ConfigError, match=f"--memory {re.escape(format(memory, 'g'))}: "):
        study([case("transformer")], CPU, tmp_path / "out", memory, lambda _: None)
    assert not (tmp_path / "out").exists()


def test_kinds_may_have_spaces_between_them() -> None:
    assert _kinds("lrt, linformer") == ["lrt", "linformer"]


def test_where_no_claim_was_measured_there_is_no_table_of_them() -> None:
    assert "the thesis" not in markdown(summarize([row("transformer", None, 128, 1.0)]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--kinds", "lrt,gru"),
        ("--memory", "inf"),
        ("--lengths", "128,x"),
        ("--ranks", "0"),
        ("--ranks", "769"),
    ],
)
def test_a_mistake_is_reported_before_the_work(tmp_path: Path, option: str, value: str) -> None:
    result = run_cli("bench", "efficiency", option, value, "--out", tmp_path / "out")
    assert result.returncode == 2 and option in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


# --- against the thesis ----------------------------------------------------------------------


def test_equation_3_10_gives_table_3_2() -> None:
    # BERT is pre-trained at 128 for 90 % of the time, at 512 for 10 %.
    assert efficiency({128: 2.0, 512: 1.0}) == pytest.approx(1.9)
    # The printed dollars tell the efficiency to four digits; the rest of each row follows.
    for printed in THESIS:
        exact = BERT_BASE.usd_high / printed.usd_high
        assert exact == pytest.approx(printed.efficiency, abs=0.0051)
        ours = BERT_BASE.at(printed.rank or 0, exact)
        assert ours.usd_low == pytest.approx(printed.usd_low, abs=1)
        assert ours.co2_kg == pytest.approx(printed.co2_kg, rel=1e-3)
        assert ours.petaflop_s_days == pytest.approx(printed.petaflop_s_days, abs=0.0051)


def test_bert_is_priced_by_the_training_speed_up_of_ranks_measured_at_both_lengths() -> None:
    rows = [row("transformer", None, n, 1.0) for n in (128, 256, 512)]
    rows += [row("lrt", 64, 128, 0.5), row("lrt", 64, 256, 9.0), row("lrt", 64, 512, 1.25)]
    rows += [row("lrt", 32, 128, 0.1)]  # not at 512
    rows += [row("lrt", 64, 128, 0.01, mode="inference")]
    priced = prices(rows)
    assert [p.rank for p in priced] == [64]
    assert priced[0].efficiency == pytest.approx(0.9 * 2 + 0.1 * 0.8)
    assert priced[0].co2_kg == pytest.approx(652.3 / 1.88)


def test_a_claim_is_reproduced_only_where_every_case_agrees() -> None:
    def found(slow: float) -> dict[str, tuple[bool, int]]:
        rows = [row("transformer", None, n, 1.0) for n in (256, 512, 1024)]
        rows += [row("lrt", 64, 256, 0.5), row("lrt", 64, 512, slow), row("lrt", 64, 1024, 9.0)]
        return {f.claim.text: (f.holding == f.cases, f.cases) for f in findings(rows)}

    claim = "LRT is faster than the Transformer (n ≤ 512, r ≤ 128)"
    assert found(0.9)[claim] == (True, 2)
    assert found(1.1)[claim] == (False, 2)
    assert not any("Linformer" in text for text in found(0.9))
