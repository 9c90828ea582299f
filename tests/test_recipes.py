"""`recipes/<corpus>/run.sh MODEL` is the four commands, from a corpus on disk to text."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from asr.config import load_config
from asr.reporting.published import PAPERS
from asr.reporting.results import describe
from asr.train.run import train
from tests.helpers import make_tree, run_cli, tones_recipe, write_recipe

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The recipes alone, with a tiny model beside them: runs do not write into this checkout."""
    for corpus, rate in (("aishell1", 16000), ("hkust", 8000)):
        shutil.copytree(ROOT / "recipes" / corpus, tmp_path / "checkout" / "recipes" / corpus)
        values = tones_recipe(
            Path("data") / corpus,
            features={"sample_rate": rate},
            model={"ctc_weight": 0.0},
            decoding={"ctc_weight": 0.0},
            training={"epochs": 3},
        )
        write_recipe(tmp_path / "checkout" / "recipes" / corpus / "tiny.yaml", values)
    return tmp_path / "checkout"


# The command `asr` of the scripts: each call has a folder, and `answer` in this process runs it.
ASR = """#!/bin/sh
call=$(mktemp -d)
printf '%s\\0' "$PWD" "$@" > "$call/asked"
mkfifo "$call/code"
echo "$call" > "$CALLS"
code=$(cat "$call/code")
cat "$call/out"
cat "$call/err" >&2
rm -r "$call"
exit "$code"
"""


def answer(calls: Path) -> None:
    while call := calls.read_text().strip():
        code = 70
        try:
            cwd, *args = Path(call, "asked").read_text("utf-8").split("\0")[:-1]
            result = run_cli(*args, cwd=cwd)
            Path(call, "out").write_text(result.stdout, "utf-8")
            Path(call, "err").write_text(result.stderr, "utf-8")
            code = result.returncode
        finally:
            Path(call, "code").write_text(str(code))  # for which the script waits


def run(checkout: Path, corpus: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    asr, calls = checkout / "asr.sh", checkout / "calls"
    asr.write_text(ASR)
    asr.chmod(0o755)
    os.mkfifo(calls)
    answers = threading.Thread(target=answer, args=(calls,))
    answers.start()
    # The script lives in a checkout and is called from anywhere.
    try:
        return subprocess.run(
            [checkout / "recipes" / corpus / "run.sh", *args], cwd=checkout.parent,
            env={**os.environ, "ASR": str(asr), "CALLS": str(calls)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        calls.write_text("\n")
        answers.join()


@pytest.mark.costly
def test_from_a_corpus_on_disk_to_text(checkout: Path) -> None:
    make_tree(checkout.parent)
    options = ("--set", "training.epochs=1")
    result = run(checkout, "aishell1", "tiny", "data_aishell", *options)
    assert result.returncode == 0, result.stderr
    bundle = checkout / "exp" / "aishell1" / "tiny"
    evaluation = json.loads((bundle / "evaluation.json").read_text("utf-8"))
    assert evaluation["cuts"] == "data/aishell1/test.jsonl.gz" and evaluation["utterances"] == 1
    assert "epochs: 1\n" in (bundle / "config.yaml").read_text("utf-8")
    test_wav = "data_aishell/wav/test/S0764/BAC009S0764W0001.wav"
    assert result.stdout.split("transcript of ")[1].splitlines()[0].endswith(f"{test_wav}:")


@pytest.mark.costly
def test_a_prepared_corpus_is_not_asked_for_and_a_run_continues(
    checkout: Path, tones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tones, checkout / "data" / "hkust")
    monkeypatch.chdir(checkout)
    recipe = Path("recipes", "hkust", "tiny.yaml")
    train(load_config(recipe, ["training.epochs=1"]), Path("exp", "hkust", "tiny"))
    result = run(checkout, "hkust", "tiny")
    assert result.returncode == 0, result.stderr
    assert "epoch 3/3" in result.stderr and "epoch 1/3" not in result.stderr


def test_the_papers_models_leave_no_text_out_and_have_the_sizes_in_the_readme() -> None:
    for (corpus, recipe), printed in PAPERS.items():
        folder = ROOT / "recipes" / corpus
        config = load_config(folder / f"{recipe}.yaml")
        assert config.decoding.confidence_threshold == 0
        size = describe(config)["parameters"] / 1e6
        row = f"| `{recipe}` | {size:.2f} | {printed.parameters_m:g} |"
        assert row in (folder / "README.md").read_text("utf-8")


def test_without_a_model_it_says_how(checkout: Path) -> None:
    result = run(checkout, "hkust")
    assert result.returncode != 0 and "usage: recipes/hkust/run.sh MODEL" in result.stderr
    assert not (checkout / "exp").exists()


@pytest.mark.parametrize(("cores", "processes"), [("1", 1), ("2", 2), ("16", 2), ("no torch", 1)])
def test_the_demo_trains_in_two_processes_where_there_are_two_cores(
    tmp_path: Path, cores: str, processes: int
) -> None:
    shutil.copytree(ROOT / "recipes" / "demo", tmp_path / "recipes" / "demo")
    (tmp_path / "data" / "demo" / "wav" / "test").mkdir(parents=True)
    counts = f'if [ "$1" = -c ]; then [ "{cores}" -ge 1 ] && exec echo {cores}; exit 1; fi\n'
    for name, line in (("asr", ""), ("python", counts)):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\n{line}echo "$(basename "$0") $*" >> "$CALLS"\n')
        program.chmod(0o755)
    calls = tmp_path / "calls"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    subprocess.run([tmp_path / "recipes" / "demo" / "run.sh"], env=env, check=True)
    (call,) = (line for line in calls.read_text().splitlines() if " train " in line)
    program, *words = call.split()
    assert program == ("asr" if processes == 1 else "python")
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node {processes} -m asr.cli"
    assert processes == 1 or torchrun in " ".join(words)
    assert "recipes/demo/lrt.yaml" in words and "--resume" in words
    changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    recipe = ROOT / "recipes" / "demo" / "lrt.yaml"
    one, each = load_config(recipe), load_config(recipe, changes)
    assert each.data.batch_seconds * processes == one.data.batch_seconds
