"""Arrows run one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [p for folder in ("asr", "data_prep", "serve") for p in (ROOT / folder).rglob("*.py")]

# Top to bottom, the way of the data: a module may import those above it, never those below.
ORDER = [
    "asr.errors", "asr.parent", "asr.node", "asr.silence", "asr.audio", "asr.features",
    "asr.tokenizer", "asr.metrics", "asr.model.projection", "asr.model.dropout",
    "asr.model.attention.full",
    "asr.model.attention.linear", "asr.model.attention.linformer", "asr.model.attention.lsh",
    "asr.model.attention.nystrom", "asr.model.attention.s4d", "asr.model.attention.sliding_window",
    "asr.model.attention", "asr.model.frontend", "asr.model.tiling", "asr.model.layers",
    "asr.model.factors", "asr.model.transformer", "asr.model.classifier", "asr.model.products",
    "asr.model.inference", "asr.ctc", "asr.align", "asr.score", "asr.scorers", "asr.repetition",
    "asr.topk", "asr.search", "asr.config", "asr.bundle", "asr.ngram", "asr.lm", "asr.decoding",
    "asr.stored", "asr.shar", "asr.pauses", "asr.data", "asr.transcript", "asr.recognizer",
    "asr.formats",
    "asr.transcription", "asr.client", "asr.evaluate", "asr.tune", "asr.export", "asr.cost",
    "asr.card", "asr.compress", "asr.markdown", "asr.report",
    "asr.train.lm", "asr.train.processes", "asr.train.corpus", "asr.train.task",
    "asr.train.checkpoints", "asr.train.progress", "asr.train.cost", "asr.train.memory",
    "asr.train.fit", "asr.train.run", "asr.study.cells", "asr.study.measure", "asr.study.run",
    "asr.study.findings", "asr.study.bert", "asr.study.report", "asr.study.figures",
]  # fmt: skip


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_modules_import_only_what_stands_above_them() -> None:
    for path in FILES:
        name = module_name(path)
        if name in ORDER:
            below = set(ORDER[ORDER.index(name) :])
            assert not imports(path) & below, name
    listed = {module_name(p) for p in (ROOT / "asr").rglob("*.py") if p.name != "__init__.py"}
    listed.add("asr.model.attention")  # the one package whose own page holds something
    assert {m for m in listed if not m.startswith("asr.cli.")} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_only_the_command_line_starts_serve_and_data_prep_and_only_train_knows_lightning(
    path: Path,
) -> None:
    name, found = module_name(path), imports(path)
    others = {m for m in found if m.split(".")[0] in ("serve", "data_prep", "recipes")}
    if name.startswith("asr.") and not name.startswith("asr.cli"):
        assert not others
    if not name.startswith("asr.train"):
        assert not {m for m in found if m.split(".")[0] in ("lightning", "pytorch_lightning")}
    if name.startswith("serve"):
        assert "torch" not in {m.split(".")[0] for m in found}


def test_help_and_mistakes_answer_without_loading_torch() -> None:
    code = "import sys; import asr.cli; print('torch' in sys.modules, 'lightning' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]


def test_the_service_answers_without_torch() -> None:
    code = "import sys; import serve.app; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False"]
