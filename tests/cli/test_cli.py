"""The four uses through the real command line, and what it says when it cannot."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from lhotse import CutSet
from lhotse.utils import fastcopy

import asr
from asr.data.manifest import load_cuts, text_of
from tests.helpers import RATE, run_cli, speak


@pytest.fixture(scope="module")
def bundle(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that bundle: the command line writes into it."""
    return Path(shutil.copytree(learned, tmp_path_factory.mktemp("cli") / "tones"))


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One sentence with these words, this exit code, no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    sentence = " ".join(result.stderr.split())
    for word in words:
        assert word in sentence


def test_evaluate_writes_what_it_prints(bundle: Path, tones: Path) -> None:
    result = run_cli("evaluate", bundle, tones / "test.jsonl.gz", "--format", "json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    kept = json.loads((bundle / "evaluation.json").read_text("utf-8"))
    assert {k: kept[k] for k in printed} == printed
    cuts = load_cuts(tones / "test.jsonl.gz")
    length = sum(len(text_of(c)) for c in cuts)
    errors = printed["substitutions"] + printed["insertions"] + printed["deletions"]
    assert printed["reference_length"] == length
    assert printed["cer"] == pytest.approx(errors / length)
    assert printed["cer"] < 0.2 and "wer" not in printed and "words" not in printed
    assert printed["utterances"] == len(cuts) and printed["skipped"] == 0
    assert printed["rtf"] > 0 and 0 < printed["mean_length"] < 5
    assert "CER" in (bundle / "README.md").read_text("utf-8")
    info = json.loads(run_cli("info", bundle, "--format", "json").stdout)
    assert info["evaluation"]["cer"] == printed["cer"]
    assert info["parameters"] == sum(info["parts"].values())


def test_evaluate_writes_all_hypotheses(bundle: Path, tones: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    result = run_cli(
        "evaluate", bundle, tones / "test.jsonl.gz", "--out", out, "--beam", "1",
        "--confidence", "0.9", "--format", "json",
    )  # fmt: skip
    printed, cuts = json.loads(result.stdout), load_cuts(tones / "test.jsonl.gz")
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert {line["id"]: line["reference"] for line in lines} == {c.id: text_of(c) for c in cuts}
    assert all(line.keys() == {"id", "errors", "reference", "hypothesis"} for line in lines)
    errors = printed["substitutions"] + printed["insertions"] + printed["deletions"]
    assert sum(line["errors"] for line in lines) == errors
    assert printed["decoding"]["beam_size"] == 1
    assert printed["decoding"]["confidence_threshold"] == 0.9


def test_evaluate_shows_as_many_of_the_worst_as_asked(
    bundle: Path, tones: Path, tmp_path: Path
) -> None:
    wrong = [fastcopy(cut, supervisions=[fastcopy(cut.supervisions[0], text="五" * 9)])
             for cut in load_cuts(tones / "test.jsonl.gz")]  # fmt: skip
    CutSet.from_cuts(wrong).to_file(tmp_path / "wrong.jsonl.gz")
    options = ("--worst", "2", "--format", "json")
    printed = json.loads(run_cli("evaluate", bundle, tmp_path / "wrong.jsonl.gz", *options).stdout)
    assert len(wrong) > 2 and len(printed["worst"]) == 2


def test_version_and_completion() -> None:
    result = run_cli("--version")
    assert result.returncode == 0 and result.stdout == f"lrt-asr {version('lrt-asr')}\n"
    words = {"_ASR_COMPLETE": "complete_bash", "COMP_WORDS": "asr tra", "COMP_CWORD": "1"}
    command = "import sys; sys.argv[0] = 'asr'; from asr.cli import main; main()"
    completed = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, **words}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert completed.stdout.split() == ["train", "train-lm", "transcribe"], completed.stderr


@pytest.mark.costly
def test_transcribe_many_files_of_many_kinds(bundle: Path, tmp_path: Path) -> None:
    wave = speak("三一四", 99)
    sf.write(tmp_path / "a.wav", wave, RATE, subtype="PCM_24")
    sf.write(tmp_path / "b.flac", np.stack([wave, wave], 1), RATE)
    sf.write(tmp_path / "c.ogg", wave, RATE)
    (tmp_path / "bad.wav").write_bytes(b"not audio")
    files = [tmp_path / name for name in ("a.wav", "bad.wav", "b.flac", "c.ogg", "none.wav")]
    result = run_cli("transcribe", bundle, *files)
    refused(result, 1, "bad.wav", "none.wav")
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [Path(name).name for name, _ in lines] == ["a.wav", "b.flac", "c.ogg"]
    assert [text for _, text in lines] == ["三一四"] * 3
    one = run_cli("transcribe", bundle, files[0], "--format", "json")
    parsed = json.loads(one.stdout)
    expected = asr.load(bundle).transcribe(files[0])
    assert parsed["text"] == expected.text == "三一四"
    assert parsed["score"] == pytest.approx(expected.score, abs=1e-4)
    assert parsed["duration"] == pytest.approx(len(wave) / RATE)


def test_batches_give_the_texts_and_scores_that_each_utterance_gives_alone(bundle: Path) -> None:
    import torch

    model = asr.load(bundle)
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice(list("一二三四五"), size=rng.integers(1, 7))) for _ in range(16)]
    waves = [torch.from_numpy(speak(text, i) * 0.3 ** (i % 3)) for i, text in enumerate(texts)]
    for i in range(0, 16, 3):  # noise makes the choice between texts close
        waves[i] = waves[i] + torch.from_numpy(rng.normal(0, 0.2, len(waves[i])).astype(np.float32))
    waves.append(torch.zeros(10))
    together = model.hypotheses(waves)
    for wave, found in zip(waves, together, strict=True):
        (alone,) = model.hypotheses([wave])
        assert [h.tokens for h in alone] == [h.tokens for h in found]
        assert [h.score for h in alone] == pytest.approx([h.score for h in found], abs=1e-4)


@pytest.mark.parametrize("seconds", [0.0005, 0.004, 0.02, 0.05])
def test_very_short_and_silent_audio_is_no_error(
    bundle: Path, tmp_path: Path, seconds: float
) -> None:
    n = max(1, int(seconds * RATE))
    for name, wave in (
        ("zero", np.zeros(n)),
        ("noise", np.random.default_rng(0).normal(0, 0.1, n)),
    ):
        sf.write(tmp_path / f"{name}.wav", wave, RATE)
        result = asr.load(bundle).transcribe(tmp_path / f"{name}.wav")
        assert result.duration == pytest.approx(n / RATE)
        assert len(result.text) <= seconds * 25


@pytest.mark.costly
def test_info_needs_neither_corpus_nor_vocabulary(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    recipe = root / "recipes/aishell1/small_real.yaml"
    result = run_cli("info", recipe, "--format", "json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "embedding, output projection, CTC head, since tokenizer.vocab_size" in result.stderr
    parts = json.loads(result.stdout)["parts"]
    sized = ("--set", "tokenizer.vocab_size=500", "--format", "json")
    whole = json.loads(run_cli("info", recipe, *sized, cwd=tmp_path).stdout)["parts"]
    assert whole.items() > parts.items() and "embedding" not in parts
    result = run_cli("info", root / "recipes/hkust/lrt_r50.yaml", cwd=tmp_path)
    assert "7.79 M" in result.stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["train", "none.yaml"], 2, ["none.yaml", "cannot be read"]),
        (["train", "recipe.yaml", "--set", "model.rank=3"], 2, ["model.rank", "unknown key"]),
        (["evaluate", "nowhere", "cuts.jsonl.gz"], 4, ["nowhere", "config.yaml"]),
        (["transcribe", "nowhere", "a.wav"], 4, ["nowhere"]),
        (["prepare", "aishell1", "nowhere", "out"], 3, ["nowhere"]),
        (["prepare", "demo", "out", "--train", "0"], 2, ["train"]),
        (["train", "recipe.yaml", "--device", "cuda:7", "--out", "run"], 2, ["cuda:7", "cpu"]),
        (["train", "recipe.yaml", "--out", "recipe.yaml"], 1, ["recipe.yaml", "in the way"]),
        (["train", "recipe.yaml", "--set", "data.train=none.gz", "--out", "r"], 3, ["none.gz"]),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path, tones: Path, args: list[str], code: int, words: list[str]
) -> None:
    from tests.helpers import tones_recipe, write_recipe

    write_recipe(tmp_path / "recipe.yaml", tones_recipe(tones))
    refused(run_cli(*args, cwd=tmp_path), code, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("MemoryError()", "asr: out of memory"),
        ("RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", "asr: out of memory"),
        ("RuntimeError('a bug')", "Traceback"),
    ],
)
def test_out_of_memory_is_reported_and_a_bug_is_not_hidden(raised: str, message: str) -> None:
    code = f"import asr.cli\ndef fail(): raise {raised}\nasr.cli.app = fail\nasr.cli.main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1 and message in result.stderr
    assert ("Traceback" in result.stderr) == (message == "Traceback")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run_cli("--debug", "train", "none.yaml", cwd=tmp_path)
    assert result.returncode != 0
    assert "Traceback" in result.stderr and "ConfigError" in result.stderr


def test_a_reader_that_leaves_is_no_error(bundle: Path, tmp_path: Path) -> None:
    sf.write(tmp_path / "a.wav", speak("一"), RATE)
    command = [sys.executable, "-c", "from asr.cli import main; main()", "transcribe", str(bundle)]
    files = [str(tmp_path / "a.wav")] * 3
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, *files], **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait() == 1
