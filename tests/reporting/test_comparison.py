"""Runs in the papers' tables: numbers worked out by hand, nothing missing turned into a number."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from asr.cli.evaluate import evaluate
from asr.config import dump_config, load_config
from asr.errors import BundleError, DataError
from asr.evaluation.cer import ErrorCounts
from asr.evaluation.records import Evaluation
from asr.reporting.comparison import as_json, compare, read_run
from asr.reporting.cost import Cost, write_cost
from asr.reporting.plots import draw_losses
from asr.reporting.published import PAPERS
from asr.reporting.results import read_evaluation, write_evaluation
from asr.reporting.tables import markdown
from tests.helpers import read_card, run_cli

ROOT = Path(__file__).parents[2]
LARGE, R50 = 30_475_980, 8_651_468  # parameters, added up by hand layer by layer


def run_folder(tmp_path: Path, name: str, *changes: str) -> Path:
    """A run as `asr train` leaves it, of a shipped recipe, not evaluated yet."""
    folder = tmp_path / "exp" / name
    folder.mkdir(parents=True)
    config = load_config(ROOT / "recipes" / f"{name}.yaml", list(changes))
    (folder / "config.yaml").write_text(dump_config(config), "utf-8")
    return folder


def evaluated(
    folder: Path,
    cer: float,
    rtf: float,
    device: str = "cpu",
    beam: int = 8,
    cuts: str = "t.jsonl",
    words: ErrorCounts | None = None,
    int8: bool = False,
) -> None:
    search = load_config(folder / "config.yaml").decoding
    result = Evaluation(
        cer=cer, substitutions=1, insertions=0, deletions=0, reference_length=10, mean_length=23.5,
        rtf=rtf, audio_seconds=9.0, utterances=2, skipped=0, device=device,
        decoding=search.model_copy(update={"beam_size": beam}), worst=(),
        wer=words.rate if words else None, words=words,
    )  # fmt: skip
    write_evaluation(folder, Path(cuts), result, int8=int8)


def history(folder: Path, *losses: tuple[object, object]) -> None:
    (folder / "training").mkdir(exist_ok=True)
    with (folder / "training" / "history.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["epoch", "train_loss", "val_loss", "val_cer_percent", "seconds"])
        lines.writerows([i, *pair, 0.9, 60] for i, pair in enumerate(losses, 1))


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """A baseline and an LRT of AiShell-1, evaluated on both devices."""
    large = run_folder(tmp_path, "aishell1/transformer_large")
    small = run_folder(tmp_path, "aishell1/lrt_r50")
    for folder, cer, cpu, gpu in ((large, 0.20, 0.4, 0.025), (small, 0.185, 0.25, 0.02)):
        evaluated(folder, cer, gpu, "cuda:0")
        evaluated(folder, cer, cpu, "cpu")
    write_cost(
        small,
        Cost(seconds=90, operations=2.5e15, energy_kwh=1.5, metered_kwh=0, co2_kg=0.7, grid="CHN"),
    )
    history(small, (3.0, 2.5), (2.0, 1.75), (1.0, 1.9))
    return [large, small]


def cells(text: str, table: str, model: str) -> list[str]:
    """A row of the table whose heading begins so."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {table}"))
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start:]]
    return next(row[1:] for row in rows if row[0] == model)


def test_a_run_is_compared_with_its_baseline_and_the_papers(runs: list[Path]) -> None:
    result = run_cli("report", *runs)
    assert result.returncode == 0, result.stderr
    text = result.stdout
    assert "Evaluated on t.jsonl (2 utterances, beam 8). Baseline: transformer_large." in text
    size = f"{LARGE / 1e6:.2f}"
    assert cells(text, "model (thesis table 4.2)", "transformer_large") == [
        f"{size} / 25.10", "20.00 / 13.49",
    ]  # fmt: skip
    assert cells(text, "model (thesis table 4.2)", "lrt_r50") == ["8.65 / 8.70", "18.50 / 13.60"]
    assert cells(text, "model (thesis table 4.3)", "lrt_r50") == [
        "+1.50 / -0.11", f"{100 * (1 - R50 / LARGE):.2f} / 65.34", "1.25 / 1.30", "1.60 / 1.23",
        "23.50 / 23.19",
    ]  # fmt: skip
    assert cells(text, "training", "lrt_r50") == [
        "3", "1.000", "1.750", "2", "1.5", "2.5", "1.5 kWh (estimated, no meter)", "0.7",
    ]  # fmt: skip
    assert cells(text, "training", "transformer_large") == ["—"] * 8


def test_only_a_corpus_with_words_has_a_wer(runs: list[Path]) -> None:
    large, small = runs
    assert "WER" not in markdown(compare([read_run(large), read_run(small)]))
    evaluated(small, 0.1, 0.1, words=ErrorCounts(1, 1, 1, 12))
    assert read_evaluation(small).words == ErrorCounts(1, 1, 1, 12)
    assert "WER 25.00%: 1 sub" in (small / "README.md").read_text("utf-8")
    assert run_cli("info", small).stdout.splitlines()[-1] == "CER 10.00%, WER 25.00% on t.jsonl"
    rows = compare([read_run(large), read_run(small)])
    assert "| WER (%) |" in " ".join(markdown(rows).split())
    first = "model (thesis table 4.2)"
    assert cells(markdown(rows), first, "lrt_r50")[1:] == ["10.00 / 13.60", "25.00 / —"]
    assert cells(markdown(rows), first, "transformer_large")[2] == "— / —"
    measured = [row["measured"] for row in json.loads(as_json(rows))]
    assert "wer" not in measured[0] and measured[1]["wer"] == 0.25


def test_json_has_the_same_and_files_are_written(runs: list[Path], tmp_path: Path) -> None:
    out, plot = tmp_path / "report.json", tmp_path / "losses.png"
    result = run_cli("report", *runs, "--format", "json", "--out", out, "--plot", plot)
    assert result.returncode == 0 and not result.stdout, result.stderr
    large, small = json.loads(out.read_text("utf-8"))
    measured = small["measured"]
    assert small["baseline"] == "transformer_large"
    assert measured["delta_cer"] == pytest.approx(0.015)
    assert measured["speedup_cpu"] == pytest.approx(1.6)
    assert measured["speedup_gpu"] == pytest.approx(1.25)
    assert measured["compression"] == pytest.approx(1 - R50 / LARGE, abs=1e-6)
    assert large["measured"]["delta_cer"] == large["measured"]["compression"] == 0
    assert small["paper"]["cer"] == pytest.approx(0.136)
    assert small["run"]["cost"]["operations"] == 2.5e15 and large["run"]["cost"] is None
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")


def test_what_is_missing_is_never_a_number(tmp_path: Path) -> None:
    lonely = run_folder(tmp_path, "hkust/lrt_r50")
    write_cost(lonely, Cost(seconds=60, energy_kwh=None, metered_kwh=None, co2_kg=None))
    (row,) = compare([read_run(lonely)])
    assert row.baseline is None
    known = {"parameters_m": pytest.approx(7.79, abs=0.01)}
    assert row.measured.model_dump(exclude_none=True) == known
    text = markdown([row])
    assert "Evaluated on nothing yet. Baseline: none among the runs." in text
    assert cells(text, "model (thesis table 4.3)", "lrt_r50") == [
        "— / -1.53", "— / 64.54", "— / 1.35", "— / 1.22", "— / 22.49",
    ]  # fmt: skip
    assert cells(text, "training", "lrt_r50")[-2:] == ["unknown", "—"]
    assert cells(text, "training", "lrt_r50")[:4] == ["—"] * 4


def test_only_evaluations_of_the_same_test_are_compared(runs: list[Path]) -> None:
    large, small = runs
    evaluated(small, 0.1, 0.1, beam=4)
    for row in compare([read_run(large), read_run(small)])[1:]:
        assert row.measured.delta_cer is row.measured.speedup_cpu is None
        assert row.measured.cer == 0.1 and row.measured.compression is not None
    for changes in ({"cuts": "other.jsonl"}, {"int8": True}):
        evaluated(small, 0.1, 0.1, **changes)
        measured = compare([read_run(large), read_run(small)])[1].measured
        assert measured.delta_cer is measured.speedup_cpu is None
    both = markdown(compare([read_run(large), read_run(small)]))
    assert "t.jsonl (2 utterances, beam 8) and t.jsonl (2 utterances, beam 8, in 8 bits)" in both


def test_the_largest_dense_model_is_the_baseline_where_the_large_one_is_absent(
    tmp_path: Path,
) -> None:
    names = ["transformer_small", "transformer_medium", "lrt_r100"]
    runs = [read_run(run_folder(tmp_path, f"hkust/{name}")) for name in names]
    other = read_run(run_folder(tmp_path, "aishell1/lrt_r50"))
    rows = compare([*runs, other])
    assert [row.baseline for row in rows] == ["transformer_medium"] * 3 + [None]
    own = read_run(run_folder(tmp_path, "aishell1/small_real", "tokenizer.vocab_size=500"))
    (row,) = compare([own])
    assert row.paper is None
    assert cells(markdown([row]), "model (thesis table 4.2)", "small_real")[0].startswith("1.")


def test_an_evaluation_keeps_the_speed_of_each_device(runs: list[Path]) -> None:
    def speed() -> dict[str, float]:
        kept = read_evaluation(runs[0])
        assert kept is not None
        return kept.speed

    assert speed() == {"cuda": 0.025, "cpu": 0.4}
    evaluated(runs[0], 0.2, 0.3)
    assert speed() == {"cuda": 0.025, "cpu": 0.3}
    evaluated(runs[0], 0.2, 0.1, int8=True)
    assert speed() == {"cpu": 0.1}, "8 bits are another setting"
    evaluated(runs[0], 0.2, 0.3, cuts="other.jsonl")
    assert speed() == {"cpu": 0.3}


def test_the_card_names_the_options_of_an_evaluation(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = runs[0], load_config(runs[0] / "config.yaml")
    kept = read_evaluation(folder)
    assert kept
    result = Evaluation(**kept.model_dump(exclude={"cuts", "speed", "int8"}))
    monkeypatch.setattr("asr.cli.evaluate.evaluate_cuts", lambda *_: (result, []))
    for device, options in (
        ("cpu", " --beam 4 --lm 'an lm.arpa' --lm-weight 0.3 --confidence 0.0 --int8"),
        ("cuda", ""),
    ):
        model = SimpleNamespace(config=config, device=torch.device(device))
        monkeypatch.setattr("asr.load", lambda *_, model=model: model)
        given = {"lm": Path("an lm.arpa"), "lm_weight": 0.3, "beam": 4}
        evaluate(
            folder, Path("t.jsonl"), int8=True, **(given | {"confidence": 0.0} if options else {})
        )
        assert f", by `asr evaluate {folder} t.jsonl{options}`." in read_card(folder)
        found = read_evaluation(folder)
        assert found and found.int8 == bool(options), "a GPU computes nothing in 8 bits"


def test_the_picture_shows_every_run(runs: list[Path], tmp_path: Path) -> None:
    from matplotlib.image import imread

    def draw(*folders: Path) -> tuple[int, bytes]:
        draw_losses([read_run(folder) for folder in folders], tmp_path / "p.png")
        pixels = imread(tmp_path / "p.png")
        return pixels.shape[1], pixels.tobytes()

    width, alone = draw(*runs)
    history(runs[0], (3, 3), ("", "nan"), (1, 2))
    _, both = draw(*runs)
    telephone = run_folder(tmp_path, "hkust/lrt_r50")
    history(telephone, (3, 3), (2, 2))
    wide, _ = draw(*runs, telephone)
    assert alone != both and wide == pytest.approx(2 * width, abs=2)
    with pytest.raises(DataError, match="no losses to draw"):
        draw_losses([read_run(run_folder(tmp_path, "hkust/lrt_r75"))], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("evaluation.json", "{"),
        ("cost.json", "[]"),
        ("training/history.csv", "epoch,train_loss,val_loss,val_cer_percent,seconds\n1,2,3,4,x\n"),
        ("training/history.csv", "epoch,loss\n1,2\n"),
        ("config.yaml", "model: 3"),
    ],
)
def test_a_damaged_file_is_named(runs: list[Path], file: str, content: str) -> None:
    (runs[1] / file).write_text(content)
    result = run_cli("report", *runs)
    assert result.returncode == 4
    assert file in result.stderr and "Traceback" not in result.stderr


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"has no config\.yaml"):
        read_run(tmp_path)


def test_the_papers_numbers_agree_with_one_another() -> None:
    for (corpus, _), printed in PAPERS.items():
        base = PAPERS[corpus, "transformer_large"]
        assert printed.parameters_m and printed.cer and base.parameters_m and base.cer
        if printed.delta_cer is not None:
            saved = 1 - printed.parameters_m / base.parameters_m
            assert printed.compression == pytest.approx(saved, abs=1e-4)  # the thesis truncates
            assert printed.delta_cer == pytest.approx(base.cer - printed.cer, abs=6e-5)
    for corpus, name in PAPERS:
        assert (ROOT / "recipes" / corpus / f"{name}.yaml").is_file()
