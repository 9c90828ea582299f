"""Compute the results that must stay the same, and write them to `tests/golden`.

`python tests/golden_run.py write` writes the files, `tests/test_golden.py` compares with them.
Run both with OMP_NUM_THREADS=1, or sums may be taken in another order.

A result is either arrays by name (a `.safetensors` file) or plain values (a `.json.gz` file, floats
rounded to `DECIMALS`). No key in them is the name of a setting.
"""

import gzip
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime
import soundfile as sf
import torch
from safetensors.numpy import load_file, save

# ---- All that is imported from this repository. The tests' own helpers come last. ----
from asr.audio.features import LogMelConfig, SpectrogramConfig
from asr.bundle import Bundle, load_weights
from asr.config import Config
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.export.export import export
from asr.tokenizer import Tokenizer
from asr.train.module import SpeechModule
from asr.train.run import train
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import Transcript
from tests.helpers import RATE, TONES, URL, Service, running, speak, tones_recipe, write_tones

NATIVE_URL = "/v1/transcribe"
FOLDER = Path(__file__).with_name("golden")
DECIMALS = 5
MODEL, TOKENS = FOLDER / "model.safetensors", FOLDER / "tokenizer.model"

Arrays = dict[str, np.ndarray]


# ---- Adapters: all other places that know names of settings, of files or of methods. ----


def search_options(
    method: str, beam: int = 4, share: float = 0.0, reward: float = 0.1, least: float = 0.0,
    lm: Path | None = None, scale: float = 1.0,
) -> DecodingOptions:  # fmt: skip
    """Build the options of a search.

    `share` is the CTC head's, `reward` the length's, `least` the confidence below which a text is
    dropped, `scale` what the log-probability is multiplied by; a language model weighs 0.4.
    """
    return DecodingOptions.model_validate(
        {
            "method": method, "beam_size": beam, "ctc_weight": share, "gamma": reward,
            "confidence_threshold": least, "n_best": 3, "alpha": scale,
            "lm": lm, "lm_weight": 0.4 if lm else 0.0,
        }
    )  # fmt: skip


def recipe(corpus: Path, projection: dict[str, Any]) -> Config:
    """Build the recipe of a training of 30 steps: three epochs of ten, at a small rate."""
    return Config.model_validate(
        tones_recipe(
            corpus,
            data={"batch_seconds": 3.0},
            model={"projection": projection},
            training={
                "epochs": 3,
                "average": 3,
                "schedule": {"kind": "linear", "lr": 2e-3, "warmup_steps": 10},
            },
        )
    )


def model_recipe(corpus: Path) -> Config:
    """Build the recipe of the model that the searches, the graphs and the service use."""
    return Config.model_validate(
        tones_recipe(
            corpus,
            model={"dropout": 0.0, "d_model": 40},
            training={
                "epochs": 8,
                "schedule": {"kind": "linear", "lr": 4e-3, "warmup_steps": 40},
            },
        )
        | {
            "decoding": {
                "beam_size": 3, "ctc_weight": 0.5, "confidence_threshold": 0.2, "chunk_seconds": 4,
            }
        }
    )  # fmt: skip


def train_on_cpu(config: Config, out: Path, resume: bool = False) -> Path:
    """Train a recipe into a bundle."""
    return train(config, out, resume=resume, device="cpu")


def train_until(config: Config, out: Path, step: int) -> None:
    """Train a recipe and stop before the given step as a crash would."""

    class Crash(Exception):
        pass

    whole = SpeechModule.training_step

    def crashing(task: SpeechModule, *args: Any) -> Any:
        if task.global_step == step:
            raise Crash
        return whole(task, *args)

    with patch.object(SpeechModule, "training_step", crashing):
        try:
            train_on_cpu(config, out)
        except Crash:
            return
    raise AssertionError("the training was to crash")


def last_weights(out: Path) -> Arrays:
    """Read the weights of the third epoch and the number of steps that made them."""
    state = torch.load(out / "training" / "last.ckpt", weights_only=True)
    weights = {k.removeprefix("model."): v.numpy() for k, v in state["state_dict"].items()}
    return {**weights, "steps": np.array([state["global_step"]], np.int32)}


def golden_bundle() -> Bundle:
    """Build the model from the golden weights."""
    bundle = Bundle.create(model_recipe(Path("data")), Tokenizer(TOKENS.read_bytes()))
    load_weights(bundle.parts, MODEL)
    return bundle


def feature_extractors() -> dict[str, torch.nn.Module]:
    """Build the features of every kind, by name."""
    configs = {
        "spectrogram_16k": SpectrogramConfig(sample_rate=16000),
        "spectrogram_8k": SpectrogramConfig(sample_rate=8000),
        "log_mel_16k": LogMelConfig(sample_rate=16000, n_mels=80),
        "log_mel_8k": LogMelConfig(sample_rate=8000, n_mels=20),
    }
    return {name: config.build() for name, config in configs.items()}


def hypothesis_row(text: str, found: Hypothesis) -> list[Any]:
    """List a hypothesis: text, how it ended, its score and the parts of it."""
    return rounded(
        [
            text, found.ended, found.score, found.log_prob, found.ctc_log_prob,
            found.lm_log_prob, found.length_score,
        ]
    )  # fmt: skip


def transcript_rows(found: Transcript) -> dict[str, Any]:
    """List a transcript: text, score, seconds, warnings, n best, and segments with their tokens."""
    segments = [
        [
            each.start, each.end, each.text, each.score, each.ended, list(each.confidences),
            None if each.tokens is None else [[t.text, t.start, t.end] for t in each.tokens],
        ]
        for each in found.segments
    ]  # fmt: skip
    return rounded(
        {
            "text": found.text,
            "score": found.score,
            "seconds": found.duration,
            "warnings": list(found.warnings),
            "nbest": [hypothesis_row(each.text, each) for each in found.nbest],
            "segments": segments,
        }
    )


# ---- Inputs, all from seeds. ----


def corpus_in(folder: Path) -> Path:
    """Write the corpus of the short trainings."""
    return write_tones(folder / "data", 50, 4)


def utterance(number: int, most: int = 8) -> tuple[str, np.ndarray]:
    """Make a text and a recording of it, with more noise in some than in others."""
    rng = np.random.default_rng(7000 + number)
    text = "".join(rng.choice(list(TONES), size=rng.integers(1, most + 1)))
    wave = speak(text, number)
    level = (0.0, 0.05, 0.15, 0.3)[number % 4]
    return text, (wave + level * rng.normal(size=len(wave))).astype(np.float32)


def utterances() -> list[np.ndarray]:
    """Make 200 recordings: of tones but for silence, noise, and two that are too short."""
    rng = np.random.default_rng(11)
    special = [
        np.zeros(4000), 0.1 * rng.normal(size=6000), 0.1 * rng.normal(size=8), np.full(100, 0.25),
    ]  # fmt: skip
    waves = [utterance(i)[1] for i in range(200 - len(special))]
    return waves + [wave.astype(np.float32) for wave in special]


def long_wave(seed: int) -> np.ndarray:
    """Make a recording of 12 utterances with pauses between them."""
    pause = np.zeros(int(0.3 * RATE), np.float32)
    return np.concatenate([w for i in range(12) for w in (utterance(seed + i)[1], pause)])


def as_file(wave: np.ndarray, rate: int = RATE, kind: str = "WAV") -> bytes:
    """Encode a recording as 16 bits."""
    file = io.BytesIO()
    sf.write(file, np.clip(wave, -1, 1), rate, format=kind, subtype="PCM_16")
    return file.getvalue()


def recordings() -> list[bytes]:
    """Make the 20 files that are sent to the service: several rates, channels and formats."""
    files = [as_file(utterance(300 + i)[1]) for i in range(12)]
    for i, rate in enumerate((11025, 16000, 44100)):  # played faster, so of other tones
        files.append(as_file(utterance(320 + i)[1], rate))
    stereo = np.stack([utterance(330)[1]] * 2, axis=1)
    files += [as_file(stereo), as_file(utterance(331)[1], kind="FLAC")]
    files += [as_file(long_wave(340)), as_file(np.zeros(8000))]
    return [*files, as_file(utterance(332)[1])[:-2000]]  # the last one is truncated


def chirp(rate: int) -> torch.Tensor:
    """Make a rising tone over noise, a second long."""
    rng, t_N = np.random.default_rng(3), np.arange(rate) / rate
    wave = 0.3 * np.sin(2 * np.pi * (200 * t_N + rate / 8 * t_N**2)) * t_N
    return torch.from_numpy((wave + 0.003 * rng.normal(size=rate)).astype(np.float32))


def ngram_file(folder: Path) -> Path:
    """Write a small n-gram model of the tones."""
    first, second = tuple(TONES)[:2]
    ones = [f"{-0.5 - 0.1 * i:.1f} {tone} -0.{i + 1}" for i, tone in enumerate(TONES)]
    twos = [f"-0.3 <s> {first}", f"-0.2 {first} {second}", f"-0.4 {second} </s>"]
    lines = [
        "\\data\\", f"ngram 1={len(ones) + 3}", f"ngram 2={len(twos)}", "",
        "\\1-grams:", "-99 <s> -0.5", "-1.0 </s>", "-2.0 <unk> -0.1", *ones, "",
        "\\2-grams:", *twos, "", "\\end\\", "",
    ]  # fmt: skip
    path = folder / "tones.arpa"
    path.write_text("\n".join(lines), "utf-8")
    return path


# ---- Results. ----


def weights_dense(folder: Path) -> Arrays:
    """Train the dense Transformer."""
    return last_weights(train_on_cpu(recipe(corpus_in(folder), {"kind": "dense"}), folder / "run"))


def weights_low_rank(folder: Path) -> Arrays:
    """Train the Low-Rank Transformer."""
    config = recipe(corpus_in(folder), {"kind": "low_rank", "rank": 8})
    return last_weights(train_on_cpu(config, folder / "run"))


def weights_set_sparse(folder: Path) -> Arrays:
    """Train the Transformer of sparse maps, which are rewired twice."""
    config = recipe(corpus_in(folder), {"kind": "set_sparse", "epsilon": 3.0, "zeta": 0.3})
    return last_weights(train_on_cpu(config, folder / "run"))


def weights_resumed(folder: Path) -> Arrays:
    """Train the Low-Rank Transformer, crash in the second epoch, and resume."""
    config = recipe(corpus_in(folder), {"kind": "low_rank", "rank": 6})
    train_until(config, folder / "run", 15)
    return last_weights(train_on_cpu(config, folder / "run", resume=True))


def texts(folder: Path) -> dict[str, Any]:
    """Find the n best of all utterances by every search; the best one's confidences follow."""
    recognizer, lm = Recognizer(golden_bundle(), "cpu"), ngram_file(folder)
    searches = {
        "greedy attention": search_options("joint", beam=1),
        "attention": search_options("joint"),
        "attention, ngram": search_options("joint", lm=lm),
        "joint": search_options("joint", share=0.5),
        "joint, long": search_options("joint", share=0.3, reward=4.0, scale=0.7),
        "joint, sure": search_options("joint", share=0.5, least=0.6),
        "joint, ngram": search_options("joint", share=0.5, lm=lm),
        "greedy ctc": search_options("ctc_greedy"),
        "ctc": search_options("ctc_beam"),
        "ctc, ngram": search_options("ctc_beam", lm=lm),
        "rescore": search_options("rescore", share=0.4),
        "rescore, ngram": search_options("rescore", share=0.4, lm=lm),
    }
    waves, results = [torch.from_numpy(wave) for wave in utterances()], {}
    for name, search in searches.items():
        results[name] = [
            {
                "nbest": [hypothesis_row(h.text, h) for h in nbest],
                "confidences": rounded(list(nbest[0].confidences)),
            }
            for nbest in recognizer.hypotheses(waves, search)
        ]
    return results


def transcripts(folder: Path) -> dict[str, Any]:
    """Transcribe files with tokens' times: the utterances, and two that are cut into chunks."""
    recognizer = Recognizer(golden_bundle(), "cpu")
    files = [as_file(wave) for wave in [*utterances(), long_wave(400), long_wave(420)]]
    found = list(recognizer.transcribe_all([io.BytesIO(file) for file in files]))
    assert all(isinstance(each, Transcript) for each in found)
    return {str(i): transcript_rows(each) for i, each in enumerate(found)}


def graphs(folder: Path) -> Arrays:
    """Run the exported graphs: the encoder, then two steps of the decoder."""
    export(golden_bundle(), "onnx", folder / "graphs")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    results: Arrays = {}

    def run(name: str, given: Arrays, prefix: str) -> Arrays:
        path = folder / "graphs" / f"{name}.onnx"
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_outputs()]
        fed = {port.name: given[port.name] for port in session.get_inputs()}
        found = dict(zip(names, session.run(None, fed), strict=True))
        golden = {"keep" if name == "mask" else name: array for name, array in found.items()}
        results.update({f"{prefix} {name}": array for name, array in golden.items()})
        return found

    rng, beam = np.random.default_rng(5), 2
    feats = rng.normal(size=(2, 40, 20)).astype(np.float32)
    held = run("encoder", {"features": feats, "lengths": np.array([40, 27])}, "encoder")
    for name, array in list(held.items()):
        if name.startswith("memory_"):
            B, H, _, K = array.shape
            held[name.removeprefix("memory_")] = np.zeros((B, beam, H, 0, K), np.float32)
    for step, tokens in enumerate(([[1, 1], [1, 1]], [[4, 6], [5, 8]])):
        found = run("decoder", {**held, "tokens": np.array(tokens)}, f"step {step}")
        held |= {name.removeprefix("new_"): array for name, array in found.items()}
    return results


def service(folder: Path) -> dict[str, Any]:
    """Send files to the service, one after the other so that none share a batch."""
    golden_bundle().save(folder / "tiny", "a card")
    times = {"timestamp_granularities[]": ["word", "segment"]}
    results = {}
    with running(folder / "tiny") as served:
        for i, file in enumerate(recordings()):
            results[str(i)] = {
                "json": answer(served, file, response_format="json"),
                "verbose": answer(served, file, response_format="verbose_json", **times),
                "native": answer(served, file, NATIVE_URL),
            }
    return rounded(results)


def answer(served: Service, file: bytes, url: str = URL, **fields: Any) -> dict[str, Any]:
    """Post a file; returns status and JSON without the times taken."""
    reply = served.post(file, url, **fields)
    found = reply.json()
    if found.pop("timing", None):  # these keys had other places, or were not there
        segments = found["segments"]
        nbests = [segment.pop("nbest") for segment in segments]
        found["nbest"] = nbests[0] if len(nbests) == 1 else []
        for each in segments:
            del each["token_ids"], each["words"]
        for each in found["nbest"]:
            del each["tokens"], each["hotword_score"]
        del found["srt"], found["vtt"]
    return {"status": reply.status_code, "body": found}


def features(folder: Path) -> Arrays:
    """Compute features of a wave: each bin's mean, and some of the frames, before and after."""
    results: Arrays = {}
    for name, extractor in feature_extractors().items():
        wave_N = chirp(8000 if name.endswith("8k") else 16000)
        for what, feats in (
            ("log_power", extractor.log_power(wave_N)), ("normalized", extractor(wave_N)),
        ):  # fmt: skip
            found = feats.numpy()
            results[f"{name} {what} shape"] = np.array(found.shape, np.int32)
            results[f"{name} {what} mean"] = found.mean(0, dtype=np.float64).astype(np.float32)
            results[f"{name} {what} frames"] = np.ascontiguousarray(found[::25])
    return results


ARRAYS: dict[str, Callable[[Path], Arrays]] = {
    "weights_dense": weights_dense,
    "weights_low_rank": weights_low_rank,
    "weights_set_sparse": weights_set_sparse,
    "weights_resumed": weights_resumed,
    "graphs": graphs,
    "features": features,
}
VALUES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "texts": texts,
    "transcripts": transcripts,
    "service": service,
}


# ---- Files. ----


def rounded(value: Any) -> Any:
    """Round all floats in plain values."""
    if isinstance(value, float):
        return round(value, DECIMALS) + 0.0  # without a negative zero
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return value


def read(name: str) -> Any:
    """Read a golden result."""
    if name in ARRAYS:
        return load_file(FOLDER / f"{name}.safetensors")
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def write(name: str) -> None:
    """Compute a result and write its file."""
    with tempfile.TemporaryDirectory() as folder:
        if name in ARRAYS:
            arrays = {k: np.ascontiguousarray(v) for k, v in ARRAYS[name](Path(folder)).items()}
            (FOLDER / f"{name}.safetensors").write_bytes(save(arrays))
        else:
            values = VALUES[name](Path(folder))
            text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
            packed = gzip.compress(text.encode(), mtime=0)
            (FOLDER / f"{name}.json.gz").write_bytes(packed)


def write_model() -> None:
    """Train the model of the searches, and keep its weights and tokens."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_tones(Path(folder) / "data", 160, 8)
        bundle = train_on_cpu(model_recipe(corpus), Path(folder) / "run")
        MODEL.write_bytes((bundle / MODEL.name).read_bytes())
        TOKENS.write_bytes((bundle / TOKENS.name).read_bytes())


def main(arguments: list[str]) -> None:
    """Write all golden files, or those that are named: `write [model] [NAME ...]`."""
    if arguments[:1] != ["write"]:
        sys.exit("usage: python tests/golden_run.py write [model | NAME ...]")
    FOLDER.mkdir(exist_ok=True)
    for name in arguments[1:] or ["model", *ARRAYS, *VALUES]:
        write_model() if name == "model" else write(name)


if __name__ == "__main__":
    main(sys.argv[1:])
