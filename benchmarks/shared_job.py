"""Run a job by four processes on two hosts; kill the processes again and again.

    python -m benchmarks.shared_job --recordings 500

A host is a network namespace of this machine with a name and a monotonic clock of its own (a time
namespace), which needs root. The time of day has no namespace; Python on a host has one that is off
by minutes. S3 is moto's server, with versions of all objects, which tell how often each was
written. The recordings of one share are no audio. One more recording kills its process, in the
undisturbed run too.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asr.transcription import jobs, leases, shared
from asr.transcription.attempts import Failure, Output, Share
from asr.transcription.shares import announce, plan
from benchmarks import record
from benchmarks.record import Result, Value

_TINY = [
    "model.d_model=32", "model.d_inner=64", "model.n_heads=2", "model.encoder.n_layers=1",
    "model.projection.rank=8", "model.frontend.channels=[4, 4]", "model.decoder.n_layers=1",
    "decoding.beam_size=2",
]  # fmt: skip
_CLOCKS = (420, -300)  # seconds by which the hosts' times of day are off
_SHARE, _EXPIRY = 10, 10.0  # recordings; seconds, of the disturbed run


@dataclass(frozen=True)
class Host:
    """The settings of a host, which kills one of its processes every `kill_every` seconds."""

    name: str
    out: str
    bundle: str
    log: str
    clock: float = 0.0
    killer: str = ""
    processes: int = 2
    kill_every: float = 0.0
    expiry: float = 1.0
    seed: int = 0


class _Log:
    """Lines of JSON by many processes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, **told: object) -> None:
        """Write a line, whole."""
        os.write(self._file, json.dumps(told).encode() + b"\n")


def run_host(host: Host) -> None:
    """Be a host: fork processes, kill them, and start others in their places."""
    import torch

    import asr.bundle
    import asr.transcription.recognizer  # noqa: F401

    torch.set_num_threads(1)
    jobs._SHARE_FILES, leases.EXPIRY = _SHARE, host.expiry
    log, rng = _Log(host.log), random.Random(host.seed)
    if host.name:
        socket.sethostname(host.name)
        now = time.time
        time.time = lambda: now() + host.clock
    log.write(host=socket.gethostname(), clock=time.time(), monotonic=time.monotonic())
    _log_decoding(log, host.killer)
    running = {_fork(host) for _ in range(host.processes)}
    next_kill = _next(rng, host.kill_every)
    while running:
        time.sleep(0.05)
        if time.monotonic() > next_kill:
            os.kill(rng.choice(sorted(running)), signal.SIGKILL)
            next_kill = _next(rng, host.kill_every)
        for process in list(running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                running.remove(process)
                if os.WIFSIGNALED(status):
                    log.write(died=process)
                    running.add(_fork(host))
                elif os.WEXITSTATUS(status):
                    raise SystemExit(f"a process ended with {os.WEXITSTATUS(status)}")


def _next(rng: random.Random, every: float) -> float:
    return time.monotonic() + (rng.uniform(0.5, 1.5) * every if every else 1e9)


def _fork(host: Host) -> int:
    """Start a process, which works until all is done."""
    if process := os.fork():
        return process
    code = 1
    try:
        job = plan(["s3://job/in"], host.out, "json", {})
        announce(job, host.out)
        work = shared.Work(job, host.out, "json", Path(host.bundle), "cpu", False, {}, 1)
        asyncio.run(shared.work_on(work, 0, lambda _: None))
        code = 0
    finally:
        os._exit(code)


def _log_decoding(log: _Log, killer: str) -> None:
    """Write down which recordings are decoded; one of them kills its process."""
    decode, work = shared._Decoder.__call__, leases.Worker._work

    async def logged(
        self: shared._Decoder, share: Share, items: Sequence[int]
    ) -> AsyncIterator[tuple[int, Output | Failure]]:
        log.write(decoded=[share.outputs[item] for item in items])
        async for item, outcome in decode(self, share, items):
            if killer and killer in share.outputs[item]:
                os.kill(os.getpid(), signal.SIGKILL)
            yield item, outcome

    async def claimed(self: leases.Worker, share: Share, claim: int) -> None:
        log.write(process=os.getpid(), share=share.outputs)
        await work(self, share, claim)
        log.write(process=os.getpid(), share=[])

    shared._Decoder.__call__, leases.Worker._work = logged, claimed  # type: ignore[method-assign]


@contextmanager
def _namespace(index: int) -> Iterator[tuple[str, str]]:
    """Yield the name of a network namespace, and the address of this machine in it."""
    name, link = f"asr{os.getpid()}-{index}", f"a{os.getpid()}-{index}"
    ours, theirs = f"10.213.{index}.1", f"10.213.{index}.2"
    _ip(f"netns add {name}")
    try:
        _ip(f"link add {link} type veth peer name eth0 netns {name}")
        _ip(f"addr add {ours}/30 dev {link}")
        _ip(f"link set {link} up")
        _ip(f"-n {name} addr add {theirs}/30 dev eth0")
        _ip(f"-n {name} link set eth0 up")
        yield name, ours
    finally:
        _ip(f"netns del {name}")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def _start(host: Host, index: int, port: int, stack: ExitStack) -> Any:
    """Start a host in a namespace of its own."""
    namespace, address = stack.enter_context(_namespace(index))
    command = [
        *f"ip netns exec {namespace} unshare --uts --fork --time --monotonic".split(),
        str(1000 * index), "env", f"AWS_ENDPOINT_URL=http://{address}:{port}",
        sys.executable, "-m", "benchmarks.shared_job", "--host", json.dumps(asdict(host)),
    ]  # fmt: skip
    return subprocess.Popen(command)


def _prepare(root: Path, n: int, seconds: float) -> tuple[Path, set[str], str]:
    """Write a bundle, and recordings to S3; return the bundle and the names of bad recordings.

    The last item returned is the name of the recording that kills its process.
    """
    from benchmarks.local_s3 import file_system, write_bundle, write_recordings

    write_bundle(root / "bundle", _TINY)
    s3 = file_system()
    s3.mkdir("job")
    versions = {"Status": "Enabled"}
    s3.call_s3("put_bucket_versioning", Bucket="job", VersioningConfiguration=versions)
    paths = write_recordings(root / "in", n, seconds)
    for path in paths[_SHARE : 2 * _SHARE]:
        path.write_bytes(b"no audio")
    for path in paths:
        s3.pipe_file(f"job/in/{path.name}", path.read_bytes())
    stems = [path.stem for path in paths]
    return root / "bundle", set(stems[_SHARE : 2 * _SHARE]), stems[2 * _SHARE + 1]


def _count(log: Path, bad: set[str], killer: str) -> dict[str, float]:
    """Return counts from a log: of deaths, shares in flight, and recordings decoded again."""
    decoded, at_work = Counter[str](), dict[int, list[str]]()
    n_deaths, in_flight, clocks = 0, list[list[str]](), []
    for told in map(json.loads, log.read_text().splitlines()):
        if "decoded" in told:
            decoded.update(Path(name).stem for name in told["decoded"])
        elif "share" in told:
            at_work[told["process"]] = [Path(name).stem for name in told["share"]]
        elif "died" in told:
            n_deaths += 1
            in_flight += [at_work[told["died"]]] if at_work.get(told["died"]) else []
        else:
            clocks.append((told["clock"], told["monotonic"]))
    apart = [abs(max(times) - min(times)) for times in zip(*clocks, strict=True)]
    again = {name for name, n in decoded.items() if n > 1 and name not in bad}
    return {
        "seconds between the times of day": apart[0],
        "seconds between the monotonic clocks": apart[1],
        "processes that died": n_deaths,
        "shares in flight at a death": len(in_flight),
        "how often the recording that kills was decoded": decoded[killer],
        "recordings decoded more than once": len(again),
        "of them in no share in flight at a death": len(again - {n for s in in_flight for n in s}),
        "times that these were decoded": sum(decoded[name] for name in again),
    }


def _compare(root: Path) -> dict[str, float]:
    """Return how what is in S3 compares with what an undisturbed run wrote."""
    from benchmarks.local_s3 import file_system

    s3 = file_system()
    names = [name for name in s3.find("job/out") if ".asr" not in name]
    listed = s3.call_s3("list_object_versions", Bucket="job", Prefix="out/0")  # not out/.asr
    assert not listed["IsTruncated"]
    versions = Counter(each["Key"] for each in listed["Versions"])
    found = {Path(name).name: s3.cat_file(name) for name in names}
    same = {path.name: path.read_bytes() for path in (root / "calm").glob("*.json")}
    reasons = [name for name in s3.find("job/out") if ".failed." in name]
    return {
        "recordings": len(s3.find("job/in")),
        "transcripts written": len(found),
        "healthy recordings without a transcript": len(same.keys() - found.keys()),
        "recordings recorded as failed": len(reasons),
        "transcripts written more than once": sum(versions[n[len("job/") :]] != 1 for n in names),
        "equal to the undisturbed run's in each byte": sum(found[k] == same.get(k) for k in found),
    }


def run(args: argparse.Namespace) -> dict[str, float]:
    """Do the job twice, undisturbed and disturbed; return the counts by name."""
    from benchmarks.local_s3 import s3_server, use_s3

    with TemporaryDirectory() as folder, s3_server() as port, ExitStack() as stack:
        root = Path(folder)
        use_s3(port)
        bundle, bad, killer = _prepare(root, args.recordings, args.seconds)
        calm = Host(
            "", f"file://{root}/calm", str(bundle), f"{root}/calm.log", killer=killer, processes=1
        )
        command = [sys.executable, "-m", "benchmarks.shared_job", "--host"]
        subprocess.run([*command, json.dumps(asdict(calm))], check=True)
        record.progress("undisturbed run done")
        wild = replace(
            calm, out="s3://job/out", log=f"{root}/log", processes=2,
            kill_every=2 * args.kill_every, expiry=_EXPIRY,
        )  # fmt: skip
        start = time.monotonic()
        hosts = [
            _start(replace(wild, name=f"host{i}", clock=off, seed=args.seed + i), i, port, stack)
            for i, off in enumerate(_CLOCKS)
        ]
        assert not any(host.wait() for host in hosts), "a host ended with an error"
        seconds = time.monotonic() - start
        return _compare(root) | _count(root / "log", bad, killer) | {"seconds": seconds}


def main() -> None:
    """Run the job and print what came of it; the exit code is 1 if anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=1.0, help="Of a recording, in the mean.")
    parser.add_argument("--kill-every", type=float, default=3.0, help="Seconds, in the mean.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    record.add_option(parser)
    args = parser.parse_args()
    if args.host:
        run_host(Host(**json.loads(args.host)))
        return
    found = run(args)
    rows: list[list[Value]] = [[name, float(value)] for name, value in found.items()]
    title = f"{args.recordings} recordings, four processes on two hosts, kill -9 at random"
    record.publish(args, "scale", [Result(title=title, columns={"": "", "n": ",.0f"}, rows=rows)])
    wrong = (
        "healthy recordings without a transcript", "transcripts written more than once",
        "of them in no share in flight at a death",
    )  # fmt: skip
    is_other = found["equal to the undisturbed run's in each byte"] < found["transcripts written"]
    sys.exit(int(is_other or any(found[name] for name in wrong)))


if __name__ == "__main__":
    main()
