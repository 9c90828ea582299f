"""Arguments, names and folders that end no job, hang nothing and start no interpreter of markup."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asr.audio.recording import Recording
from asr.cli import app
from asr.errors import AudioError, ConfigError, DataError
from asr.transcription import remote
from asr.transcription.jobs import find_tasks
from tests.helpers import Service, beeps, encode_audio, run_cli, tones_recipe, write_recipe

WAV = encode_audio(beeps(1))


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """A block of statements that is interrupted after so long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write_recordings(folder: Path) -> list[Path]:
    """Recordings; the transcript of the first as json has a name of 256 bytes."""
    names = ["b" * 251 + ".wav", "天" * 82 + ".wav", "z.wav"]
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(WAV)
    return [folder / name for name in names]


@pytest.mark.parametrize("where", [pytest.param("here", marks=pytest.mark.slow), "server"])
def test_a_name_that_cannot_be_written_is_an_error_of_its_own(
    tiny_bundle: Path, service: Service, tmp_path: Path, where: str
) -> None:
    """S8: a long name ends neither the job nor its next run; long names that fit are written."""
    long, fitting, short = write_recordings(tmp_path / "in")
    url = f"http://{service.host}:{service.port}"
    given = (
        [tiny_bundle, tmp_path / "in"] if where == "here" else [tmp_path / "in", "--server", url]
    )
    for n_written, n_skipped in ((2, 0), (0, 2)):
        result = run_cli(
            "transcribe", *given, "--out", tmp_path / "out", "--format", "json", timeout=120
        )
        assert result.returncode == 1 and "Traceback" not in result.stderr
        error, summary = result.stderr.splitlines()
        assert str(long) in error and "file name too long" in error and "rename" in error
        assert f"{n_written} written" in summary and f"{n_skipped} were there" in summary
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {fitting.stem + ".json", short.stem + ".json"}


def test_a_folder_in_the_way_of_one_transcript_does_not_end_the_job(
    service: Service, tmp_path: Path
) -> None:
    """S8: nor does a folder of a transcript's name."""
    write_recordings(tmp_path / "in")
    (tmp_path / "out" / "z.txt").mkdir(parents=True)
    url = f"http://{service.host}:{service.port}"
    tasks = find_tasks([str(tmp_path / "in")], tmp_path / "out", "txt")
    results = dict(remote.ask_all(tasks, url, None, "txt", 1, float))
    failed = [task.recording.name for task, r in results.items() if isinstance(r, AudioError)]
    assert failed == ["z.wav"]


def test_a_name_that_is_too_long_to_exist_is_reported(tmp_path: Path) -> None:
    """S8: as an argument, in a pattern, and for the folder of the results."""
    tasks = find_tasks(["x" * 300, str(tmp_path)[:0] + "y" * 300 + ".wav"], tmp_path, "txt")
    assert len(tasks) == 2 and not any(task.is_done for task in tasks)
    with pytest.raises(DataError, match="no file matches"):
        find_tasks(["*" + "x" * 300], None, "txt")
    with pytest.raises(DataError, match="check the pattern"):
        find_tasks([str(tmp_path / "**x")], None, "txt")
    result = run_cli("transcribe", "a.wav", "--server", "http://127.0.0.1:1", "--out", "x" * 300)
    assert result.returncode == 1 and "File name too long" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_only_plain_files_are_recordings(service: Service, tmp_path: Path) -> None:
    """M9: a pipe without a writer hangs nothing, here or on the way to a service."""
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "z.wav").write_bytes(WAV)
    with within(10), pytest.raises(AudioError, match="not a plain file"):
        list(Recording(tmp_path / "pipe.wav", 16000))
    tasks = find_tasks([str(tmp_path), "/dev/zero"], None, "txt")
    url = f"http://{service.host}:{service.port}"
    with within(20):
        pipe, plain, zero = (r for _, r in remote.ask_all(tasks, url, None, "txt", 1, float))
    assert "pipe.wav" in str(pipe) and "not a plain file" in str(zero) and isinstance(plain, str)


def test_an_empty_argument_is_not_the_current_folder(tmp_path: Path) -> None:
    """M9: an unset variable of a shell transcribes nothing."""
    with pytest.raises(ConfigError, match="empty argument"):
        find_tasks([""], None, "txt")


def test_links_to_nowhere_are_reported(tmp_path: Path) -> None:
    """M9: in a folder and in a pattern they are recordings that cannot be opened."""
    (tmp_path / "gone.wav").symlink_to(tmp_path / "nowhere")
    for argument in (tmp_path, tmp_path / "g*.wav"):
        (task,) = find_tasks([str(argument)], None, "txt")
        with pytest.raises(AudioError, match=r"gone\.wav cannot be opened"):
            list(Recording(task.recording, 16000))


@pytest.mark.parametrize("where", [".", "../here", "{tmp_path}"])
def test_a_transcript_does_not_replace_a_recording(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: of a recording whose name ends in .txt, by whatever path."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "a.txt").write_bytes(WAV)
    (tmp_path / "a.txt").symlink_to(folder / "a.txt")
    with pytest.raises(ConfigError, match=r"a\.txt is a recording, which its transcript would"):
        find_tasks(["a.txt"], Path(where.format(tmp_path=tmp_path)), "txt")
    assert len(find_tasks(["a.txt"], Path(), "json")) == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_failure(tmp_path: Path, service: Service, closed: str) -> None:
    """M2: a job by a scheduler may have neither output nor errors to write to."""
    (tmp_path / "z.wav").write_bytes(WAV)
    url = f"http://{service.host}:{service.port}"
    shell = f'"$0" -c "from asr.cli import main; main()" "$@" {closed}'
    command = [sys.executable, "transcribe", str(tmp_path), "--server", url]
    for options in ([], ["--out", str(tmp_path)]):
        done = subprocess.run(
            ["sh", "-c", shell, *command, *options], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "z.txt").is_file()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_results_are_utf_8_whatever_the_locale(encoding: str) -> None:
    """M3: Chinese was a traceback where standard output is ASCII."""
    code = "import sys; from asr.cli import main, options; options.app.command()(say); main()"
    code = f"def say() -> None: options.show('天气')\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code, "say"], check=False, capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode()) == (0, "天气\n"), done.stderr


def test_markup_in_paths_is_not_interpreted(
    tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M14: brackets in --out are printed as they are."""
    import asr.export.export
    import asr.train.run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asr.train.run, "train", lambda *_: None)
    monkeypatch.setattr(asr.export.export, "export", lambda *_: 0.0)
    recipe = write_recipe(tmp_path / "recipe.yaml", tones_recipe(tmp_path))
    for verb, given in (("train", recipe), ("export", tiny_bundle)):
        result = CliRunner().invoke(app, [verb, str(given), "--out", "o[/red]"])
        assert result.exit_code == 0, result.exception
        assert "o[/red]" in result.stdout


def test_what_a_manifest_holds_is_escaped_in_messages(tmp_path: Path) -> None:
    """M8: error messages are one line without control characters, on a terminal or not."""
    result = run_cli("info", "no\x1b[2J\nasr: all is well\u202e.yaml", cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert r"no\x1b[2J\nasr: all is well\u202e.yaml" in result.stderr
