"""Jobs by URL: real processes against a server of S3, killed at random, with a fake clock each."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import soundfile as sf

from asr.errors import AudioError, ConfigError, DataError
from asr.runtime.storage import RemoteFile, find_remote
from asr.runtime.stores import Folder, version
from asr.transcription.jobs import SUFFIXES, find_tasks
from asr.transcription.shares import plan
from tests.helpers import RATE, read_all, run_cli, speak, start_cli, wait_for, with_keys

N = 40  # recordings, and so many of them a share
SHARE = 4
FAILING = [f"{i:02}.wav" for i in range(8, 12)]  # a share as a whole
KILLER = "21.wav"

# Two hosts of two processes, which are forked from one that has loaded torch. argv: specification.
HOSTS = """
import asyncio, json, os, random, signal, sys, time
import s3fs, torch
import asr.bundle, asr.transcription.recognizer
from asr.transcription import jobs, leases, shared
from asr.transcription.shares import announce, plan
given = json.loads(sys.argv[1])
torch.set_num_threads(1)
jobs._SHARE_FILES, leases.EXPIRY = given["share"], given["expiry"]
log = os.open(given["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
decode = shared._Decoder.__call__

async def logged(self, share, items):
    names = [share.outputs[item] for item in items]
    os.write(log, json.dumps(names).encode() + b"\\n")
    async for item, outcome in decode(self, share, items):
        await asyncio.sleep(given["pause"])
        if given["killer"] in str(self._work.job.tasks[share.outputs[item]].recording):
            os.kill(os.getpid(), signal.SIGKILL)
        yield item, outcome

shared._Decoder.__call__ = logged

def start(host):
    if pid := os.fork():
        return pid
    real = time.time
    time.time = lambda: real() + 600 * host
    from pathlib import Path
    job = plan([given["in"]], given["out"], "json", {})
    announce(job, given["out"])
    work = shared.Work(job, given["out"], "json", Path(given["bundle"]), "cpu", False, {}, 1)
    try:
        asyncio.run(shared.work_on(work, 0, lambda share: None))
        os._exit(0)
    finally:
        os._exit(1)

rng = random.Random(given["seed"])
running = {start(i % 2): i % 2 for i in range(given["processes"])}
n_killed, n_died, kills = 0, 0, given["kills"]
next_kill = time.monotonic() + 0.5
while running:
    time.sleep(0.02)
    if kills and time.monotonic() > next_kill:
        os.kill(rng.choice(list(running)), signal.SIGKILL)
        kills, n_killed = kills - 1, n_killed + 1
        next_kill = time.monotonic() + rng.uniform(0.3, 1.2)
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            host = running.pop(pid)
            assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status), status
            if os.WIFSIGNALED(status):
                n_died += 1
                running[start(host)] = host
print(json.dumps({"killed": n_killed, "died": n_died}))
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("in")
    for i in range(N):
        path = root / f"{i:02}.wav"
        sf.write(path, speak("一二三四五"[: 1 + i % 5], i), RATE)
        if path.name in FAILING:
            path.write_bytes(b"no audio")
    return root


def run_hosts(**given: Any) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", HOSTS, json.dumps(given)],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.costly
def test_each_recording_is_written_once_whatever_is_killed(
    s3: Any, recordings: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    for path in recordings.iterdir():
        s3.pipe_file(f"job/in/{path.name}", path.read_bytes())
    common = {"in": "s3://job/in", "bundle": str(tiny_bundle), "share": SHARE, "seed": 5}
    calm = run_hosts(
        **common, out=f"file://{tmp_path}/calm", log=str(tmp_path / "calm.log"), processes=1,
        kills=0, pause=0.0, killer=KILLER, expiry=1.0,
    )  # fmt: skip
    found = run_hosts(
        **common, out="s3://job/out", log=str(tmp_path / "log"), processes=4, kills=6, pause=0.05,
        killer=KILLER, expiry=3.0,
    )  # fmt: skip
    assert calm["died"] == 3 and found["died"] >= found["killed"] == 6

    listing = s3.find("job/out")
    written = {Path(name).name: s3.cat_file(name) for name in listing if ".asr" not in name}
    failed = [json.loads(s3.cat_file(name)) for name in listing if ".failed." in name]
    reasons = {each["output"]: each["reason"] for each in failed}
    bad = {f"out/{Path(name).stem}.json" for name in (*FAILING, KILLER)}
    assert bad == reasons.keys() and "died 3 times" in reasons["out/21.json"]
    assert "not a recording" in reasons["out/08.json"]
    assert len(written) == N - len(bad)
    same = {path.name: path.read_bytes() for path in (tmp_path / "calm").glob("*.json")}
    asked = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert written == same, "also in the share of what kills"

    decoded = Counter(name for names in asked for name in names)
    again = {Path(name).stem for name, n in decoded.items() if n > 1 and name not in bad}
    assert set(decoded) == {f"out/{i:02}.json" for i in range(N)}
    assert len({int(stem) // SHARE for stem in again}) <= found["died"]
    shown = run_cli("jobs", "status", "s3://job/out", "--format", "json", before=with_keys())
    told = json.loads(shown.stdout)
    assert (told["shares"], told["done"], told["failed"]) == (N // SHARE, N // SHARE, len(bad))
    assert told["running"] == told["silent"] == 0 and told["hours_done"] > 0


@pytest.mark.costly
def test_the_command_line_reads_and_writes_by_url(
    s3: Any, recordings: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    for path in tiny_bundle.iterdir():
        s3.pipe_file(f"job/model/{path.name}", path.read_bytes())
    for i in (0, 1, 8):
        content = (recordings / f"{i:02}.wav").read_bytes()
        s3.pipe_file(f"job/few/{i % 2}/{i:02}.wav", content)
    out = f"file://{tmp_path}/out"
    args = ["transcribe", "s3://job/model", "s3://job/few", "--out", out]
    done = run_cli(*args, before=with_keys(TMPDIR=str(tmp_path)))
    assert done.returncode == 1 and f"2 are in {out}, 1 failed" in done.stderr
    assert done.stderr.count("s3://job/few/0/08.wav is not a recording") == 1
    plain = run_cli("transcribe", tiny_bundle, recordings / "00.wav")
    assert (tmp_path / "out" / "0" / "00.txt").read_text("utf-8") == plain.stdout
    assert not [path for path in tmp_path.iterdir() if path.name != "out"], "no copy is left"


def test_what_two_write_is_written_by_one(s3: Any, tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/store", "s3://job/store", "memory://store"):
        folder = Folder(url)
        assert folder.list("a") == {} and not folder.exists("a/b")
        assert folder.create("a/b", b"one") and not folder.create("a/b", b"two")
        assert folder.read("a/b") == b"one" and folder.exists("a/b")
        before = version(folder.list("a")["b"])
        assert version(folder.list("a")["b"]) == before
        folder.replace("a/b", b"new")
        assert version(folder.list("a")["b"]) != before and folder.read("a/b") == b"new"
        assert folder.folders("") == ["a"]
    assert not list((tmp_path / "store" / "a").glob(".asr*")), "no temporary file is left"
    with pytest.raises(ConfigError, match="on the condition that there is none"):
        Folder("hdfs://host/out")


def test_recordings_are_found_and_read_by_url(recordings: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("a/0.wav", "a/b/1.wav", "a/notes.txt"):
        memory.pipe_file(f"/found/{name}", (recordings / "03.wav").read_bytes())
    below = [str(path) for _, path in find_remote("memory://found", SUFFIXES)]
    assert below == ["a/0.wav", "a/b/1.wav"]
    assert [str(p) for _, p in find_remote("memory://found/a/*.txt", SUFFIXES)] == ["notes.txt"]
    ((file, path),) = find_remote("memory://found/a/0.wav", SUFFIXES)
    assert str(path) == "0.wav" and file.size == (recordings / "03.wav").stat().st_size
    wave = read_all(recordings / "03.wav", RATE).wave
    assert (read_all(file, RATE).wave == wave).all()
    with pytest.raises(AudioError, match="cannot be opened"):
        read_all("memory://found/a/0.wav", RATE)  # only what the command line gives is a URL
    with pytest.raises(DataError, match="no recording there"):
        find_tasks(["memory://nothing"], None, "txt")


def test_a_small_recording_is_asked_for_again(
    recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asr.runtime import storage

    path = recordings / "04.wav"
    memory, _ = storage.file_system("memory://x")
    memory.pipe_file("/small.wav", path.read_bytes())
    file, answers = RemoteFile("memory://small.wav", path.stat().st_size), [b"", path.read_bytes()]

    def answer(*_: object, **__: object) -> bytes:
        if not answers or not (content := answers.pop(0)):
            raise ConnectionResetError("by peer")
        return content

    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    monkeypatch.setattr(type(memory), "cat_file", answer)
    assert (read_all(file, RATE).wave == read_all(path, RATE).wave).all() and not answers
    with pytest.raises(AudioError, match=r"memory://small\.wav cannot be read .*by peer"):
        read_all(file, RATE)


def test_a_broken_connection_is_no_end_of_a_recording(
    recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders in C forget errors of Python: the recording would only seem to be truncated."""
    from fsspec.implementations.memory import MemoryFile

    from asr.runtime import storage

    storage.file_system("memory://x")[0].pipe_file("/cut.wav", (recordings / "04.wav").read_bytes())
    file, read = RemoteFile("memory://cut.wav", 0), MemoryFile.read
    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    n_reads = 0

    def once(self: MemoryFile, *args: int) -> bytes:
        nonlocal n_reads
        n_reads += 1
        if n_reads in (2, 4):
            raise ConnectionResetError("by peer")
        return read(self, *args)

    monkeypatch.setattr(MemoryFile, "read", once)
    whole = read_all(recordings / "04.wav", RATE)
    assert (read_all(file, RATE).wave == whole.wave).all() and n_reads > 4

    def broken(self: MemoryFile, *args: int) -> bytes:
        if self.tell() > 2000:
            raise ConnectionResetError("by peer")
        return read(self, min(args[0], 1000)) if args and args[0] > 0 else read(self, 1000)

    monkeypatch.setattr(MemoryFile, "read", broken)
    with pytest.raises(AudioError, match=r"memory://cut\.wav cannot be read .*by peer"):
        read_all(file, RATE)


def test_a_package_that_is_missing_is_named(tiny_bundle: Path) -> None:
    code = "import sys; sys.modules['s3fs'] = sys.modules['gcsfs'] = None"
    for url, needs in (
        ("s3://b/a.wav", "needs the extra 'cloud': pip install 'lrt-asr[cloud]'"),
        ("gs://b/a.wav", "needs pip install gcsfs"),
    ):
        done = run_cli("transcribe", tiny_bundle, url, before=code)
        assert done.returncode == 2 and needs in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = run_cli("transcribe", tiny_bundle, "x.wav", "--out", "memory://x", "--overwrite")
    assert done.returncode == 2 and "write nothing twice" in done.stderr


def test_shares_have_the_same_names_wherever_the_recordings_lie(
    recordings: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "elsewhere"
    copied.mkdir()
    for path in recordings.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    one, other, longer, txt = (
        plan([str(folder)], "memory://out", format, options)
        for folder, format, options in (
            (recordings, "json", {"beam_size": 4}), (copied, "json", {"beam_size": 4}),
            (copied, "json", {"beam_size": 5}), (copied, "txt", {"beam_size": 4}),
        )
    )  # fmt: skip
    assert one.name == other.name and one.shares == other.shares
    assert len({one.name, longer.name, txt.name}) == 3
    assert not {s.name for s in one.shares} & {s.name for s in longer.shares}
    with pytest.raises(ConfigError, match="only one machine has"):
        plan(["-"], "memory://out", "txt", {})


def test_a_machine_that_is_told_to_end_gives_back_what_it_holds(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for i in range(12):
        sf.write(tmp_path / "in" / f"{i}.wav", speak("一二三四五" * 20, i), RATE)
    out = tmp_path / "out"
    with start_cli("transcribe", tiny_bundle, tmp_path / "in", "--out", f"file://{out}") as run:
        wait_for(lambda: run.ends(0.001) or list(out.rglob("*.lease.1")), 120)
        os.kill(run.pid, signal.SIGTERM)
        done = run.result()
    assert done.returncode == 130
    assert len(list(out.rglob("*.free.1"))) == 1 and not list(out.rglob("*.done"))
    assert not list(out.rglob(".asr-*.tmp"))
