"""A wheel works outside the repository, with no more packages than a use needs."""

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
import soundfile as sf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import asr
from asr.cli.extras import MODULES
from tests.helpers import RATE, run_cli, speak

ROOT = Path(__file__).parents[1]
OWN = {"asr", "data_prep", "serve"}
# Extras whose verbs find out by themselves what is missing.
OTHERS = ("export", "chinese", "energy", "media", "report")
# Imported beside the packages that bring them and give their types away.
PARTS = {"starlette", "pydantic_core"}
IMPORT_SECONDS = 0.3

# Runs the command line where the modules of the first argument are not installed.
WITHOUT = """
import json, sys
from importlib.machinery import PathFinder
absent = set(json.loads(sys.argv.pop(1)))
class Finder:
    find_distributions = PathFinder.find_distributions
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] in absent else PathFinder.find_spec(name, path, target)
sys.meta_path = [Finder if one is PathFinder else one for one in sys.meta_path]
sys.argv[0] = "asr"
from asr.cli import main
main()
"""


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def closure(requirements: list[str]) -> set[str]:
    """The names of these packages and of all that they need."""
    todo, done = [Requirement(one) for one in requirements], set()
    while todo:
        one = todo.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in done:
            continue
        done.add(key)
        for needed in map(Requirement, distribution(one.name).requires or []):
            extras = one.extras or {""}
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                todo.append(needed)
    return {name for name, _ in done}


installed_modules = functools.cache(packages_distributions)


def modules_of(packages: set[str]) -> set[str]:
    """The top-level modules of packages; of one that is not installed, as Ray, its name."""
    found = {
        module: set(map(canonicalize_name, names)) for module, names in installed_modules().items()
    }
    absent = packages - set().union(*found.values())
    return {module for module, names in found.items() if packages & names} | absent


@functools.cache
def absent_without(extras: tuple[str, ...] = ()) -> set[str]:
    """All modules that are installed here and not by `pip install lrt-asr[extras]`."""
    wanted = project()["dependencies"] + [
        one for extra in extras for one in project()["optional-dependencies"][extra]
    ]
    return set(installed_modules()) - modules_of(closure(wanted)) - OWN


def run_without(absent: set[str], *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, json.dumps(sorted(absent)), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_what_inference_needs_is_small() -> None:
    needed = closure(project()["dependencies"])
    assert {"torch", "soundfile"} <= needed
    heavy = {
        "lightning", "lhotse", "torchaudio", "tensorboard", "numba", "llvmlite", "librosa", "scipy",
        "scikit-learn", "pandas", "fastapi", "uvicorn", "matplotlib", "onnxruntime",
    }  # fmt: skip
    assert not needed & heavy and {"lhotse", "fastapi", "numba"} <= absent_without()


def run_light(*args: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A verb that needs no torch, in a fresh interpreter."""
    return run_cli(*args, cwd=cwd, env=dict(os.environ))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("installation") / "a.wav"
    sf.write(path, speak("三一四", 99), RATE)
    return path


def test_a_recording_is_transcribed_by_inference_alone(tiny_bundle: Path, recording: Path) -> None:
    found = run_without(absent_without(), "transcribe", tiny_bundle, recording)
    assert found.returncode == 0, found.stderr
    assert found.stdout == asr.load(tiny_bundle, "cpu").transcribe(recording).text + "\n"


@pytest.mark.costly
def test_the_service_needs_its_extra_alone() -> None:
    code = WITHOUT.partition("from asr.cli")[0] + (
        "import asr.lm.loading, asr.export.export, asr.reporting.comparison\n"
        "print('inference')\n"
        "import serve.app, serve.engine.process, serve.server"
    )
    for extras, code_of_exit in ((("serve",), 0), ((), 1)):
        absent = json.dumps(sorted(absent_without(extras)))
        done = subprocess.run(
            [sys.executable, "-c", code, absent],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == code_of_exit and done.stdout == "inference\n", done.stderr


@pytest.mark.parametrize(
    ("extra", "verb"),
    [
        ("train", ["train", "recipes/demo/lrt.yaml"]),
        ("train", ["prepare", "demo", "OUT"]),
        ("train", ["new", "OUT", "--words", "README.md"]),
        ("serve", ["serve", "BUNDLE"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_extra_is_named_in_one_sentence(
    extra: str, verb: list[str], tiny_bundle: Path, tmp_path: Path
) -> None:
    places = {"OUT": tmp_path / "out", "BUNDLE": tiny_bundle}
    found = run_without(absent_without(), *(places.get(one, one) for one in verb))
    needs = f"asr {verb[0]} needs the extra '{extra}': pip install 'lrt-asr[{extra}]'"
    assert found.returncode in (1, 2) and found.stderr.splitlines()[0] == f"asr: {needs}"
    assert "Traceback" not in found.stderr and not (tmp_path / "out").exists()


def test_every_imported_package_is_a_dependency_or_one_of_an_extra() -> None:
    """An import that is missing otherwise would be a traceback, or a package too much."""
    imported = set()
    for path in (file for folder in OWN for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    extras = project()["optional-dependencies"]
    direct = {
        extra: modules_of({canonicalize_name(Requirement(one).name) for one in requirements})
        for extra, requirements in [("", project()["dependencies"]), *extras.items()]
        if extra != "dev"
    }
    for extra, modules in MODULES.items():
        assert set(modules) - PARTS <= direct[extra]
        assert imported & direct[extra] <= set(modules)
    known = set().union(*direct.values()) | PARTS | OWN | set(sys.stdlib_module_names)
    assert imported <= known, imported - known
    assert set(direct) == {"", *MODULES, *OTHERS}


def test_import_is_fast_and_loads_nothing_heavy() -> None:
    code = "import time; t = time.process_time(); import asr; print(time.process_time() - t)"
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.splitlines()  # fmt: skip
    assert float(shown[0]) < IMPORT_SECONDS
    assert not {"torch", "numpy", "pydantic", "rich"} & set(shown[1].split())


def test_recipes_are_listed() -> None:
    shown = run_light("recipes").stdout
    for folder in (path.parent for path in (ROOT / "recipes").glob("*/README.md")):
        assert re.search(rf"^{folder.name} ", shown, re.MULTILINE)
        assert all(path.stem in shown for path in folder.glob("*.yaml"))


@pytest.mark.parametrize("name", ["demo", "digits"])
def test_a_copied_recipe_is_whole_and_is_not_overwritten(name: str, tmp_path: Path) -> None:
    done = run_light("recipes", "copy", name, cwd=tmp_path)
    assert done.stdout == f"recipes/{name}\n", done.stderr
    compare_recipe(tmp_path / "recipes" / name)
    again = run_light("recipes", "copy", name, tmp_path)
    assert again.returncode == 2 and "already exists" in again.stderr
    assert list((tmp_path / "recipes").iterdir()) == [tmp_path / "recipes" / name]


def compare_recipe(copied: Path) -> None:
    original = ROOT / "recipes" / copied.name
    files = [path for path in original.rglob("*") if path.suffix != ".pyc" and path.is_file()]
    assert len(files) > 2
    for path in files:
        found = copied / path.relative_to(original)
        assert found.read_bytes() == path.read_bytes()
        assert os.access(found, os.X_OK) == os.access(path, os.X_OK)


def test_an_unknown_recipe_is_answered_with_those_there_are(tmp_path: Path) -> None:
    done = run_light("recipes", "copy", "../demo", tmp_path)
    assert done.returncode == 2 and "give one of aishell1, demo" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the wheel is installed, which is built of a copy of the sources."""
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    for name in ("asr", "data_prep", "serve", "recipes"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    build = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", root, source]
    subprocess.run(build, check=True, cwd=root)
    (wheel,) = root.glob("*.whl")
    target = ["install", *offline, "--no-compile", "--target", root / "installed", wheel]
    subprocess.run([*pip, *target], check=True, cwd=root)
    return root / "installed"


@pytest.mark.costly
def test_the_wheel_works_in_another_folder(
    installed: Path, tiny_bundle: Path, recording: Path, tmp_path: Path
) -> None:
    def run(*args: str | Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run(
            [sys.executable, *args],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = installed / "bin" / "asr"
    assert run(command, "--version") == f"lrt-asr {project()['version']}\n"
    assert run("-c", "import asr; print(asr.__file__)").startswith(str(installed))
    assert "transformer_medium" in run(command, "recipes")
    assert run(command, "recipes", "copy", "demo") == "recipes/demo\n"
    compare_recipe(tmp_path / "recipes" / "demo")
    text = asr.load(tiny_bundle, "cpu").transcribe(recording).text
    assert run(command, "transcribe", tiny_bundle, recording) == f"{text}\n"
    run(command, "export", tiny_bundle, "--format", "html", "--out", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000
    page = run(
        "-c",
        "import asyncio, serve.routes.page as p; print(p.__file__, sorted(p._FILES));"
        "print(asyncio.run(p.index()).body.decode())",
    )
    names = sorted(path.name for path in (ROOT / "serve" / "page").iterdir())
    assert page.splitlines()[0] == f"{installed}/serve/routes/page.py {names}"
    assert page.split("\n", 1)[1] == (ROOT / "serve/page/index.html").read_text("utf-8") + "\n"


def test_the_wheel_holds_the_product_alone(installed: Path) -> None:
    found = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert found == {"asr", "data_prep", "serve", "bin"}
    assert (installed / "asr" / "py.typed").is_file()
    for folder in (path.parent for path in (ROOT / "recipes").glob("*/README.md")):
        compare_recipe(installed / "asr" / "recipes" / folder.name)
