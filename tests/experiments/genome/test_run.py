"""The script: from a cohort to the table, and its options."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asr.errors import ConfigError
from experiments.genome import run as script
from experiments.genome.vcf import Cohort

ROOT = Path(__file__).parents[3]


def run(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.genome.run", *options]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )


@pytest.mark.costly
def test_genotypes_become_the_table_and_a_second_run_continues(tmp_path: Path) -> None:
    options = ("--out", tmp_path, "--simulated-subjects", "60", "--simulated-length", "1200",
               "--simulated-panel", "40", "--tokens", "300", "--vocab", "300", "--epochs", "1",
               "--pretraining-epochs", "1")  # fmt: skip
    result = run(*options)
    assert result.returncode == 0, result.stderr
    assert "SIMULATED" in result.stderr and "simulated cohort" in result.stdout
    lines = result.stdout.splitlines()
    models = list(script.THESIS)
    assert [line.split("|")[1].strip() for line in lines[2:8]] == models
    assert [line.split(": ")[0] for line in lines[8:]] == [
        f"AUC of {model} − {other}" for model, other in script.GAINS.items()
    ]
    path = tmp_path / "results.json"
    found = json.loads(path.read_text())
    assert [(row["split"], row["model"]) for row in found["rows"]] == [
        (split, model) for model in models for split in range(5)
    ]
    assert all(0 <= row[key] <= 100 for row in found["rows"] for key in ("AUC", "F1"))
    (pretrained,) = tmp_path.glob("pretrained-*.safetensors")
    when = pretrained.stat().st_mtime_ns
    for row in found["rows"]:
        row["AUC"] = 12.5
    last = found["rows"].pop()
    path.write_text(json.dumps(found))
    again = run(*options)
    (line,) = [line for line in again.stdout.splitlines() if "logistic" in line]
    assert line.split("|")[2].strip() == "12.50", again.stderr
    rows = json.loads(path.read_text())["rows"]
    assert rows[:-1] == found["rows"] and rows[-1]["model"] == last["model"]
    assert list(tmp_path.glob("pretrained*")) == [pretrained]
    assert pretrained.stat().st_mtime_ns == when


def test_a_wrong_command_is_one_sentence(tmp_path: Path) -> None:
    result = run("--fasta", tmp_path, "--phenotypes", tmp_path / "y", "--baseline", "1",
                 "--out", tmp_path / "out")  # fmt: skip
    assert result.returncode == 3 and "no .fa or .fasta here" in result.stderr
    assert "Traceback" not in result.stderr and not result.stdout
    assert not (tmp_path / "out" / "results.json").exists()  # it would refuse the right command


FILES = "give --vcf, --reference, --phenotypes, --baseline (and --panel), or --fasta"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--simulated-subjects 0", "--simulated-subjects: 0: give a number from 20 to"),
        ("--seed 99999999999", "--seed: 99999999999: give a number from 0 to 2147483647"),
        ("--vocab -1", "--vocab: -1: give a number from 68 to"),
        ("--vocab 99999999999", "--vocab: 99999999999: give a number from 68 to"),
        ("--unread 101", "--unread: 101: give a number from 0 to 100"),
        ("--baseline 1,x", "--baseline: invalid coordinates value: '1,x'"),
        ("--panel p.vcf", FILES),
        ("--vcf v --phenotypes y --baseline 1", FILES),
        ("--vcf v --reference r --fasta f --phenotypes y --baseline 1", FILES),
        ("--fasta f --phenotypes y --baseline 1 --panel p.vcf", FILES),
        ("--phenotypes y", FILES),
        ("--baseline 1,2", FILES),
        ("--fasta f --phenotypes y", FILES),
    ],
)
def test_wrong_options_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str, says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *options.split()])
    with pytest.raises(SystemExit) as caught:
        script.parse_arguments()
    assert caught.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--fasta f --phenotypes y --baseline 1,2",
        "--vcf v --reference r --phenotypes y --baseline 1,2",
        "--vcf v --reference r --phenotypes y --baseline 1,2 --panel p",
    ],
)
def test_complete_options_are_accepted(monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *options.split()])
    found = script.parse_arguments()
    assert found.baseline == ([1, 2] if options else None)
    assert found.unread == (0 if options else 40)  # nothing of a real cohort is hidden


def test_dosages_count_the_haplotypes_without_the_most_common_symbol() -> None:
    haplotypes_P2L = np.array([[[0, 1], [0, 2]], [[0, 2], [3, 2]]])
    cohort = Cohort(["p", "q"], haplotypes_P2L, start=101)
    assert script.count_dosages(cohort, [101, 102]).tolist() == [[0, 1], [1, 0]]
    for outside in (100, 103):
        with pytest.raises(ConfigError, match="the region goes from 101 to 102"):
            script.count_dosages(cohort, [101, outside])


def test_the_gain_is_the_mean_of_paired_differences_with_its_standard_error() -> None:
    fresh, other = [50, 60, 70, 80, 90], [51, 63, 72, 84, 90]  # by 1, 3, 2, 4, 0
    rows = [
        {"model": model, "split": i, "AUC": auc}
        for model, each in ((script.PRETRAINED, other), (script.FRESH, fresh))
        for i, auc in enumerate(each)
    ]
    # variance 10 / 4, over five splits 1 / 2
    assert script.gain(rows, script.PRETRAINED, script.FRESH) == "+2.00 ± 0.71"
