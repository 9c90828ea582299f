"""Arrows run one way: a package imports only those above it in the list."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_namespace_packages

ROOT = Path(__file__).parents[1]
FOLDERS = ("asr", "data_prep", "serve", "experiments", "benchmarks")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

ORDER = [
    "errors", "schema", "normalization", "tokenizer", "pinyin", "joining",
    "runtime", "audio", "model", "decoding",
    "training_config", "config", "bundle",
    "data", "lm",
    "transcription", "evaluation", "export", "reporting", "compression",
    "train", "efficiency",
    "new", "finetune",
    "cli", "__main__",
]  # fmt: skip
WITHOUT_TORCH = ("transcript", "jobs", "writers", "remote")


def module_name(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Return the modules that a file names in import statements, wherever they stand."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def packages(names: set[str]) -> set[str]:
    """Return the packages of `asr` among dotted names."""
    return {name.split(".")[1] for name in names if name.startswith("asr.")} & set(ORDER)


def test_the_list_names_every_package() -> None:
    here = {
        p.stem
        for p in (ROOT / "asr").iterdir()
        if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    assert here - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_arrows_run_one_way(path: Path) -> None:
    name, found = module_name(path), imports(path)
    tops = {module.split(".")[0] for module in found}
    if name.startswith("asr."):
        package = name.split(".")[1]
        assert not packages(found) & set(ORDER[ORDER.index(package) + 1 :])
    if name.startswith("asr.") and not name.startswith("asr.cli"):
        assert not tops & {"serve", "data_prep", "experiments", "benchmarks"}
    if not name.startswith("asr.train"):
        assert not tops & {"lightning", "pytorch_lightning"}
    if name.startswith("serve"):
        assert "torch" not in tops


def loads(module: str, library: str) -> bool:
    """Tell whether importing a module loads a library, in a process of its own."""
    code = f"import sys; import {module}; print({library!r} in sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return result.stdout.split() == ["True"]


@pytest.mark.parametrize(
    "module", ["asr.cli", "serve.app", *(f"asr.transcription.{name}" for name in WITHOUT_TORCH)]
)
def test_help_service_and_client_load_no_torch(module: str) -> None:
    assert not loads(module, "torch") and not loads(module, "lightning")


@pytest.mark.parametrize("path", sorted((ROOT / "serve").rglob("*.py")), ids=module_name)
def test_the_signatures_of_the_service_are_typed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            hints = [
                a.annotation
                for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ]
            hints += [
                node.returns,
                *(a.annotation for a in (node.args.vararg, node.args.kwarg) if a),
            ]
            used = {
                n.id for hint in hints if hint for n in ast.walk(hint) if isinstance(n, ast.Name)
            }
            assert "Any" not in used, f"{module_name(path)}.{node.name}"


def test_the_wheel_holds_the_product_and_its_types_and_no_experiments() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    found = find_namespace_packages(str(ROOT), **settings["packages"]["find"])
    assert {name.split(".")[0] for name in found} == {"asr", "data_prep", "serve"}
    assert settings["package-data"]["asr"] == ["py.typed", "export/page/*"]
    assert (ROOT / "asr/py.typed").is_file()


def test_no_test_imports_another_test() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        found = {name for name in imports(path) if name.startswith("tests.")}
        allowed = (
            "tests.helpers", "tests.golden_run", "tests.attacks.fuzz",
            "tests.model.attention.oracle",
        )  # fmt: skip
        assert all(name.startswith(allowed) for name in found), path
