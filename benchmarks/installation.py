"""Install the wheel and each extra into an empty environment; measure size and time of import.

    python -m benchmarks.installation BUNDLE RECORDING [--extras serve,export,train] [--record]

The packages come from the index that pip is configured for, in the versions of constraints.txt. An
extra is installed beside what inference needs, measured and removed again. The commands run in a
temporary folder, where the repository cannot be imported. Seconds are processor time, the least of
four runs, with the start of the interpreter.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import record
from benchmarks.record import Result

ROOT = Path(__file__).parents[1]
RUNS = 4  # the first one compiles the modules
MIB = 2**20
# What a use imports first, by its extra.
IMPORTS = {
    "serve": "import serve.server, serve.engine.process",
    "export": "import asr.export.export, onnxruntime, onnxscript",
    "train": "import asr.train.run",
    "report": "import asr.reporting.plots, matplotlib.figure",
    "media": "import av",
    "chinese": "import pypinyin",
    "energy": "import codecarbon",
}


class Environment:
    """A virtual environment, and a folder where its commands run."""

    def __init__(self, root: Path) -> None:
        self.work, self.bin = root / "work", root / "venv" / "bin"
        self.work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(root / "venv")], check=True)
        (self.packages,) = (root / "venv" / "lib").glob("*/site-packages")

    def pip(self, *args: str | Path) -> None:
        """Run pip quietly."""
        command: list[str | Path] = [self.bin / "python", "-m", "pip", "--quiet", *args]
        subprocess.run(command, check=True, cwd=self.work)

    def installed(self) -> set[str]:
        """Return the names of the installed packages."""
        command = [str(self.bin / "python"), "-m", "pip", "list", "--format", "json"]
        listed = subprocess.run(command, check=True, capture_output=True, cwd=self.work).stdout
        return {package["name"] for package in json.loads(listed)}

    def size(self) -> float:
        """Return MiB of all packages."""
        return size_of(self.packages)

    def seconds(self, *command: str | Path) -> float:
        """Return the least time of the processor that a command takes."""
        return min(self._seconds(*command) for _ in range(RUNS))

    def _seconds(self, *command: str | Path) -> float:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, check=True, cwd=self.work, env=environment, stdout=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def size_of(folder: Path) -> float:
    """Return MiB of all files but compiled modules, which follow from the others."""
    files = (path for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file())
    return sum(path.stat().st_size for path in files) / MIB


def build_wheel(folder: Path) -> Path:
    """Build the wheel of a copy of the sources, so that the checkout stays as it is."""
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("asr", "data_prep", "serve", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", str(source)]
    subprocess.run([*command, "--wheel-dir", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def measure_core(venv: Environment, bundle: Path, recording: Path) -> Result:
    """Return the times of what needs no extra."""
    python, asr = venv.bin / "python", venv.bin / "asr"
    load = f"import asr; asr.load({str(bundle)!r}, 'cpu')"
    cases: dict[str, list[str | Path]] = {
        "python -c pass": [python, "-c", "pass"],
        "import asr": [python, "-c", "import asr"],
        "import torch": [python, "-c", "import torch"],
        "asr --version": [asr, "--version"],
        "asr recipes": [asr, "recipes"],
        "asr.load(BUNDLE)": [python, "-c", load],
        "asr transcribe BUNDLE RECORDING": [asr, "transcribe", bundle, recording],
    }
    rows: list[list[record.Value]] = [[name, venv.seconds(*case)] for name, case in cases.items()]
    return Result(title="Time of imports", columns={"command": "", "seconds": ".2f"}, rows=rows)


def main() -> None:
    """Measure inference alone, then each extra."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--extras", default=",".join(IMPORTS))
    record.add_option(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        wheel = build_wheel(root)
        wheel_size, venv = wheel.stat().st_size / MIB, Environment(root)
        limits = ("-c", ROOT / "constraints.txt")
        bare, empty = venv.installed(), venv.size()
        venv.pip("install", *limits, wheel)
        core, size = venv.installed(), venv.size()
        torch = size_of(venv.packages / "torch")
        rows: list[list[record.Value]] = [
            ["(inference)", len(core - bare), size - empty, size - empty - torch, None]
        ]
        record.progress(f"inference: {rows[0]}")
        times = measure_core(venv, args.bundle.resolve(), args.recording.resolve())
        for extra in args.extras.split(","):
            venv.pip("install", *limits, f"lrt-asr[{extra}] @ {wheel.as_uri()}")
            added, more = venv.installed() - core, venv.size() - size
            seconds = venv.seconds(venv.bin / "python", "-c", IMPORTS[extra])
            rows.append([f"[{extra}]", len(added), more, more, seconds])
            record.progress(f"{extra}: {rows[-1]}")
            venv.pip("uninstall", "--yes", *added)
    columns = {
        "extra": "", "packages": "d", "MiB": ".0f", "MiB without torch": ".0f", "import (s)": ".2f",
    }  # fmt: skip
    note = (
        f"The wheel has {wheel_size:.2f} MiB. An extra's line is what it adds to inference; its "
        "import is that of torch, of what the use needs first, and of the interpreter."
    )
    sizes = Result(title="Size of each extra", note=note, columns=columns, rows=rows)
    record.publish(args, "installation", [sizes, times])


if __name__ == "__main__":
    main()
