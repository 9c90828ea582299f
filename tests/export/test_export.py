"""Decode exported graphs with numpy alone and compare with the recognizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import asr.export.export
from asr.bundle import Bundle
from asr.config import Config
from asr.errors import AsrError, ConfigError
from asr.export.export import export
from asr.export.graphs import DecoderGraph, EncoderGraph, describe
from asr.model.inference.decoder import FastDecoder
from asr.model.inference.tree import PrefixTree
from asr.tokenizer import SOS, Tokenizer
from asr.transcription.recognizer import Recognizer
from tests.helpers import ENCODER, run_cli, tones_recipe

Run = Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]
STEPS = 12


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    torch.manual_seed(3)
    config = Config.model_validate(tones_recipe(folder))
    tokenizer = Tokenizer.train(["一二三四五", "五四三二一"], config.tokenizer)
    made = Bundle.create(config, tokenizer)
    with torch.no_grad():  # far from uniform, so that texts differ and end
        for parameter in made.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    made.save(folder, "")
    return folder


def opened(folder: Path) -> tuple[dict[str, Any], Run]:
    """Open a folder as a stranger does, from export.json alone."""
    facts = json.loads((folder / "export.json").read_text("utf-8"))
    graphs: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {}
    for name, graph in facts["graphs"].items():
        path = folder / graph["file"]
        if facts["format"] == "onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            graphs[name] = lambda fed, session=session: session.run(None, fed)
        else:
            module = torch.export.load(path).module(check_guards=False)
            graphs[name] = lambda fed, module=module: [
                t.numpy() for t in module(*map(torch.from_numpy, fed.values()))
            ]

    def run(name: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ports = facts["graphs"][name]
        fed = {p["name"]: values[p["name"]].astype(p["dtype"]) for p in ports["inputs"]}
        found = [np.asarray(array) for array in graphs[name](fed)]
        for port, array in zip(ports["outputs"], found, strict=True):
            assert array.dtype == port["dtype"] and array.ndim == len(port["axes"])
            sizes = zip(port["axes"], array.shape, strict=True)
            assert all(axis == size for axis, size in sizes if isinstance(axis, int))
        return dict(zip((p["name"] for p in ports["outputs"]), found, strict=True))

    return facts, run


def greedy(facts: dict[str, Any], run: Run, feats: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the most likely tokens (batch, STEPS), step by step, with the cache."""
    encoded = run("encoder", {"features": feats, "lengths": lengths})
    held = dict(encoded)
    for port in facts["graphs"]["decoder"]["inputs"]:
        if "past" in port["axes"]:
            sizes = {"batch": len(feats), "beam": 1, "past": 0}
            shape = [sizes.get(axis, axis) for axis in port["axes"]]
            held[port["name"]] = np.zeros(shape, np.float32)
    tokens = [np.full((len(feats), 1), facts["tokens"]["sos"])]
    for _ in range(STEPS):
        found = run("decoder", {"tokens": tokens[-1], **held})
        tokens.append(found.pop("log_probs").argmax(-1))
        held |= {name.removeprefix("new_"): array for name, array in found.items()}
    return np.concatenate(tokens[1:], 1)


def eager(model: Any, feats: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Do the same without a cache: the whole text again for each token."""
    memory, mask = model.encode(feats, lengths)
    tokens = torch.full((len(feats), 1), SOS)
    for _ in range(STEPS):
        logits = model.decoder(tokens, memory, mask)
        tokens = torch.cat((tokens, logits[:, -1:].argmax(-1)), 1)
    return tokens[:, 1:]


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_greedy_decoding_in_numpy_writes_what_the_model_writes(
    kind: str, bundle: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    result = run_cli("export", bundle, "--format", kind, "--out", tmp_path / "graphs")
    assert result.returncode == 0, result.stderr
    facts, run = opened(tmp_path / "graphs")
    assert f"{facts['largest_difference']:.1e}" in result.stdout
    assert facts["largest_difference"] < 1e-4
    assert [p.name for p in tmp_path.iterdir()] == ["graphs"]

    model = Bundle.load(bundle).model.eval()
    lengths = torch.tensor([90, 41, 8, 66])
    feats = 2 * torch.randn(4, 90, 20, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = eager(model, feats, lengths)
    found = greedy(facts, run, feats.numpy(), lengths.numpy())
    assert found.tolist() == wanted.tolist()
    assert len({tuple(row) for row in found.tolist()}) > 1
    for i, length in enumerate(lengths.tolist()):
        alone = greedy(facts, run, feats[i : i + 1, :length].numpy(), np.array([length]))
        assert alone.tolist() == [found[i].tolist()]


def test_a_graph_that_differs_is_no_result(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Bundle.load(bundle)
    model = loaded.model

    def read(path: Path, ports: Any) -> Any:
        """Return both graphs, with an error in the decoder's second and later steps."""
        if path.stem == "encoder":
            return EncoderGraph(model)
        right = DecoderGraph(model.decoder)
        return lambda *inputs: [t + 2e-4 * (inputs[-1].shape[3] > 0) for t in right(*inputs)]

    monkeypatch.setattr(asr.export.export, "_trace", lambda *_: None)
    monkeypatch.setitem(asr.export.export._KINDS, "torch", (".pt2", lambda *a: a[2].touch(), read))
    with pytest.raises(AsrError, match=r"differ from the model by \S+e-04"):
        export(loaded, "torch", tmp_path / "graphs")
    assert not list(tmp_path.iterdir())


@pytest.mark.costly
@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", ENCODER)
def test_an_encoder_attention_is_traced_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    recipe = tones_recipe(tmp_path)
    recipe["model"] |= {"d_model": 8, "d_inner": 8, "projection": {"kind": "set_sparse"}}
    attention = {"kind": kind, **ENCODER[kind]}
    recipe["model"]["encoder"] = {
        "n_layers": 2, "conditioning": {"layer": 1}, "sounds": {"layer": 1},
        "attention": attention,
    }  # fmt: skip
    config = Config.model_validate(recipe)
    made = Bundle.create(config, Tokenizer.train(["一二三四五"], config.tokenizer))
    model, n_freqs = made.model.eval().requires_grad_(False), config.features.n_freqs
    graph, inputs = asr.export.export._examples(model, n_freqs)["encoder"]
    if kind in asr.export.export.ENCODERS:
        program = asr.export.export._trace(graph, inputs, describe(model, n_freqs)["encoder"])
        feats = torch.randn(3, 161, n_freqs)
        compiled = program.module(check_guards=False)
        for T in (8, 161, 90):
            lengths = torch.tensor([T, 4, T // 2])
            found = compiled(feats[:, :T], lengths)
            torch.testing.assert_close(found, graph(feats[:, :T], lengths))
        return
    with pytest.raises(ConfigError, match=rf"attention\.kind: {kind} .* full, linear"):
        export(made, "torch", tmp_path / "graphs")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_cli("export", bundle, "--format", "int8", "--out", tmp_path / "graphs")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "--format int8: give onnx, torch, sherpa or html" in result.stderr
    loaded = Bundle.load(bundle)
    with pytest.raises(ConfigError, match="--format tflite: give onnx, torch, sherpa or html"):
        export(loaded, "tflite", tmp_path / "graphs")
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        export(loaded, "torch", tmp_path / "there")
    monkeypatch.setattr(asr.export.export, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lrt-asr\[export\]'"):
        export(loaded, "onnx", tmp_path / "graphs")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("kind", ["html", "sherpa"])
def test_a_model_without_a_ctc_head_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    changes = {"model": {"ctc_weight": 0.0}, "decoding": {"ctc_weight": 0.0}}
    config = Config.model_validate(tones_recipe(tmp_path, **changes))
    made = Bundle.create(config, Tokenizer.train(["一二三四五"], config.tokenizer))
    made.save(tmp_path / "bundle", "")
    result = run_cli("export", tmp_path / "bundle", "--format", kind, "--out", tmp_path / "x.html")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "model.ctc_weight" in result.stderr and "above 0" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.costly
def test_a_compressed_output_projection_is_exported_and_searched(tmp_path: Path) -> None:
    ranks = {"decoder.output": 2, "ctc_head": 2, "encoder.layers.0.feed_forward.inner": 3}
    config = Config.model_validate(tones_recipe(tmp_path, model={"ranks": ranks}))
    made = Bundle.create(config, Tokenizer.train(["一二三四五"], config.tokenizer))
    made.parts.eval()
    assert export(made, "torch", tmp_path / "graphs") < 1e-4
    decoder = Recognizer(made, "cpu").model.decoder
    assert isinstance(decoder, FastDecoder)
    tree = PrefixTree(decoder, torch.randn(1, 5, config.model.d_model), torch.ones(1, 5).bool())
    assert tree._logp_PV.shape[1] == made.tokenizer.vocab_size
