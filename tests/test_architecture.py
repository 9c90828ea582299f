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
    "asr.errors", "asr.runtime.processes", "asr.schema", "asr.audio.segmentation", "asr.audio.recording", "asr.audio.features",
    "asr.tokenizer", "asr.evaluation.cer", "asr.model.projection", "asr.model.dropout",
    "asr.model.attention.full",
    "asr.model.attention.linear", "asr.model.attention.linformer", "asr.model.attention.lsh",
    "asr.model.attention.nystrom", "asr.model.attention.s4d", "asr.model.attention.sliding_window",
    "asr.model.attention", "asr.model.frontend", "asr.model.inference.frontend", "asr.model.layers",
    "asr.model.factorization", "asr.model.transformer", "experiments.classifier", "asr.model.inference.linear",
    "asr.model.inference.decoder", "asr.decoding.ctc_prefix", "asr.decoding.ctc_alignment", "asr.decoding.hypothesis", "asr.decoding.scorers", "asr.decoding.repetition",
    "asr.decoding.topk", "asr.decoding.beam_search", "asr.config", "asr.bundle", "asr.lm.ngram", "asr.lm.transformer", "asr.decoding.decode",
    "asr.data.feature_store", "asr.data.shar", "asr.data.pauses", "asr.data.dataset", "asr.transcription.transcript", "asr.transcription.recognizer",
    "asr.transcription.writers",
    "asr.transcription.batch", "asr.transcription.remote", "asr.evaluation.evaluate", "asr.evaluation.tune", "asr.export.export", "asr.reporting.cost",
    "asr.reporting.model_card", "asr.compression.compress", "asr.reporting.markdown", "asr.reporting.comparison",
    "asr.train.language_model", "asr.train.distributed", "asr.train.datamodule", "asr.train.module",
    "asr.train.checkpoints", "asr.train.progress", "asr.train.energy", "asr.runtime.memory",
    "asr.train.trainer", "asr.train.run", "asr.efficiency.grid", "asr.efficiency.measure", "asr.efficiency.run",
    "asr.efficiency.claims", "asr.efficiency.bert_cost", "asr.efficiency.tables", "asr.efficiency.plots",
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
