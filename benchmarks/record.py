"""Write what a benchmark measured to `benchmarks/results/<theme>_<machine>_<date>.json`.

A script adds the option with `add_option` and hands its tables to `publish`:

    publish(args, "noise", [Result(title=…, columns={"noise": "", "CER (%)": ".2f"}, rows=…)])

A file holds one theme of one machine on one day. A table that is recorded again replaces the one
with the same title in that file. `python -m benchmarks.tables` makes docs/results.md of all files.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator
from tabulate import tabulate

FOLDER = Path(__file__).parent / "results"
BY_SCRIPT = "by the benchmark"
Value = str | int | float | None


class _Frozen(BaseModel):
    """Refuse unknown keys and changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Result(_Frozen):
    """Hold one table: `columns` maps each heading to the format of its numbers ("" for text)."""

    title: str
    note: str = ""
    command: str = ""
    commit: str = ""
    columns: dict[str, str]
    rows: list[list[Value]]

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {row} has not {len(self.columns)} cells")
        self.cells()
        return self

    def cells(self) -> list[list[str]]:
        """Return the rows as text; what is not known is a dash."""
        return [
            [_text(value, form) for value, form in zip(row, self.columns.values(), strict=True)]
            for row in self.rows
        ]


class ResultFile(_Frozen):
    """Hold the tables of one theme, one machine and one day."""

    theme: str
    machine: str
    date: date
    recorded: str = BY_SCRIPT
    results: list[Result]

    @property
    def name(self) -> str:
        """Return the name that the file has on the disk."""
        return f"{self.theme}_{_slug(self.machine)}_{self.date.isoformat()}.json"


def _text(value: Value, form: str) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else format(value, form)


def _slug(machine: str) -> str:
    """Return the processor and the number of its cores in lower case, for a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(machine.split(",")[:2]).lower()).strip("-")


def describe_machine() -> str:
    """Name the processor, its cores, the memory and what runs on it, in this order."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = (names or [platform.processor() or platform.machine()])[0].replace(",", " ")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    python = platform.python_version()
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {python}, torch {_torch()}, "
        f"OMP_NUM_THREADS {threads}"
    )


def _torch() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def current_commit() -> str:
    """Return the short id of the tree's commit, and say where files differ from it."""
    found = _git("rev-parse", "--short", "HEAD")
    return f"{found} with local changes" if found and _git("status", "--porcelain") else found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(FOLDER), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def current_command() -> str:
    """Return how this script was started, without the option that records."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    script = f"-m {spec.name}" if spec else shlex.quote(sys.argv[0])
    options = shlex.join(a for a in sys.argv[1:] if a != "--record")
    return f"python {script} {options}".strip()


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--record`."""
    parser.add_argument(
        "--record", action="store_true", help="write the tables to benchmarks/results/ too"
    )


def progress(line: str) -> None:
    """Tell on standard error that a case is finished."""
    print(line, file=sys.stderr, flush=True)


def read(path: Path) -> ResultFile:
    """Read a file of results; raise pydantic's error where it is damaged."""
    return ResultFile.model_validate_json(path.read_text("utf-8"))


def markdown(result: Result) -> str:
    """Return the table of a result, numbers at the right."""
    escaped = [[c.replace("|", r"\|") for c in row] for row in [result.columns, *result.cells()]]
    align = ["right" if form else "left" for form in result.columns.values()]
    return tabulate(escaped[1:], escaped[0], tablefmt="pipe", colalign=align, disable_numparse=True)


def publish(args: argparse.Namespace, theme: str, results: list[Result]) -> None:
    """Print the tables of a theme, and write them if `--record` is set."""
    print(f"{describe_machine()}, load {os.getloadavg()[0]:.1f}")
    for result in results:
        print(f"\n{result.title}\n\n{markdown(result)}")
    write(args, theme, results)


def write(
    args: argparse.Namespace, theme: str, results: list[Result], folder: Path = FOLDER
) -> Path | None:
    """Write the tables of a theme if `--record` is set; return the file, or None."""
    if not args.record:
        return None
    command, commit = current_command(), current_commit()
    named = [
        result.model_copy(update={"command": result.command or command, "commit": commit})
        for result in results
    ]
    made = ResultFile(theme=theme, machine=describe_machine(), date=date.today(), results=named)
    path = folder / made.name
    if path.is_file():
        titles = {result.title for result in named}
        kept = [result for result in read(path).results if result.title not in titles]
        made = made.model_copy(update={"results": [*kept, *named]})
    save(made, path)
    progress(f"recorded in {path}; `python -m benchmarks.tables` renews docs/results.md")
    return path


def save(made: ResultFile, path: Path) -> None:
    """Write a file with each row of a table on one line, so that its diffs can be read."""
    text = made.model_dump_json(indent=1)
    rows = re.compile(r"\[\n\s+((?:[^\[\]\n]|\n)*?)\n\s+\]")
    text = rows.sub(lambda m: "[" + re.sub(r"\n\s+", " ", m[1]) + "]", text)
    assert ResultFile.model_validate_json(text) == made
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", "utf-8")
