"""No file of a stranger starts a process, connects, or opens a file that is not its own."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

import asr
from asr.bundle import Bundle
from tests.helpers import copied, make_tree, tones_recipe, write_manifest, write_recipe

ROOT = Path(asr.__file__).parents[1]
# What the interpreter and its libraries read for themselves.
OWN = [
    *(ROOT / name for name in ("asr", "serve", "data_prep", "lrt_asr.egg-info")),
    Path(sys.prefix), Path(sys.base_prefix), ROOT / "tests/attacks/audited.py",
    *(Path(p).resolve() for p in {*sysconfig.get_paths().values(), *site.getsitepackages()}),
    *map(Path, ("/proc", "/sys", "/dev/null", "/dev/shm", "/usr")),
    *map(Path, ("/etc/localtime", "/etc/mime.types", "/etc/ld.so.cache", "/etc/os-release")),
]  # fmt: skip
# matplotlib asks for fonts, codecarbon for the processor and its meters.
TOOLS = re.compile(
    r"\('(fc-list|rocm-smi|nvidia-smi|uname|lscpu|file)', \['\1'[,\]]|\('[^']+', \['[^']+', "
    r"'[^']+/site-packages/cpuinfo/cpuinfo\.py', '--json'\]"
)
STAIN = "touch STAIN; cat "


class Audit:
    """A working folder, and what verbs did in it."""

    def __init__(self, folder: Path, lines: list[list[str]]) -> None:
        self.folder = folder
        (folder / "lines.json").write_text(json.dumps(lines), "utf-8")
        command = [sys.executable, str(ROOT / "tests/attacks/audited.py"), "events", "lines.json"]
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(folder), "HOME": str(folder), "MPLCONFIGDIR": str(folder),
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        lines_of_log = (folder / "events").read_text("utf-8").splitlines()
        self.events = [json.loads(line) for line in lines_of_log]
        self.results = [what for kind, what in self.events if kind == "result"]
        assert len(self.results) == len(lines)

    def started(self) -> list[list[str]]:
        """Return the connections, and the processes but a library's search for its tools."""
        found = [e for e in self.events if e[0] not in ("open", "verb", "result")]
        return [e for e in found if not TOOLS.match(e[1])]

    def foreign(self) -> list[str]:
        """Return the files that were opened outside the folder and the program."""
        opened = [Path(what) for kind, what in self.events if kind == "open"]
        allowed = [self.folder, *OWN]
        return sorted({str(p) for p in opened if not any(p.is_relative_to(a) for a in allowed)})


@pytest.fixture
def here(tmp_path: Path, tiny_bundle: Path, tones: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small corpus, a bundle, and files with the names of commands."""
    monkeypatch.chdir(tmp_path)
    corpus = Path(shutil.copytree(tones, tmp_path / "corpus"))
    wav = next(corpus.rglob("*.wav"))
    write_manifest(tmp_path / "real.jsonl", {"type": "file", "source": str(wav)})
    (tmp_path / f"pipe:{STAIN}real.jsonl").write_bytes(b"")
    shutil.copytree(tiny_bundle, tmp_path / "good")
    return tmp_path


def hostile_lines(here: Path) -> list[list[str]]:
    """Every verb with files that try to run a command, to connect or to open another file."""
    pipe, outside = f"pipe:{STAIN}real.jsonl", str(here.parent / "secret")
    Path(outside).write_text("\\data\\\nngram 1=1\n", "utf-8")
    manifests = [
        write_manifest(here / f"m{i}.jsonl", source)
        for i, source in enumerate((
            {"type": "file", "source": pipe}, {"type": "command", "source": STAIN},
            {"type": "url", "source": "http://127.0.0.1:9/a.wav"},
            {"type": "tar_member", "source": f"{outside}:0:10"},
        ))
    ]  # fmt: skip
    hidden = json.loads(manifests[1].read_text("utf-8"))
    for name in ("inner", "outer"):  # a mix inside a mix
        tracks = [{"type": hidden["type"], "cut": hidden, "offset": 0}]
        hidden = {"id": name, "type": "MixedCut", "tracks": tracks}
    manifests.append(here / "m4.jsonl")
    manifests[-1].write_text(json.dumps(hidden) + "\n", "utf-8")
    shards = here / "shards"
    shards.mkdir()
    shutil.copy(manifests[1], shards / "cuts.000000.jsonl")
    with tarfile.open(shards / "recording.000000.tar", "w") as tar:
        for name in ("c0.wav", "c0.json"):
            tar.addfile(tarfile.TarInfo(name))
    recipes = [
        write_recipe(here / f"r{i}.yaml", tones_recipe(here, data={"train": path, "dev": path}))
        for i, path in enumerate(
            [pipe, "http://127.0.0.1:9/a.jsonl", *map(str, [*manifests, shards])]
        )
    ]
    bundles = [
        copied(here / "good", here / f"b{i}", **changes)
        for i, changes in enumerate((
            {"data__train": pipe}, {"data__dev": pipe}, {"training__init": pipe},
            {"decoding__lm": pipe, "decoding__lm_weight": 0.5},
            {"decoding__lm": outside, "decoding__lm_weight": 0.5},
            {"data__train": str(manifests[0]), "data__dev": str(manifests[1])},
        ))
    ]  # fmt: skip
    wav = str(next((here / "corpus").rglob("*.wav")))
    lines = [["train", str(path), "--out", f"out/{path.stem}"] for path in recipes]
    lines += [["info", str(path)] for path in recipes]
    for bundle in map(str, bundles):
        lines += [
            ["info", bundle], ["train-lm", bundle, "--epochs", "1"], ["transcribe", bundle, wav],
            ["evaluate", bundle, "real.jsonl"], ["tune", bundle, "real.jsonl", "--limit", "1"],
            ["compress", bundle, "--out", f"{bundle}-small", "--rank", "2"], ["report", bundle],
            ["export", bundle, "--out", f"{bundle}-export", "--format", "nothing"],
        ]  # fmt: skip
    lines += [["evaluate", "good", path] for path in [pipe, *map(str, [*manifests, shards])]]
    lines += [
        ["tune", "good", pipe], ["compress", "good", "--out", "c", "--rank", "2", "--cuts", pipe],
        ["train-lm", "good", pipe], ["train-lm", "good", "--order", "2", "--words", pipe],
        ["score", pipe, pipe], ["transcribe", "good", pipe],
        ["transcribe", "good", wav, "--lm", pipe, "--lm-weight", "1"],
        ["evaluate", "good", "real.jsonl", "--lm", pipe, "--lm-weight", "1"],
    ]  # fmt: skip
    return lines


def test_a_strangers_file_starts_nothing_and_opens_nothing_else(here: Path) -> None:
    """S1, M5: every verb that reads one, with commands, addresses and paths where files belong."""
    audit = Audit(here, hostile_lines(here))
    assert audit.started() == []
    assert audit.foreign() == []
    assert not list(here.rglob("STAIN"))
    bugs = [r for r in audit.results if re.match(r"\w+(Error|Exception|Option|Parameter):", r)]
    assert bugs == []  # each was refused in a sentence, and none for an option that is no more


@pytest.mark.slow
def test_whole_runs_of_all_verbs_open_their_own_files_alone(here: Path) -> None:
    """S1: what the verbs do with honest files is no more, so nothing can be smuggled in."""
    recipe = tones_recipe(here / "corpus", training={"epochs": 1, "average": 1})
    write_recipe(here / "recipe.yaml", recipe)
    make_tree(here / "published")
    test = str(here / "corpus/test.jsonl.gz")
    wav = str(next((here / "corpus").rglob("*.wav")))
    audit = Audit(here, [
        ["prepare", "aishell1", "published", "prepared"],
        ["train", "recipe.yaml", "--out", "run"],
        ["train-lm", "run", "--epochs", "1"],
        ["evaluate", "run", test, "--lm", "run/lm", "--lm-weight", "0.3", "--out", "all.jsonl"],
        ["tune", "run", test, "--limit", "2", "--lm", "run/lm", "--write"],
        ["transcribe", "run", wav, "--out", "texts"],
        ["compress", "run", "--out", "small", "--rank", "4"],
        ["transcribe", "small", wav],
        ["export", "run", "--out", "graphs"],
        ["info", "run"], ["report", "run", "--plot", "losses.png"],
    ])  # fmt: skip
    assert set(audit.results) == {"done"}
    assert audit.started() == []
    assert audit.foreign() == []


def test_the_audit_sees_what_it_should(here: Path) -> None:
    """S1: a process, and a file elsewhere."""
    (here.parent / "secret").write_text("a b", "utf-8")
    (here / "a.m4a").write_bytes(b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42" + bytes(4000))
    audit = Audit(here, [
        ["score", str(here.parent / "secret"), "real.jsonl"], ["bench", "--help"],
        ["transcribe", "good", "a.m4a"],
    ])  # fmt: skip
    assert audit.foreign() == [str(here.parent / "secret")]
    ((_, process),) = audit.started()
    assert "media_process" in process, "which decodes such files"
    Bundle.load(here / "good")
