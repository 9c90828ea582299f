"""The efficiency study: what it measures, what it survives, what the thesis says."""

import json
import math
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from asr.cli import app
from asr.cli.bench import _kinds
from asr.efficiency.bert_cost import BERT_BASE, THESIS, efficiency, prices
from asr.efficiency.break_even import break_even_length, break_evens
from asr.efficiency.claims import Finding, findings
from asr.efficiency.grid import MATRIX, MODELS, BenchmarkCase, Measurement, grid
from asr.efficiency.measure import _runner
from asr.efficiency.run import ROWS, study
from asr.efficiency.tables import markdown, summarize
from asr.errors import ConfigError, DataError
from asr.model.encoder import Encoder
from asr.model.projection import SetSparse
from asr.model.transformer import ModelConfig
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
        assert case("lrt_matrix", rank).count_parameters() == low
        for length in (128, 512):
            with_ef = dense + LAYERS * 2 * rank * length
            assert case("linformer", rank, length).count_parameters() == with_ef
            assert case("linformer_matrix", rank, length).count_parameters() == with_ef


def test_every_kind_can_be_built_and_the_transformers_training_comes_first() -> None:
    cases = list(grid(list(MODELS), [256, 128], [32, 64], 3, "cpu"))
    assert set(ENCODER) - {"full"} <= set(MODELS)
    assert len(cases) == len(set(cases)) == 2 * 2 * (10 * 2 + 17)
    assert all(each.count_parameters() > 0 for each in cases[:37])
    for start, length in ((0, 128), (74, 256)):
        assert cases[start] == case("transformer", length=length, mode="training", runs=3)


def test_sparse_maps_infer_in_the_form_that_a_recognizer_uses() -> None:
    for mode, stays in (("training", True), ("inference", False)):
        own = case("set_sparse", length=8, mode=mode)
        model = own.build()
        _runner(own, model, 1)()
        assert any(isinstance(part, SetSparse) for part in model.modules()) == stays


@pytest.mark.parametrize("model", MATRIX)
def test_a_model_forms_its_matrices_of_weights_only_where_it_says_so(model: str) -> None:
    names: set[str] = set()

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            names.add(str(func))
            return func(*args, **(kwargs or {}))

    rank = None if model == "transformer" else 4
    for name, forms in ((model, False), (MATRIX[model], True)):
        own = case(name, rank, length=8)
        names.clear()
        with Operations():
            _runner(own, own.build(), 1)()
        assert any("softmax" in operation for operation in names) == forms


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


def found(rows: list[Measurement], matrices: bool = False) -> dict[str, Finding]:
    """Return the findings by their first cells."""
    return {f.cells[0]: f for f in findings(rows) if f.matrices == matrices}


def test_a_claim_is_reproduced_only_where_every_case_agrees() -> None:
    def speed(slow: float) -> dict[str, Finding]:
        rows = [row("transformer", None, n, 1.0) for n in (256, 512, 1024)]
        rows += [row("lrt", 64, 256, 0.5), row("lrt", 64, 512, slow), row("lrt", 64, 1024, 9.0)]
        return found(rows)

    claim = "LRT is faster than the Transformer (n ≤ 512, r ≤ 128): training"
    assert speed(0.9)[claim].cells[1:3] == ["reproduced", "2 of 2"]
    assert speed(1.1)[claim].cells[1:3] == ["not reproduced", "1 of 2"]
    unmeasured = speed(0.9)["LRT is faster than Linformer (n ≤ 256): training"]
    assert unmeasured.cells[1:] == ["not measured", "—", "—", "—"]


def test_linformers_memory_is_claimed_from_256_and_its_gain_from_length_to_length() -> None:
    rows = [row("transformer", None, n, float(n)) for n in (128, 256, 512, 1024)]
    seconds = {128: 500.0, 256: 200.0, 512: 300.0, 1024: 700.0}
    rows += [row("linformer", 32, n, value) for n, value in seconds.items()]
    memory = found(rows)["Linformer takes less memory than the Transformer (n ≥ 256): training"]
    assert memory.cells[1:3] == ["reproduced", "3 of 3"]
    assert memory.least == (pytest.approx(256 / 200), 256, 32)
    gain = found(rows)[
        "Linformer gains speed on the Transformer with every length (n ≥ 256): training"
    ]
    # 1.28, 1.71, 1.46: it grows once and falls once.
    assert gain.cells[1:3] == ["not reproduced", "1 of 2"]
    assert gain.least == (pytest.approx(512 * 300 / 700 / 256), 1024, 32)


def test_at_512_each_model_is_ahead_where_the_thesis_has_it() -> None:
    rows = []
    for mode, seconds, memory in (("training", 1.0, 3.0), ("inference", 3.0, 1.0)):
        rows += [row("linformer", 64, 512, 2.0, mode).model_copy(update={"memory_mib": 2.0})]
        rows += [row("lrt", 64, 512, seconds, mode).model_copy(update={"memory_mib": memory})]
    verdicts = {text: f.cells[1] for text, f in found(rows).items() if "n = 512" in text}
    assert verdicts == dict.fromkeys(
        (
            "LRT is faster than Linformer (n = 512): training",
            "LRT takes less memory than Linformer (n = 512): inference",
            "Linformer is faster than LRT (n = 512): inference",
            "Linformer takes less memory than LRT (n = 512): training",
        ),
        "reproduced",
    )


def test_the_size_of_lrt_is_a_line_over_the_rank() -> None:
    rows = [row("transformer", None, 128, 1.0)]
    rows += [row("lrt", rank, 128, 1.0) for rank in (32, 64, 128, 256)]
    claim = "LRT's size is a line over the rank: size"
    assert found(rows)[claim].cells[1:3] == ["reproduced", "2 of 2"]
    rows[-1] = rows[-1].model_copy(update={"parameters": rows[-1].parameters * 1.02})
    assert found(rows)[claim].cells[1:3] == ["not reproduced", "1 of 2"]


def test_berts_price_falls_by_30_percent_at_an_efficiency_of_10_by_7() -> None:
    claim = "Pre-training BERT-base as an LRT saves more than 30 % (r ≤ 256): training"
    for seconds, verdict in ((0.69, "reproduced"), (0.71, "not reproduced")):
        rows = [row("transformer", None, n, 1.0) for n in (128, 512)]
        rows += [row("lrt", 64, n, seconds) for n in (128, 512)]
        assert found(rows)[claim].cells[1:3] == [verdict, f"{int(seconds < 0.7)} of 1"]


def test_models_with_matrices_have_findings_of_their_own() -> None:
    rows = [row("lrt", 64, 1024, 1.0), row("linformer", 64, 1024, 2.0)]
    assert not found(rows, matrices=True)
    rows += [row("lrt_matrix", 64, 1024, 2.0), row("linformer_matrix", 64, 1024, 1.0)]
    claim = "Linformer is faster than LRT (n ≥ 1024): training"
    assert found(rows)[claim].cells[1] == "not reproduced"
    own = found(rows, matrices=True)
    assert own.keys() == {
        "Linformer is faster than LRT (n ≥ 1024): training, matrices formed",
        "Linformer takes less memory than LRT (n ≥ 1024): training, matrices formed",
    }
    assert {f.cells[1] for f in own.values()} == {"reproduced"}


@pytest.mark.parametrize(("rank", "length"), [(32, 4384), (64, 4160), (128, 3712), (256, 2816)])
def test_the_break_even_length_by_operations(rank: int, length: int) -> None:
    assert break_even_length(D, rank) == length


def test_at_the_break_even_length_pytorch_counts_equally_many_operations() -> None:
    kinds = {
        "lrt": ({"kind": "low_rank", "rank": 4}, {"kind": "full"}),
        "linformer": ({"kind": "dense"}, {"kind": "linformer", "rank": 4}),
    }

    def operations(kind: str, length: int) -> int:
        projection, attention = kinds[kind]
        values = {"d_model": 48, "d_inner": 192, "n_heads": 4, "projection": projection}
        values["encoder"] = {"n_layers": 1, "attention": attention}
        encoder = Encoder(ModelConfig.model_validate(values)).eval()
        mask_BS = torch.ones(1, length, dtype=torch.bool)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            encoder(torch.zeros(1, length, 48), mask_BS)
        return int(counter.get_total_flops())

    n = round(break_even_length(48, 4))
    assert operations("lrt", n) == operations("linformer", n)
    assert operations("lrt", n - 1) < operations("linformer", n - 1)
    assert operations("lrt", n + 1) > operations("linformer", n + 1)


def test_the_measured_break_even_lies_on_the_line_between_two_lengths() -> None:
    lengths = (128, 256, 512, 1024)
    # n² and 700 n are equal at 700; at rank 64 LRT is ahead everywhere, at 128 nowhere.
    rows = [row("lrt", 32, n, n**2) for n in lengths]
    rows += [row("linformer", 32, n, 700 * n) for n in lengths]
    rows += [row("lrt", 64, n, 1.0) for n in lengths]
    rows += [row("linformer", 64, n, 2.0) for n in lengths]
    rows += [row("lrt", 128, n, 2.0) for n in lengths]
    rows += [row("linformer", 128, n, 2.0) for n in lengths]
    measured = {(e.rank, e.measure): e for e in break_evens(rows)}
    assert {key: each.cell for key, each in measured.items()} == {
        (rank, measure): cell
        for rank, cell in ((32, "700"), (64, "above 1024"), (128, "below 128"))
        for measure in ("seconds", "memory_mib")
    }
    assert (measured[32, "seconds"].longest, measured[32, "seconds"].shortest) == (512, 1024)
    table = markdown(summarize(rows))
    assert re.search(r"\| r = 32 +\| +4384 +\| +700 +\| +700 +\|", table)
