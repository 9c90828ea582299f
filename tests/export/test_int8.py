"""Graphs in 8 bits: the parts against explicit formulas, the whole against float32."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import jiwer
import numpy as np
import pytest
import torch
from torch import nn

from asr.bundle import Bundle
from asr.data.manifest import load_cuts, text_of
from asr.export.calibration import (
    Quantized,
    encoder_inputs,
    greedy_text,
    open_graph,
    recognized,
    utterances,
)
from asr.export.export import _write_onnx
from asr.export.graphs import EncoderGraph, Port, Ports
from asr.export.int8 import quantize, to_int8
from asr.export.ranges import grid_of, observe
from asr.tokenizer import TokenizerConfig
from tests.helpers import run_cli

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("axis", [0, 1])
def test_each_weight_is_half_a_step_of_its_output_away_at_most(axis: int) -> None:
    rng = np.random.default_rng(0)
    sizes = 10.0 ** np.arange(-3, 3)  # one scale for all would lose the smaller outputs
    weight = rng.normal(size=(6, 6)) * np.expand_dims(sizes, 1 - axis)
    q, scale = to_int8(weight, axis)
    along = np.expand_dims(scale, 1 - axis)
    assert q.dtype == np.int8 and (np.abs(q).max(1 - axis) == 127).all()
    assert (np.abs(weight - q * along) <= along / 2 * (1 + 1e-6)).all()
    assert to_int8(np.zeros((2, 3)), 0)[1].tolist() == [1, 1]


def test_a_grid_has_zero_and_its_ends() -> None:
    for low, high in ((-1.0, 3.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0)):
        grid = grid_of(low, high)
        values = (np.arange(256) - grid.zero) * grid.scale
        assert 0 in values and 0 <= grid.zero <= 255
        assert (
            values.min() <= min(low, 0) + grid.scale and values.max() >= max(high, 0) - grid.scale
        )


def test_a_range_is_that_of_all_batches_and_a_quarter_more() -> None:
    x = np.random.default_rng(1).normal(size=1000)
    session = SimpleNamespace(run=lambda names, batch: [batch["x"]] * len(names))
    grid = observe(session, ["a"], [{"x": x[:10]}, {"x": x[10:]}])["a"]
    ends = np.array([0 - grid.zero, 255 - grid.zero]) * grid.scale
    np.testing.assert_allclose(ends, 1.25 * np.array([x.min(), x.max()]), atol=grid.scale)


class _Net(nn.Module):
    """Convolutions with pooling and a mask as a front end has them, then maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, (1, 3), padding=(0, 1))
        self.map, self.table = nn.Linear(32, 24), nn.Embedding(40, 24)
        self.kept = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = (self.first(x) * mask[:, None, :, None]).relu()
        pooled = torch.max_pool2d(self.second(x), 2) * mask[:, None, ::2, None]
        y = self.third(pooled.relu()).permute(0, 2, 1, 3).flatten(2)
        return self.kept(self.map(y)) + self.table(ids)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    network = _Net().eval()
    path = tmp_path_factory.mktemp("graph") / "float.onnx"
    program = torch.export.export(network, tuple(map(torch.from_numpy, _inputs(0).values())))
    ports = Ports([Port(n, "", ()) for n in ("x", "mask", "ids")], [Port("y", "", ())])
    _write_onnx(program, ports, path)
    return network, path


def _inputs(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.arange(12) < np.array([[12], [7]])
    x = rng.normal(size=(2, 1, 12, 8)).astype(np.float32) * mask[:, None, :, None]
    return {"x": x, "mask": mask, "ids": rng.integers(0, 40, (2, 6))}


def test_a_graph_in_8_bits_is_near_and_a_quarter(
    graph: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    network, path = graph
    out = tmp_path / "int8.onnx"
    quantize(path, out, [_inputs(i) for i in range(4)], keep=["kept"])
    model = onnx.load(out)
    kinds = {i.name: i.data_type for i in model.graph.initializer}
    assert {n for n, k in kinds.items() if k == onnx.TensorProto.INT8 and "bytes" in n} >= {
        "second.weight.bytes", "third.weight.bytes", "table.weight.bytes",
    }  # fmt: skip
    floats = [i for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
    large = [list(i.dims) for i in floats if len(i.dims) > 1 and 1 not in i.dims]
    assert large == [[24, 24]]  # what was kept
    assert not any("Relu" in node.op_type for node in model.graph.node[6:])
    given = _inputs(9)
    with torch.no_grad():
        wanted = network(*map(torch.from_numpy, given.values())).numpy()
    found = open_graph(out)(given)["y"]
    error = np.abs(found - wanted).max() / wanted.std()
    assert 1e-6 < error < 0.05
    assert not any(node.metadata_props for node in model.graph.node)


@pytest.mark.costly
def test_export_in_8_bits_writes_the_models_texts(
    learned: Path, tones: Path, tmp_path: Path
) -> None:
    cuts = tones / "dev.jsonl.gz"
    result = run_cli("export", learned, "--out", tmp_path / "graphs", "--int8", "--cuts", cuts)
    assert result.returncode == 0, result.stderr
    before, after = re.findall(r"(\S+%)", result.stdout)
    assert before == after and "in 8 bits" in result.stdout
    names = {"README.md", "config.yaml", "export.json", "tokenizer.model"}
    found = {path.name for path in (tmp_path / "graphs").iterdir()}
    assert found == names | {"encoder.onnx", "decoder.onnx"}
    facts = json.loads((tmp_path / "graphs/export.json").read_text())
    assert facts["weights"] == "int8" and facts["cer"][0] == facts["cer"][1] < 1
    bundle = Bundle.load(learned)
    model, run = bundle.model.eval(), open_graph(tmp_path / "graphs/encoder.onnx")
    texts = []
    for *_, feats in utterances(bundle, list(load_cuts(cuts))):
        with torch.no_grad():
            wanted = EncoderGraph(model)(torch.from_numpy(feats[None]), torch.tensor([len(feats)]))
        both = (wanted[2].numpy(), run(encoder_inputs(feats))["ctc_log_probs"])
        assert 0 < np.abs(np.exp(both[0]) - np.exp(both[1])).max() < 0.3
        texts.append([greedy_text(bundle, logp) for logp in both])
    assert all(a == b for a, b in texts) and len({a for a, _ in texts}) > 1
    weights = onnx.load(tmp_path / "graphs/decoder.onnx").graph.initializer
    assert any(each.data_type == onnx.TensorProto.INT8 for each in weights)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--int8"], "give --cuts a manifest"),
        (["--int8", "--cuts", "nowhere.jsonl.gz"], "nowhere.jsonl.gz"),
        (["--int8", "--format", "torch"], "--int8 is for --format onnx and sherpa"),
        (["--int8", "--format", "sherpa"], "give --cuts a manifest"),
        (["--cuts", "nowhere.jsonl.gz"], "--cuts is for --int8"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_leaves_nothing(
    learned: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    bundle = Bundle.load(learned)
    data = bundle.config.data.model_copy(update={"dev": tmp_path / "none.jsonl.gz"})
    changed = Bundle(
        bundle.config.model_copy(update={"data": data}), bundle.tokenizer, bundle.features,
        bundle.model,
    )  # fmt: skip
    changed.save(tmp_path / "bundle", "")
    result = run_cli("export", tmp_path / "bundle", "--out", tmp_path / "graphs", *options)
    assert result.returncode in (2, 3) and result.stderr.count("\n") == 1
    assert words in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_8_bits_of_a_language_with_words_tell_its_wer() -> None:
    known = ["One two three.", "four five"]
    guesses = (["one two three", "four"], ["one too three", "four"])
    pairs = [list(zip(known, each, strict=True)) for each in guesses]
    normalize = TokenizerConfig(case="lower", punctuation="remove").normalize
    done = Quantized.of((2_000_000, 1_000_000), *pairs, normalize)
    assert done.wer == tuple(jiwer.wer(list(map(normalize, known)), each) for each in guesses)
    assert str(done).endswith("WER 20.00% -> 40.00%")
    assert done.rates() == {"cer": done.cer, "wer": done.wer}
    without = Quantized.of((2, 1), [("一", "一")], [("一", "二")], normalize)
    assert without.rates() == {"cer": (0.0, 1.0)}


def test_texts_of_both_ways_follow_the_known_ones(learned: Path, tones: Path) -> None:
    cuts = list(load_cuts(tones / "dev.jsonl.gz"))
    pairs = recognized(Bundle.load(learned), cuts, (lambda *_: "before", lambda *_: "after"))
    known = [text_of(cut) for cut in cuts]
    assert pairs == tuple([(text, way) for text in known] for way in ("before", "after"))
