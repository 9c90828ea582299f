"""Run exported folders in sherpa-onnx itself, and compare texts and log-probabilities with ours."""

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kaldi_native_fbank as knf
import numpy as np
import pytest
import sherpa_onnx
import soundfile as sf
import soxr
import torch
from lhotse import CutSet, Recording, SupervisionSegment
from torch import Tensor

import asr
from asr.audio.features import FbankConfig
from asr.bundle import Bundle
from asr.config import Config
from asr.errors import AsrError, ConfigError
from asr.export import sherpa
from asr.export.calibration import open_graph
from asr.export.columns import symbol_table
from asr.export.sherpa_card import card
from asr.export.sherpa_int8 import Feed, as_fed, quantize_folder
from asr.export.waveform_graph import Resampler, without_offset
from asr.tokenizer import SPECIAL, Tokenizer
from benchmarks.sherpa import in_node
from tests.helpers import RATE, run_cli, speak, tones_recipe

GREEDY = asr.DecodingOptions(method="ctc_greedy", confidence_threshold=0)
FOREVER = asr.Endpoint(silence_seconds=30, idle_seconds=30, longest_seconds=30)
FBANK = {"kind": "fbank", "sherpa_onnx": True, "n_mels": 24}
STREAMING = {"chunk": 5, "left_chunks": 3}
ROTARY = STREAMING | {"rotary": True}
ENCODER = {"n_layers": 2, "convolution": 5, "sounds": {"layer": 1}}


def random_bundle(features: dict[str, Any], encoder: dict[str, Any]) -> Bundle:
    """A bundle whose weights are far from uniform, so that texts differ."""
    torch.manual_seed(3)
    recipe = tones_recipe(Path("none"))
    recipe["features"] = features
    recipe["model"]["encoder"] = encoder
    config = Config.model_validate(recipe)
    bundle = Bundle.create(config, Tokenizer.train(["一二三四五", "五四三二一"], config.tokenizer))
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
        if features.get("normalize") == "corpus":
            bundle.features.mean_F += 12
            bundle.features.std_F += 2
    bundle.parts.eval()
    return bundle


def noises(n: int, rate: int = 16000) -> list[np.ndarray]:
    """Colored noise whose level changes twenty times a second, of 1 to 3 seconds."""
    rng, waves = np.random.default_rng(5), []
    for i in range(n):
        size = rate + i * 2 * rate // n
        levels = np.repeat(rng.uniform(0, 0.3, 20 * size // rate + 1), rate // 20)[:size]
        colored = np.convolve(rng.normal(size=size) * levels, rng.normal(size=9) / 3, "same")
        waves.append(colored.clip(-0.99, 0.99).astype(np.float32))
    return waves


def offline(bundle: Bundle, wave: np.ndarray) -> tuple[str, Tensor]:
    """The greedy text of an utterance, and the log-probabilities without special tokens."""
    with torch.no_grad():
        feats = bundle.features(torch.from_numpy(wave))
        memory, _ = bundle.model.encode(feats[None], torch.tensor([len(feats)]))
        logp = bundle.model.ctc_logits(memory).log_softmax(-1)[0]
    logp = logp[:, [0, *range(len(SPECIAL), logp.shape[1])]]
    path = torch.unique_consecutive(logp.argmax(1))
    tokens = [t + len(SPECIAL) - 1 for t in path.tolist() if t]
    return bundle.tokenizer.decode(tokens), logp


def cuts_of(waves: list[np.ndarray], folder: Path) -> CutSet:
    """Utterances to calibrate on, whose texts are of no matter."""
    cuts = []
    for i, wave in enumerate(waves):
        sf.write(folder / f"{i}.wav", wave, 16000)
        cut = Recording.from_file(folder / f"{i}.wav").to_cut()
        cut.supervisions.append(SupervisionSegment(cut.id, cut.id, 0, cut.duration, text="一二"))
        cuts.append(cut)
    return CutSet.from_cuts(cuts)


def export_in_8_bits(bundle: Bundle, waves: list[np.ndarray], folder: Path) -> None:
    """Write `folder / "out"`, with a graph in 8 bits that has about the same log-probabilities."""
    cuts = cuts_of(waves, folder)
    sherpa.export(bundle, folder / "out", lambda path: quantize_folder(bundle, cuts, path))
    feed, runs = Feed(bundle), [open_graph(folder / "out" / name) for name in MODELS]
    for wave in waves[:3]:
        exact, rounded = ([logp for _, logp in feed(wave, run)] for run in runs)
        differences = np.exp(np.concatenate(exact)) - np.exp(np.concatenate(rounded))
        assert 1e-6 < np.abs(differences).mean() < 0.05
    assert "`model.int8.onnx`" in (folder / "out/README.md").read_text("utf-8")


def run_onnx(folder: Path, *inputs: np.ndarray) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [port.name for port in session.get_inputs()]
    found: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
    return found


def recognize(recognizer: Any, waves: list[np.ndarray], rate: int = 16000) -> list[Any]:
    streams = []
    for wave in waves:
        streams.append(recognizer.create_stream())
        streams[-1].accept_waveform(rate, wave)
    recognizer.decode_streams(streams)
    return [stream.result for stream in streams]


def omnilingual(folder: Path, model: str = "model.onnx") -> Any:
    return sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(
        model=str(folder / model), tokens=str(folder / "tokens.txt")
    )


def zipformer(folder: Path, model: str = "model.onnx") -> Any:
    return sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
        model=str(folder / model), tokens=str(folder / "tokens.txt"), feature_dim=24
    )


MODELS = ("model.onnx", "model.int8.onnx")
FILES = {"tokens.txt", "README.md", *MODELS}


@pytest.fixture(scope="module")
def of_tones(learned: Path, tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that has learned tones of 8 kHz, exported by the command line, in 8 bits too."""
    folder = tmp_path_factory.mktemp("sherpa") / "tones"
    options = ["--format", "sherpa", "--int8", "--cuts", str(tones / "dev.jsonl.gz")]
    result = run_cli("export", learned, *options, "--out", folder)
    assert result.returncode == 0, result.stderr
    (sizes, rates) = re.findall(r"([\d.]+)%? -> ([\d.]+)", result.stdout)
    assert float(sizes[1]) < float(sizes[0]) and rates[0] == rates[1]
    assert {p.name for p in folder.iterdir()} == FILES
    assert [p.name for p in folder.parent.iterdir()] == ["tones"]
    return folder


TEXTS = ["".join(np.random.default_rng(i).choice(list("一二三四五"), 5)) for i in range(20)]


def test_a_bundle_of_8_khz_writes_its_texts_and_times_in_sherpa_onnx(
    learned: Path, of_tones: Path
) -> None:
    waves = [speak(text, 50 + i) for i, text in enumerate(TEXTS)]
    results = recognize(omnilingual(of_tones), waves, RATE)
    bundle = Bundle.load(learned)
    bundle.parts.eval()
    ours = [offline(bundle, wave)[0] for wave in waves]
    assert [r.text for r in results] == ours
    in_8_bits = recognize(omnilingual(of_tones, "model.int8.onnx"), waves, RATE)
    assert [r.text for r in in_8_bits] == ours
    assert sum(a == b for a, b in zip(ours, TEXTS, strict=True)) >= 15
    for result in results:  # a tone lasts 0.12 s
        places = (np.array(result.timestamps) - 0.02) / 0.12
        assert np.abs(places - np.arange(len(places))).max() < 0.9
        assert max(result.timestamps) < len(waves[0]) / RATE


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "features",
    [
        {"kind": "spectrogram"},
        {"kind": "log_mel", "n_mels": 24, "hop_ms": 20, "normalize": "corpus"},
        {"kind": "fbank", "n_mels": 24, "hop_ms": 12.5},
    ],
    ids=lambda f: f["kind"],
)
def test_the_graph_of_a_waveform_has_the_log_probabilities_of_the_model(
    features: dict[str, Any], tmp_path: Path
) -> None:
    bundle = random_bundle(features, {"n_layers": 1})
    sherpa.export(bundle, tmp_path / "out")
    waves = [wave - wave.mean() for wave in noises(4)]
    waves[2][:5000] = 0  # digital silence stays silence when the mean is taken out
    waves[2] += 0.1 * (waves[2] != 0)
    step = 4 * bundle.config.features.hop_length / 16000
    for wave in waves:
        text, wanted = offline(bundle, wave)
        (found,) = run_onnx(tmp_path / "out", as_fed(wave))[0]
        steps = (np.arange(len(found)) * 0.02 / step + 1e-9).astype(int)
        assert len(found) == int(np.ceil(len(wanted) * step / 0.02 - 1e-9)) and text
        np.testing.assert_allclose(found, wanted[steps].numpy(), atol=1e-3)
    results = recognize(omnilingual(tmp_path / "out"), waves)
    assert [r.text for r in results] == [offline(bundle, w)[0] for w in waves]


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize("features", [{"kind": "log_mel", "n_mels": 24}, FBANK], ids=str)
def test_an_attention_for_so_many_steps_is_exported_and_the_readme_tells_its_length(
    features: dict[str, Any], tmp_path: Path
) -> None:
    """The comparison of the export is no longer than that, and sherpa-onnx takes as much."""
    attention = {"kind": "random_synthesizer", "length": 50}
    bundle = random_bundle(features, {"n_layers": 1, "attention": attention})
    sherpa.export(bundle, tmp_path / "out")
    assert "longer than 1.96 s at silences" in (tmp_path / "out/README.md").read_text()
    wave = noises(4)[3][: int(1.96 * 16000)]
    wave -= wave.mean()
    load = omnilingual if features != FBANK else zipformer
    assert recognize(load(tmp_path / "out"), [wave])[0].text == offline(bundle, wave)[0]
    longer = noises(4)[3][: 2 * 16000]  # of 50 steps, to which the graph adds one
    (tmp_path / "int8").mkdir()
    shorter = [wave[:n] for n in (16000, 20000, 24000)]
    export_in_8_bits(bundle, [*shorter, longer], tmp_path / "int8")


def test_silence_and_what_is_shorter_than_a_step_are_no_error(of_tones: Path) -> None:
    for n, value in ((16000, 0.0), (16000, 0.2), (1, 0.5), (100, 0.0), (700, 0.1)):
        wave = np.full(n, value, np.float32)
        (found,) = run_onnx(of_tones, as_fed(wave))
        assert np.isfinite(found).all() and (found.shape[1] > 0 or n < 16000)
    assert len(recognize(omnilingual(of_tones), [np.zeros(8000, "f4"), np.zeros(0, "f4")])) == 2


def test_digital_silence_is_zero_again_and_noise_stays() -> None:
    rng = np.random.default_rng(0)
    speech = torch.from_numpy(0.1 + rng.normal(size=(1, 9000)))
    silent = torch.cat((torch.zeros(1, 1000), speech), 1)
    torch.testing.assert_close(without_offset(silent * 3 - 0.7), silent * 3)
    torch.testing.assert_close(without_offset(silent.flip(1) * 3 - 0.7), silent.flip(1) * 3)
    assert torch.equal(without_offset(speech), speech)


@pytest.mark.parametrize("rate", [8000, 11025, 12000])
def test_resampling_equals_soxr_below_the_lower_band(rate: int) -> None:
    t = np.arange(16000) / 16000
    wave = sum(np.sin(2 * np.pi * f * t + f) for f in (37, 910, 0.4 * rate)) / 3
    found = Resampler(rate)(torch.from_numpy(wave.astype(np.float32))[None])[0].numpy()
    assert len(found) == rate
    expected = soxr.resample(wave, 16000, rate)
    middle = slice(rate // 10, -rate // 10)
    np.testing.assert_allclose(found[middle], expected[middle], atol=2e-3)
    above = np.sin(2 * np.pi * 0.55 * rate * t).astype(np.float32)
    assert Resampler(rate)(torch.from_numpy(above)[None])[0][middle].abs().max() < 2e-3


def test_features_for_sherpa_onnx_are_those_of_kaldi_native_fbank() -> None:
    wave = noises(1)[0]
    wave[4000:9000] = 0
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.mel_opts.num_bins, options.mel_opts.high_freq = 80, -400
    fbank = knf.OnlineFbank(options)
    fbank.accept_waveform(16000, wave.tolist())
    fbank.input_finished()
    expected = np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])
    found = FbankConfig(sherpa_onnx=True).build().log_power(torch.from_numpy(wave)).numpy()
    np.testing.assert_allclose(found, expected + 2 * np.log(2**15), atol=5e-3)


@pytest.mark.costly
def test_utterances_are_decoded_in_batches_on_features_of_sherpa_onnx(tmp_path: Path) -> None:
    bundle, waves = random_bundle(FBANK, ENCODER), noises(20)
    export_in_8_bits(bundle, waves, tmp_path)
    recognizer, in_8_bits = (zipformer(tmp_path / "out", name) for name in MODELS)
    results = recognize(recognizer, waves)
    ours = [offline(bundle, wave)[0] for wave in waves]
    assert [r.text for r in results] == ours and len(set(ours)) > 3
    run = open_graph(tmp_path / "out/model.int8.onnx")
    ours = [Feed(bundle).text(wave, run) for wave in waves]
    assert [r.text for r in recognize(in_8_bits, waves)] == ours
    recognize(recognizer, [np.zeros(480, "f4"), np.zeros(16000, "f4")])
    feats = [
        bundle.features.log_power(torch.from_numpy(w)).numpy() - 2 * np.log(2**15)
        for w in waves[:3]
    ]
    longest = max(map(len, feats))
    batch = np.stack(
        [np.pad(f, ((0, longest - len(f)), (0, 0)), constant_values=-23) for f in feats]
    ).astype(np.float32)
    found, steps = run_onnx(tmp_path / "out", batch, np.array([len(f) for f in feats]))
    for row, n, wave in zip(found, steps, waves, strict=False):
        np.testing.assert_allclose(row[:n], offline(bundle, wave)[1].numpy(), atol=1e-3)


def recognize_streams(folder: Path, model: str, waves: list[np.ndarray]) -> list[str]:
    recognizer = sherpa_onnx.OnlineRecognizer.from_zipformer2_ctc(
        model=str(folder / model), tokens=str(folder / "tokens.txt"), feature_dim=24
    )
    streams = [recognizer.create_stream() for _ in waves]
    while any(len(wave) for wave in waves):
        for stream, wave in zip(streams, waves, strict=True):
            stream.accept_waveform(16000, wave[:1600])
        while ready := [s for s in streams if recognizer.is_ready(s)]:
            recognizer.decode_streams(ready)
        waves = [wave[1600:] for wave in waves]
    return [recognizer.get_result(stream) for stream in streams]


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("convolution", "frontend", "streaming"), [(5, "vgg", ROTARY), (None, "strided", STREAMING)]
)
def test_a_stream_has_the_text_of_our_streaming_recognizer(
    convolution: int | None, frontend: str, streaming: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    encoder = {
        "n_layers": 2, "convolution": convolution, "streaming": streaming, "sounds": {"layer": 1},
    }  # fmt: skip
    bundle = random_bundle(FBANK | {"normalize": "corpus"}, encoder)
    if frontend == "strided":
        values = bundle.config.model_dump()
        values["model"]["frontend"] = {"kind": "strided", "channels": [4, 8]}
        bundle = Bundle.create(Config.model_validate(values), bundle.tokenizer)
        bundle.parts.eval()
    bundle.save(tmp_path / "bundle", "")
    export_in_8_bits(bundle, noises(6), tmp_path)
    ours = asr.load(tmp_path / "bundle", "cpu")
    texts = recognize_streams(tmp_path / "out", "model.onnx", noises(6))
    for wave, text in zip(noises(6), texts, strict=True):
        results = ours.stream([wave], GREEDY, endpoint=FOREVER)
        whole = "".join(result.text for result in results if result.is_final)
        # The last chunk, which is not full, is ours alone.
        assert whole.startswith(text) and len(whole) - len(text) <= 2 * STREAMING["chunk"]
    run = open_graph(tmp_path / "out/model.int8.onnx")
    in_8_bits = recognize_streams(tmp_path / "out", "model.int8.onnx", noises(6))
    for wave, text in zip(noises(6), in_8_bits, strict=True):
        assert Feed(bundle).text(wave, run).startswith(text)
    assert any(texts) and any(in_8_bits)


def test_what_sherpa_onnx_cannot_take_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_bundle: Path
) -> None:
    (tmp_path / "there").mkdir()
    result = run_cli("export", tiny_bundle, "--format", "sherpa", "--out", tmp_path / "there")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "already exists" in result.stderr
    fbank = {"kind": "fbank", "normalize": "corpus"}
    for features, encoder, words in (
        ({"kind": "log_mel"}, {"attention": {"kind": "fnet"}}, "kind: fnet cannot be exported"),
        (fbank, {}, "level of fbank features"),
        ({"kind": "fbank", "sherpa_onnx": True, "window_ms": 40, "hop_ms": 20}, {}, "true level"),
        (fbank, {"streaming": STREAMING}, "features.sherpa_onnx: true"),
        ({"kind": "log_mel", "sample_rate": 44100}, {}, "44100 cannot be made of the 16000 Hz"),
        ({"kind": "log_mel", "hop_ms": 2.5}, {}, "hop_ms: 2.5 makes more"),
        ({"kind": "log_mel", "window_ms": 1000}, {}, "window_ms: 1000 makes the Fourier"),
        (FBANK | {"sample_rate": 11025}, {}, "at 11025 Hz sherpa-onnx has windows of an odd"),
    ):
        with pytest.raises(ConfigError, match=words):
            sherpa.export(random_bundle(features, encoder), tmp_path / "out")
    recipe = tones_recipe(tmp_path)
    recipe["model"]["ctc_weight"] = 0
    recipe["decoding"]["ctc_weight"] = 0
    with pytest.raises(ConfigError, match="by a CTC head, and this model has none"):
        sherpa.kind_of(Config.model_validate(recipe))
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


@pytest.mark.costly
def test_a_graph_that_differs_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = random_bundle({"kind": "log_mel", "n_mels": 24}, {"n_layers": 1})
    right = sherpa.open_onnx
    monkeypatch.setattr(sherpa, "open_onnx", lambda path: lambda *x: [right(path)(*x)[0] + 2e-3])
    with pytest.raises(AsrError, match=r"differs from the model by \S+e-03"):
        sherpa.export(bundle, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_symbols_are_read_as_they_are() -> None:
    recipe = tones_recipe(Path("none"))
    tokens = Tokenizer.train(["ƠƯ ƠƯ5"], Config.model_validate(recipe).tokenizer)
    lines = symbol_table(tokens).splitlines()
    assert lines[0] == "<blk> 0" and {line.split(" ")[0] for line in lines[1:5]} == set("▁ƠƯ5")
    assert max("".join(lines).replace("▁", "").encode()) != 0xC6  # coded bytes otherwise


@pytest.mark.parametrize("token", ["A B", "A\nB 7", " ", "\u3000"])
def test_a_token_that_would_be_two_lines_or_columns_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="is no word"):
        symbol_table(SimpleNamespace(tokens=lambda: ["<unk>", "<s>", "</s>", "<pad>", "好", token]))


def test_the_readme_names_what_is_not_done_on_a_phone(learned: Path, of_tones: Path) -> None:
    config = Bundle.load(learned).config
    seconds = config.decoding.chunk_seconds
    assert seconds and card("omnilingual", config, True) == (of_tones / "README.md").read_text()
    assert f"longer than {seconds:g} s at silences" in card("omnilingual", config)
    assert "at silences" not in card("zipformer2_ctc", config)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_folder_runs_in_node(model: str, of_tones: Path) -> None:
    modules = os.environ.get("NODE_PATH", "")
    if not shutil.which("node") or not (Path(modules) / "sherpa-onnx").is_dir():
        pytest.skip("needs the npm package sherpa-onnx in a folder that NODE_PATH names")
    waves = [speak(text, 50 + i).astype(np.float32) for i, text in enumerate(TEXTS)]
    found, _ = in_node(of_tones / model, "omnilingual", 80, RATE, waves)
    assert found == [r.text for r in recognize(omnilingual(of_tones, model), waves, RATE)]
