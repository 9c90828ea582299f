"""Compare ways to transcribe the same recordings on two cores, among them S3, two hosts and Ray.

    python -m benchmarks.scale_throughput

Each case is the command line as a user would type it, its start included. The cases take turns.
`lists` is what other toolkits leave to the user: a command for each half of the files. `loop` is a
command for each file, which takes so long that it has only one turn, with a quarter of the files.
S3 is `benchmarks.light_s3` on the same two cores; it takes less of them than moto's server. Ray is
left out where it is not installed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import soundfile as sf

from benchmarks import record
from benchmarks.local_s3 import file_system, light_server, use_s3, write_bundle, write_recordings
from benchmarks.record import Result, Value

Commands = list[list[str]]
PLAIN = "one command, which starts a process for each thread"
LOOP, _PART = "loop: a command for each file, two at a time", 4


def _asr(*arguments: object, threads: int = 1) -> list[str]:
    code = "from asr.cli import main; main()"
    return [sys.executable, "-c", code, "--threads", str(threads), *map(str, arguments)]


class Bench:
    """The recordings, and a command for each way."""

    def __init__(self, root: Path, n: int, seconds: float) -> None:
        self.root, self.bundle = root, root / "bundle"
        write_bundle(self.bundle, [])
        self.paths = write_recordings(root / "in", n, seconds)
        self.audio_seconds = sum(sf.info(path).duration for path in self.paths)
        self.s3 = file_system()
        self.s3.makedirs("job", exist_ok=True)
        for path in self.paths:
            self.s3.pipe_file(f"job/in/{path.name}", path.read_bytes())
        self.expected: dict[str, bytes] = {}
        self.n_other: dict[str, int] = {}  # by place: texts that are not those of the first case

    def run(
        self, case: Callable[[str], Commands], name: str, is_remote: bool, part: int = 1
    ) -> float:
        """Return the seconds of a case; check what it wrote.

        The seconds of a case that takes only every `part`-th recording are multiplied by `part`.
        """
        out = f"s3://job/{name}" if is_remote else str(self.root / name)
        start = time.perf_counter()
        running = [subprocess.Popen(c, stderr=subprocess.PIPE) for c in case(out)]
        ends = [process.communicate()[1] for process in running]
        seconds = time.perf_counter() - start
        assert not any(process.returncode for process in running), ends
        if is_remote:
            names = [f for f in self.s3.find(f"job/{name}") if ".asr" not in f]
            found = {Path(each).name: self.s3.cat_file(each) for each in names}
        else:
            found = {path.name: path.read_bytes() for path in Path(out).glob("*.txt")}
        self.expected = self.expected or found
        wanted = {path.with_suffix(".txt").name for path in self.paths[::part]}
        assert found.keys() == wanted, "others"
        self.n_other[name] = sum(found[each] != self.expected[each] for each in found)
        return part * seconds

    def cases(self) -> dict[str, tuple[Callable[[str], Commands], bool]]:
        """Return, by case, a function from an output place to commands, and whether it is in S3."""
        local, remote = self.root / "in", "s3://job/in"
        half = (len(self.paths) + 1) // 2
        common = ("transcribe", self.bundle)

        def loop(out: str) -> Commands:
            listed = " ".join(map(str, self.paths[::_PART]))
            line = f'echo {listed} | xargs -P 2 -n 1 "$@" --out {out}'
            return [["sh", "-c", line, "-", *_asr(*common)]]

        found: dict[str, tuple[Callable[[str], Commands], bool]] = {
            PLAIN: (lambda out: [_asr(*common, local, "--out", out, threads=2)], False),
            "one process of two threads (--jobs 1)": (
                lambda out: [_asr(*common, local, "--out", out, "--jobs", 1, threads=2)], False),
            "one command, S3": (
                lambda out: [_asr(*common, remote, "--out", out, threads=2)], True),
            "two hosts, S3": (lambda out: 2 * [_asr(*common, remote, "--out", out)], True),
            "lists: two commands, each half of the files": (
                lambda out: [_asr(*common, *each, "--out", out)
                             for each in (self.paths[:half], self.paths[half:])], False),
            LOOP: (loop, False),
        }  # fmt: skip
        if find_spec("ray"):
            found["Ray, two actors, S3"] = (
                lambda out: [_asr(*common, remote, "--out", out, "--engine", "ray", "--jobs", 2)],
                True,
            )
        return found


def _start_ray(stack: ExitStack) -> None:
    """Start a cluster of one node with two cores, for the command line to find."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # The priority of the other cases; by default workers would yield to all other programs.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    stack.callback(cluster.shutdown)
    os.environ["RAY_ADDRESS"] = cluster.address


def run(args: argparse.Namespace) -> list[list[Value]]:
    """Return a row for each case."""
    with TemporaryDirectory() as folder, light_server() as port, ExitStack() as stack:
        use_s3(port)
        if find_spec("ray"):
            _start_ray(stack)
        bench = Bench(Path(folder), args.recordings, args.seconds)
        cases = bench.cases()
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(args.rounds):
            for i, (name, (case, is_remote)) in enumerate(cases.items()):
                if turn and name == LOOP:
                    continue
                part = _PART if name == LOOP else 1
                taken[name].append(bench.run(case, f"out{turn}-{i}", is_remote, part))
                record.progress(f"{name}: {taken[name][-1]:.1f} s")
        times = {name: statistics.median(each) for name, each in taken.items()}
        first = times[PLAIN]
        speed = bench.audio_seconds
        others = [max(n for place, n in bench.n_other.items() if place.endswith(f"-{i}"))
                  for i in range(len(cases))]  # fmt: skip
        return [
            [name, t, speed / t, 100 * first / t, n]
            for (name, t), n in zip(times.items(), others, strict=True)
        ]


def main() -> None:
    """Run all cases in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=360)
    parser.add_argument("--seconds", type=float, default=10.0, help="Of a recording, in the mean.")
    parser.add_argument("--rounds", type=int, default=3)
    record.add_option(parser)
    args = parser.parse_args()
    columns = {
        "way": "", "seconds": ".1f", "× real time": ".1f", "speed (% of the first)": ".1f",
        "other texts": "d",
    }  # fmt: skip
    title = f"{args.recordings} recordings of {args.seconds:g} s on two cores"
    note = (
        f"Random weights of the demo's size; median of {args.rounds} rounds, starts included. "
        "Other texts differ from the first way's: random weights have many near ties."
    )
    table = Result(title=title, note=note, columns=columns, rows=run(args))
    record.publish(args, "scale", [table])


if __name__ == "__main__":
    main()
