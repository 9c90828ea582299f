"""Jobs over many recordings through the real command line: found, spread, killed, resumed."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import soundfile as sf
import torch

import asr
from asr.bundle import Bundle
from asr.config import Config
from asr.errors import ConfigError, DataError
from asr.tokenizer import Tokenizer, TokenizerConfig
from asr.transcription.batch import choose_jobs
from asr.transcription.jobs import Task, find_tasks
from tests.helpers import RATE, TONES, encode, run_cli, speak, start_cli, tones_recipe, wait_for

N = 150  # recordings: more than two processes get at a time


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: the texts do not matter here."""
    folder = tmp_path_factory.mktemp("random") / "model"
    config = Config.model_validate(tones_recipe(Path("data")))
    tokenizer = Tokenizer.train(["".join(TONES)], TokenizerConfig())
    Bundle.create(config, tokenizer).save(folder, "random")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recordings")
    for i in range(N):
        path = root / f"{i % 3}" / f"{i:03}.wav"
        path.parent.mkdir(exist_ok=True)
        sf.write(path, speak("一二三四"[: 1 + i % 4], i), RATE)
    (root / "0" / "notes.txt").write_text("not a recording")
    (root / "1" / "bad.MP3").write_bytes(b"not audio")
    return root


def names(tasks: list) -> list[str]:
    return [task.recording.name for task in tasks]


def test_files_folders_and_globs_are_found_once(folder: Path, tmp_path: Path) -> None:
    everything = find_tasks([str(folder)], tmp_path, "srt")
    assert len(everything) == N + 1 and "notes.txt" not in names(everything)
    assert everything[0].out == tmp_path / "0" / "000.srt"
    files = [str(folder / "0" / "003.wav"), "none.wav"]
    assert names(find_tasks([*files, str(folder / "*" / "00*.wav")], None, "txt")) == [
        "003.wav", "none.wav", *(f"00{i}.wav" for i in (0, 6, 9, 1, 4, 7, 2, 5, 8)),
    ]  # fmt: skip
    (inside,) = find_tasks([str(folder / "*" / "004.wav")], tmp_path, "txt")
    assert inside.out == tmp_path / "1" / "004.txt"
    assert len(find_tasks([str(folder / "**" / "*.wav")], tmp_path, "txt")) == N


def test_rarer_formats_of_a_folder_are_found_but_not_twice(tmp_path: Path) -> None:
    for name in ("a.sph", "b.W64", "c.au", "c.snd", "d.sph", "d.wav", "e.txt", "._d.wav"):
        (tmp_path / name).touch()
    assert names(find_tasks([str(tmp_path)], tmp_path / "out", "txt")) == [
        "a.sph", "b.W64", "c.au", "d.wav",  # d.sph is what d.wav was made of, c.snd is c.au
    ]  # fmt: skip
    assert names(find_tasks([str(tmp_path / "*.wav")], None, "txt")) == ["d.wav"]


def test_what_stands_for_nothing_or_for_two_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\*\.wav: no file matches"):
        find_tasks([str(folder / "x*.wav")], None, "txt")
    with pytest.raises(DataError, match="no recording in this folder"):
        find_tasks([str(tmp_path)], None, "txt")
    (tmp_path / "000.flac").touch()
    with pytest.raises(ConfigError, match=r"000\.txt"):
        files = [str(folder / "0" / "000.wav"), str(tmp_path / "000.flac")]
        find_tasks(files, tmp_path, "txt")


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_job_continues_where_it_was(
    bundle: Path, folder: Path, tmp_path: Path, jobs: int
) -> None:
    args = ["transcribe", bundle, folder, "--out", tmp_path, "--format", "json"]
    with start_cli(*args, "--jobs", str(jobs)) as run:
        while not list(tmp_path.rglob("*.json")) and not run.ends(0.001):
            pass
        children = psutil.Process(run.pid).children()
        os.kill(run.pid, signal.SIGKILL)
        assert run.result().returncode == -signal.SIGKILL
    assert bool(children) == (jobs > 1)
    wait_for(lambda: not any(map(runs, children)), 20)  # they end with it
    done = list(tmp_path.rglob("*.json"))
    assert 0 < len(done) < N, "killed half-way"
    before = {path: path.stat().st_mtime_ns for path in done}
    for path in done:
        assert json.loads(path.read_text("utf-8"))["duration"] > 0, "what is there is whole"

    again = run_cli(*args)
    assert again.returncode == 1 and "bad.MP3" in again.stderr
    assert f"{N - len(done)} written" in again.stderr
    assert f"{len(done)} were there" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == before
    assert len(list(tmp_path.rglob("*.json"))) == N
    model = asr.load(bundle, "cpu")
    for name in ("0/000", "2/149"):
        found = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
        assert found["text"] == model.transcribe(folder / f"{name}.wav").text
    if jobs == 1:
        once_more = run_cli(*args, "--overwrite")
        assert f"{N} written" in once_more.stderr and "0 were there" in once_more.stderr


@pytest.mark.costly
def test_processes_print_in_order_what_one_prints(bundle: Path, folder: Path) -> None:
    one = run_cli("transcribe", bundle, folder)
    two = run_cli("transcribe", bundle, folder, "--jobs", "2", env={**os.environ, "LC_ALL": "C"})
    assert one.stdout == two.stdout and len(one.stdout.splitlines()) == N
    assert one.stdout.splitlines()[0].startswith(f"{folder / '0' / '000.wav'}\t")


def test_standard_input_is_one_recording(bundle: Path, folder: Path, tmp_path: Path) -> None:
    for recording in (encode(tmp_path / "a.webm"), folder / "0" / "003.wav"):
        out = tmp_path / recording.stem
        os.mkfifo(pipe := tmp_path / f"{recording.stem}.pipe")
        options = ["-", "--format", "json", "--out", out]
        with start_cli("transcribe", bundle, *options, stdin=pipe) as run:
            pipe.write_bytes(recording.read_bytes())
            done = run.result()
        assert done.returncode == 0, done.stderr
        found = json.loads((out / "stdin.json").read_text("utf-8"))
        assert found["text"] == asr.load(bundle, "cpu").transcribe(recording).text
    empty = run_cli("transcribe", bundle, "-")
    assert empty.returncode == 1 and "holds no audio at all" in empty.stderr
    with pytest.raises(ConfigError, match="give no others with it"):
        find_tasks(["-", "a.wav"], None, "txt")


@pytest.mark.parametrize("format", ["txt", "json"])
def test_a_name_that_is_not_utf_8_is_printed_as_it_is(
    bundle: Path, tmp_path: Path, format: str
) -> None:
    recordings = [
        os.fsdecode(bytes(tmp_path) + b"/" + name) for name in (b"\xc4\xe3.wav", b"z.wav")
    ]
    for recording in recordings:
        with Path(recording).open("wb") as file:
            sf.write(file, speak("一"), RATE, format="WAV")
    strict = "import sys; sys.stdout.reconfigure(encoding='utf-8', errors='strict')"
    result = run_cli("transcribe", bundle, tmp_path, "--format", format, before=strict)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    named = [json.loads(x)["file"] if format == "json" else x.split("\t")[0] for x in lines]
    assert sorted(named) == sorted(recordings)
    if format == "json":
        result.stdout.encode()  # as JSON must be, whatever the names are


@pytest.mark.costly
def test_what_the_caller_started_continues(bundle: Path, folder: Path, tmp_path: Path) -> None:
    code = f"""if __name__ == "__main__":
        import multiprocessing, time
        from pathlib import Path
        from asr.transcription.batch import transcribe_all
        from asr.transcription.jobs import find_tasks
        tasks = find_tasks([{str(folder / "0" / "00*.wav")!r}], None, "txt")
        bundle = Path({str(bundle)!r})
        results = transcribe_all(tasks, bundle, "cpu", False, {{}}, 2, lambda n: None)
        next(results)
        other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
        other.start()
        assert len(multiprocessing.active_children()) > 1
        results.close()
        assert multiprocessing.active_children() == [other]
        other.terminate()"""
    script = tmp_path / "run.py"
    script.write_text(code)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_progress_off_a_terminal_is_a_line_now_and_then(
    bundle: Path, folder: Path, tmp_path: Path
) -> None:
    soon = "import asr.cli.options as o; o._LINE_SECONDS = 0.0"
    arguments = ["transcribe", bundle, folder / "0", folder / "2", "--out", tmp_path]
    result = run_cli(*arguments, before=soon)
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert re.fullmatch(r"transcribing: \d+/100, \d+%", lines[0])
    assert lines[-1].startswith("100 written") and not result.stdout
    assert "transcribing" not in run_cli(*arguments, "--overwrite").stderr, "too soon"
    again = run_cli(*arguments, "--jobs", "2")
    assert again.returncode == 0 and "100 were there already" in again.stderr


def test_subtitles_of_several_recordings_need_a_folder(bundle: Path, folder: Path) -> None:
    result = run_cli("transcribe", bundle, folder, "--format", "srt")
    assert result.returncode == 2 and "--out DIR" in result.stderr
    assert "Traceback" not in result.stderr
    alone = run_cli("transcribe", bundle, folder / "0" / "003.wav", "--format", "vtt")
    assert alone.returncode == 0 and alone.stdout.startswith("WEBVTT\n")


def test_much_to_do_is_shared_by_a_process_for_each_thread(tmp_path: Path) -> None:
    large, small = tmp_path / "large.wav", tmp_path / "small.wav"
    with large.open("wb") as file:
        file.truncate(30_000_000)
    small.write_bytes(b"RIFF")
    before = torch.get_num_threads()
    try:
        for threads, usual in ((1, 1), (3, 3), (64, 8)):
            torch.set_num_threads(threads)
            assert choose_jobs([Task(large, None), Task(small, None)], "cpu") == usual
            assert choose_jobs([Task(small, None), Task(tmp_path / "none.wav", None)], "cpu") == 1
    finally:
        torch.set_num_threads(before)
