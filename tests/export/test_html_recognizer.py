"""The recognizer of a page of `--format html`, under Node against torch and ours."""

import base64
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.audio.recording import Samples
from asr.bundle import Bundle
from asr.config import Config
from asr.export.html import facts, kernel, weights_of
from asr.export.page_weights import Table, pack_weights
from asr.tokenizer import Tokenizer
from asr.transcription.recognizer import Recognizer
from asr.transcription.writers import as_srt
from tests.helpers import RATE, coded, node_recognizer, page_numbers, say, tones_recipe

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(not NODE, reason="there is no node: apt-get install nodejs")


MODELS: dict[str, dict[str, Any]] = {
    "dense_post": {
        "model": {"norm": "post", "projection": {"kind": "dense"}, "d_model": 24, "n_heads": 4}
    },
    "pairs_and_convolution": {
        "model": {
            "frontend": {"kind": "vgg_low_rank", "channels": [4, 12], "rank": 5},
            "encoder": {"n_layers": 3, "convolution": 5, "conditioning": {"layer": 2}},
        }
    },
    "sounds": {
        "model": {"encoder": {"n_layers": 3, "conditioning": {"layer": 2}, "sounds": {"layer": 2}}}
    },
    "strided": {
        "model": {"frontend": {"kind": "strided", "channels": [5, 16]}},
        "features": {"kind": "spectrogram", "sample_rate": 16000, "normalize": "corpus"},
    },
    "separable_mixed": {
        "model": {
            "frontend": {"kind": "strided", "channels": [6, 8], "separable": True},
            "projections": {"feed_forward": {"kind": "dense"}},
        },
        "features": {"n_mels": 17, "window_ms": 32, "hop_ms": 20},
    },
    "fbank": {"features": {"kind": "fbank", "n_mels": 21, "window_ms": 22.5, "sample_rate": 11025}},
    "streaming": {
        "features": {"kind": "fbank", "normalize": "corpus", "sherpa_onnx": True},
        "model": {"encoder": {"n_layers": 2, "convolution": 5,
                              "streaming": {"chunk": 3, "left_chunks": 2, "rotary": True}}},
    },
    "streaming_strided": {
        "features": {"kind": "fbank", "normalize": "corpus", "hop_ms": 15, "n_mels": 14},
        "model": {
            "frontend": {"kind": "strided", "channels": [5, 16], "separable": True},
            "encoder": {"n_layers": 2, "conditioning": {"layer": 1}, "sounds": {"layer": 1},
                        "streaming": {"chunk": 5, "left_chunks": 1}},
        },
    },
}  # fmt: skip


def made(tmp_path: Path, name: str) -> Bundle:
    """A bundle with random weights that are far from uniform."""
    recipe = tones_recipe(tmp_path)
    for key, values in MODELS[name].items():
        recipe[key] = recipe[key] | values
    if recipe["features"]["kind"] == "spectrogram":
        del recipe["features"]["n_mels"]
    torch.manual_seed(5)
    config = Config.model_validate(recipe)
    bundle = Bundle.create(config, Tokenizer.train(["一二三四五 ab"], config.tokenizer))
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if parameter.ndim > 1:
                parameter.mul_(2)
        for statistic in bundle.features.state_dict().values():
            statistic.copy_(1 + torch.rand_like(statistic))
            if recipe["features"]["kind"] == "fbank":
                statistic.mul_(10)  # the level of 16-bit samples
    bundle.model.eval()
    return bundle


def load_page_weights(bundle: Bundle, blob: bytes, table: Table) -> None:
    """Give a bundle the rounded weights of its page."""
    numbers = {name: torch.tensor(x) for name, x in page_numbers(blob, table).items()}
    own = {name: x for name, x in numbers.items() if not name.startswith("features.")}
    assert not bundle.model.load_state_dict(own, strict=False).unexpected_keys


def logp_of(bundle: Bundle, wave: np.ndarray) -> Tensor:
    with torch.inference_mode():
        feats_TF = bundle.features(torch.from_numpy(wave))
        memory_BSD, _ = bundle.model.encode(feats_TF[None], torch.tensor([len(feats_TF)]))
        return bundle.model.ctc_logits(memory_BSD).log_softmax(-1)[0]


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_those_of_torch(name: str, tmp_path: Path) -> None:
    bundle = made(tmp_path, name)
    blob, table = pack_weights(weights_of(bundle))
    load_page_weights(bundle, blob, table)
    config, rate = facts(bundle, name, table), bundle.config.features.sample_rate
    hop, kind = bundle.config.features.hop_length, bundle.config.features.kind
    fewest = 4 if kind == "fbank" else 3
    rng = np.random.default_rng(1)
    # As few frames as make a step, odd numbers of them, and more than are computed at once.
    waves = [rng.normal(size=n * hop + 11).astype(np.float32) / 3 for n in (fewest, 29, 171)]
    waves[2] += 0.5 * np.sin(np.arange(len(waves[2])) * 440 / rate).astype(np.float32)
    for module in (config["kernel"], ""):
        found = node_recognizer(
            """
            const kernel = given.kernel && new WebAssembly.Module(fromBase64(given.kernel));
            const weights = readWeights(given.weights, given.config.weights);
            const recognizer = new Recognizer(given.config, weights, kernel || null);
            return given.waves.map((wave) => {
              const { S, V, logp } = recognizer.encode(floats(wave));
              return { S, V, logp: Array.from(logp), top: recognizer.memory.top };
            });
            """,
            config=config, weights=base64.b64encode(blob).decode(), kernel=module,
            waves=[coded(wave) for wave in waves],
        )  # fmt: skip
        for wave, one in zip(waves, found, strict=True):
            wanted = logp_of(bundle, wave)
            assert wanted.std() > 0.3 and wanted.shape == (one["S"], one["V"])
            logp = torch.tensor(one["logp"]).view(one["S"], one["V"])
            torch.testing.assert_close(logp, wanted, atol=1e-3, rtol=0)
        assert len({one["top"] for one in found}) == 1, "all memory is given back"


def test_both_kernels_add_the_product_of_matrices() -> None:
    """Also where rows overlap, or are shorter than a panel."""
    rng = np.random.default_rng(0)
    cases = []
    for M, K, N, lda, ldc in [
        (1, 1, 1, 1, 1),
        (9, 3, 5, 1, 5),
        (6, 7, 19, 9, 21),
        (4, 40, 3, 2, 3),
    ]:
        a, w = rng.normal(size=M * lda + K), rng.normal(size=(N, K))
        c = rng.normal(size=M * ldc)
        rows = np.lib.stride_tricks.as_strided(a, (M, K), (8 * lda, 8))
        wanted = c.reshape(M, ldc).copy()
        wanted[:, :N] += rows @ w.T
        cases.append(({"M": M, "K": K, "N": N, "lda": lda, "ldc": ldc, "a": coded(a),
                       "w": coded(w), "c": coded(c)}, wanted))  # fmt: skip
    for module in (base64.b64encode(kernel()).decode(), ""):
        found = node_recognizer(
            """
            const module = given.kernel && new WebAssembly.Module(fromBase64(given.kernel));
            return given.cases.map(({ M, K, N, lda, ldc, a, w, c }) => {
              const memory = new Memory(module || null);
              const [from, to] = [memory.put(floats(a)), memory.put(floats(c))];
              memory.multiply(from, lda, M, memory.pack(N, K, floats(w), 0, K, 1), to, ldc);
              return Array.from(memory.floats.subarray(to, to + M * ldc));
            });
            """,
            kernel=module, cases=[case for case, _ in cases],
        )  # fmt: skip
        for one, (_, wanted) in zip(found, cases, strict=True):
            np.testing.assert_allclose(np.reshape(one, wanted.shape), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["streaming", "streaming_strided", "trained"])
def test_streams_are_ours(name: str, streaming_bundle: Path, tmp_path: Path) -> None:
    """Partial and final texts and their times, however the waveform is cut into blocks.

    Random weights find no pauses: their segments are as long as they may be.
    """
    bundle = Bundle.load(streaming_bundle) if name == "trained" else made(tmp_path, name)
    longest = 20 if name == "trained" else 1.7
    decoding = bundle.config.decoding.changed({"method": "ctc_beam", "chunk_seconds": longest})
    bundle.config = bundle.config.model_copy(update={"decoding": decoding})
    blob, table = pack_weights(weights_of(bundle))
    load_page_weights(bundle, blob, table)
    pause = 0.003 * np.random.default_rng(4).normal(size=9001)
    parts = (part for seed in range(21, 24) for part in (say(4, seed)[0], pause))
    wave = np.concatenate([np.zeros(700), *parts])
    waves = [wave.astype(np.float32), wave[3000:12345].astype(np.float32), np.zeros(90), wave[:1]]
    found = node_recognizer(
        """
        const weights = readWeights(given.weights, given.config.weights);
        const recognizer = new Recognizer(given.config, weights);
        return given.waves.map((text) => given.sizes.map((size) => {
          const wave = floats(text), session = new Session(recognizer, 8000), found = [];
          for (let at = 0; at < wave.length; at += size) {
            found.push(...session.feed(wave.subarray(at, at + size)));
          }
          return [...found, ...session.feed(new Float32Array(), true)]
            .map(({ text, segment }) => segment ?? { text });
        }));
        """,
        config=facts(bundle, "x", table), weights=base64.b64encode(blob).decode(),
        waves=list(map(coded, waves)), sizes=[137, 5000, 10**6],
    )  # fmt: skip
    n_finals = []
    for each, one in zip(found, waves, strict=True):
        wanted = list(Recognizer(bundle, "cpu").stream([one]))
        n_finals.append(sum(result.is_final for result in wanted))
        for results in each:
            assert [result["text"] for result in results] == [result.text for result in wanted]
            for result, ours in zip(results, wanted, strict=True):
                assert ("start" in result) == ours.is_final
                if ours.is_final:
                    times = (ours.segment.start, ours.segment.end)
                    assert (result["start"], result["end"]) == pytest.approx(times)
                    assert len(result["tokens"]) == len(ours.segment.tokens or ())
                    assert result["score"] == pytest.approx(ours.segment.score, abs=1e-2)
    assert n_finals[0] > 1


@pytest.mark.parametrize("threshold", [0.0, 0.25])
def test_transcripts_are_ours(threshold: float, tmp_path: Path) -> None:
    """Texts that are too uncertain are left out, with the same warnings."""
    bundle = made(tmp_path, "pairs_and_convolution")
    decoding = bundle.config.decoding.changed(
        {"method": "ctc_beam", "confidence_threshold": threshold, "chunk_seconds": 1.3}
    )
    bundle.config = bundle.config.model_copy(update={"decoding": decoding})
    wave = np.concatenate([np.zeros(9000), *(say(6, seed)[0] for seed in range(3))])
    wave = wave.astype(np.float32)
    wanted = Recognizer(bundle, "cpu").transcribe(Samples(wave, RATE))
    blob, table = pack_weights(weights_of(bundle))
    found = node_recognizer(
        """
        const recognizer = new Recognizer(
          given.config, readWeights(given.weights, given.config.weights));
        const parts = [...recognizer.segments(floats(given.wave), 8000)];
        return transcript(parts.map(({ segment }) => segment), 1);
        """,
        config=facts(bundle, "x", table), weights=base64.b64encode(blob).decode(), wave=coded(wave),
    )  # fmt: skip
    assert found["text"] == wanted.text and len(wanted.segments) > 3
    assert found["warnings"] == list(wanted.warnings)
    assert found["srt"] == as_srt(wanted)
    assert found["score"] == pytest.approx(wanted.score, abs=1e-2)
    endings = {segment.ended for segment in wanted.segments}
    assert endings == ({"eos", "uncertain"} if threshold else {"eos"}) | {"no_speech"}
    for one, segment in zip(found["segments"], wanted.segments, strict=True):
        assert (one["text"], one["ended"]) == (segment.text, segment.ended)
        assert (one["start"], one["end"]) == pytest.approx((segment.start, segment.end))
