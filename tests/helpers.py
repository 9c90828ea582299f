"""What several tests share: tone corpora, tiny models, brute-force scores and a real service."""

import atexit
import base64
import functools
import io
import itertools
import json
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import Pipe
from pathlib import Path
from subprocess import PIPE
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import soundfile as sf
import torch
import uvicorn
import yaml
from torch import Tensor, nn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from asr.audio.recording import Recording, Source
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import BLANK
from asr.decoding.decode import SpeechDecoder
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.scorers import JointScorer
from asr.model.attention import (
    EncoderAttentionConfig,
    FullAttentionConfig,
)
from asr.model.encoder import EncoderConfig
from asr.model.frontend import VggConfig
from asr.model.projection import DenseConfig, LowRankConfig
from asr.model.transformer import ModelConfig, SpeechTransformer
from asr.model.unit import NormOrder
from asr.tokenizer import EOS, SOS
from data_prep import aishell1
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from serve.app import create_app
from serve.engine.client import EngineClient
from serve.engine.messages import Done, Failed, Transcribe
from serve.engine.process import Engine
from serve.server import configure
from serve.settings import Settings

RATE = 8000
TONES = {"一": 400, "二": 700, "三": 1100, "四": 1700, "五": 2400}
D, INNER, HEADS, VOCAB, FREQS = 16, 32, 4, 11, 21
ENCODER: dict[str, dict[str, Any]] = {
    "full": {},
    "linformer": {"rank": 5, "length": 40},
    "conv_linformer": {"stride": 3},
    "linear": {},
    "performer": {"features": 6},
    "sliding_window": {"window": 2, "dilation": 2, "global_tokens": 2},
    "lsh": {"chunk": 3, "buckets": 2, "rounds": 2},
    "nystrom": {"landmarks": 3},
    "s4d": {"states": 3},
    "s4": {"states": 3},
    "fnet": {},
    "dense_synthesizer": {"length": 40},
    "random_synthesizer": {"length": 40},
    "isab": {"points": 3},
    "luna": {"points": 3},
    "bigbird": {"block": 2},
    "sinkhorn": {"block": 2, "length": 40},
    "routing": {"clusters": 3},
    "transformer_xl": {"segment": 2, "memory": 2},
    "compressive": {"segment": 4, "rate": 2, "compressed": 2},
    "sparse_strided": {"stride": 3},
    "sparse_fixed": {"stride": 4, "summary": 2},
}
V = 7  # PAD, SOS, EOS, UNK and three letters
LETTERS = (4, 5, 6)
WORD_COUNTS = torch.tensor([0.0, 0, 0, 0, 1, 1, 1])
METHODS = ("joint", "ctc_greedy", "ctc_beam", "rescore")
TEXTS = {
    "BAC009S0002W0001": "train", "BAC009S0002W0002": "train", "BAC009S0003W0001": "train",
    "BAC009S0724W0001": "dev", "BAC009S0764W0001": "test",
}  # fmt: skip
URL = "/v1/audio/transcriptions"
_LONGEST_RUN = 600  # seconds
LIVE_START = {"sample_rate": RATE, "model": "tiny"}
MAX_BYTES, MAX_SECONDS = 3 * 2**20, 60.0


def speak(text: str, seed: int = 0, pitches: dict[str, int] = TONES) -> np.ndarray:
    """A text as a row of tones with a little noise: 0.12 s a character, 8 kHz."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(0.1 * RATE)) / RATE
    gap = np.zeros(int(0.02 * RATE))
    tones = [
        np.concatenate((np.sin(2 * np.pi * pitches[c] * t) * np.hanning(len(t)), gap)) for c in text
    ]
    wave = np.concatenate((gap, *tones, gap))
    return (0.5 * wave + rng.normal(0, 0.003, len(wave))).astype(np.float32)


def write_tones(
    root: Path, n_train: int = 120, n_dev: int = 8, pitches: dict[str, int] = TONES
) -> Path:
    """A corpus of tones: manifests in `root`; returns it."""
    rng = np.random.default_rng(0)
    (root / "wav").mkdir(parents=True)
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for split, n in (("train", n_train), ("dev", n_dev), ("test", n_dev)):
        for i in range(n):
            text = "".join(rng.choice(list(pitches), size=rng.integers(1, 5)))
            path = root / "wav" / f"{split}{i}.wav"
            sf.write(path, speak(text, i, pitches), RATE, subtype="PCM_16")
            splits[split].append(Utterance(f"{split}{i}", path, text, "tone"))
    write_corpus(splits, root, corpus="tones", synthetic=True, jobs=1)
    return root


def tones_recipe(corpus: Path, **changes: Any) -> dict[str, Any]:
    """A tiny recipe over it, as the values of a YAML file."""
    values: dict[str, Any] = {
        "data": {
            "train": str(corpus / "train.jsonl.gz"),
            "dev": str(corpus / "dev.jsonl.gz"),
            "batch_seconds": 4,
        },
        "features": {"kind": "log_mel", "sample_rate": RATE, "n_mels": 20},
        "augment": {"freq_masks": 1, "freq_width": 2, "time_masks": 1, "time_ratio": 0.1},
        "model": {
            "d_model": 32,
            "d_inner": 64,
            "n_heads": 2,
            "dropout": 0.1,
            "norm": "pre",
            "projection": {"kind": "low_rank", "rank": 8},
            "frontend": {"kind": "vgg", "channels": [4, 8]},
            "encoder": {"n_layers": 1},
            "decoder": {"n_layers": 1},
            "ctc_weight": 0.5,
        },
        "decoding": {"beam_size": 3, "ctc_weight": 0.5},
        "training": {
            "epochs": 2,
            "schedule": {"kind": "noam", "warmup_steps": 50},
            "average": 2,
            "checkpoint_steps": 2,
        },
    }
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    return values


def write_recipe(path: Path, values: dict[str, Any]) -> Path:
    """The recipe as a file."""
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


def learning_recipe(corpus: Path) -> dict[str, Any]:
    """The tiny recipe with enough epochs to get the tones right."""
    return tones_recipe(
        corpus,
        model={"dropout": 0.0, "d_model": 48},
        training={
            "epochs": 16,
            "schedule": {"kind": "linear", "lr": 4e-3, "warmup_steps": 40},
        },
    )


def say(n_tones: int, seed: int) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """Tones with pauses of up to 0.6 s between some: the wave, and each tone's start and end."""
    rng = np.random.default_rng(seed)
    parts, spoken, at = [], [], 0.0
    for text in rng.choice(list(TONES), size=n_tones):
        pause = np.zeros(int(rng.choice([0, 0, rng.uniform(0, 0.6)]) * RATE))
        tone = speak(text, seed)
        parts += [pause, tone]
        begin = at + len(pause) / RATE + 0.02
        spoken.append((str(text), begin, begin + 0.1))
        at += (len(pause) + len(tone)) / RATE
    wave = np.concatenate(parts)
    return wave + 0.003 * rng.normal(size=len(wave)), spoken


def mistuned() -> tuple[np.ndarray, str]:
    """A row of tones one of which lies between two, and the phrase that hotwords make of it."""
    return speak("四五一五", 5, {**TONES, "五": 2000}), "四五一"


def read_card(bundle: Path) -> str:
    """Read a bundle's model card, each run of spaces as one."""
    return re.sub(" +", " ", (bundle / "README.md").read_text("utf-8"))


def write_manifest(path: Path, *sources: dict) -> Path:
    """A manifest of a cut for each source of a recording."""
    lines = []
    for i, source in enumerate(sources):
        recording = {
            "id": f"r{i}", "sampling_rate": 16000, "num_samples": 3200, "duration": 0.2,
            "sources": [{"channels": [0], **source}],
        }  # fmt: skip
        text = {"id": f"s{i}", "recording_id": f"r{i}", "start": 0, "duration": 0.2, "channel": 0,
                "text": "好"}  # fmt: skip
        lines.append(json.dumps({
            "id": f"c{i}", "start": 0, "duration": 0.2, "channel": 0, "type": "MonoCut",
            "supervisions": [text], "recording": recording,
        }))  # fmt: skip
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def copied(bundle: Path, folder: Path, **changes: object) -> Path:
    """A copy of a bundle with other values of its configuration, by dotted keys."""
    shutil.copytree(bundle, folder)
    values = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    for key, value in changes.items():
        *parents, last = key.split("__")
        part = values
        for parent in parents:
            part = part[parent]
        part[last] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(values), "utf-8")
    return folder


@functools.cache
def load_librosa() -> ModuleType:
    """Librosa without numba, which on a fresh machine compiles it for half a minute."""

    def as_it_is(*options, **_):
        return options[0] if options and callable(options[0]) else lambda function: function

    numba = ModuleType("numba")
    numba.jit = numba.stencil = numba.guvectorize = as_it_is
    numba.vectorize = lambda *_, **__: np.vectorize
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", numba)
        import librosa

        assert librosa.stft and librosa.feature.melspectrogram  # which loads them
    return librosa


def encode(
    path: Path, rate: int = 48000, seconds: float = 1.0, channels: int = 1, gap: float = 0.0,
    wave: np.ndarray | None = None, **options: str,
) -> Path:  # fmt: skip
    """Write a tone of 440 Hz, or a wave, as libsndfile reads none, with a gap in its middle."""
    import av

    codecs = {".webm": "libopus", ".mka": "pcm_s16le", ".mov": "alac", ".amr": "libopencore_amrnb"}
    container = "adts" if path.suffix == ".aac" else None
    path.parent.mkdir(parents=True, exist_ok=True)
    if wave is None:
        wave = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(rate * seconds)) / rate)
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(str(path), "w", format=container, container_options=options) as file:
        codec = codecs.get(path.suffix, "aac")
        stream = file.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(
            np.tile(wave.astype("f4"), (channels, 1)), "fltp", layout
        )
        frame.sample_rate = rate
        size = stream.codec_context.frame_size or 1024
        resampler, n_encoded = av.AudioResampler(stream.format, layout, rate, size), 0
        for part in resampler.resample(frame) + resampler.resample(None):
            is_late = gap and n_encoded >= rate * seconds / 2
            part.pts = n_encoded + (round(gap * rate) if is_late else 0)
            part.time_base = Fraction(1, rate)
            file.mux(stream.encode(part))
            n_encoded += part.samples
        file.mux(stream.encode(None))
    return path


def run_cli(*args: str | Path, before: str = "", **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which runs the statements in `before` first.

    With no options but `cwd` it is forked from one that has loaded torch, which saves seconds.
    """
    if not kwargs.keys() - {"cwd"}:
        with start_cli(*args, before=before, **kwargs) as run:
            return run.result()
    command = [sys.executable, "-c", f"{before}\nfrom asr.cli import main; main()", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


class CliRun(NamedTuple):
    """A run of the command line that was forked, with the files of its output."""

    pid: int
    out: Path
    err: Path

    def ends(self, seconds: float) -> bool:
        """Whether it ends so soon."""
        deadline = time.monotonic() + seconds
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            if time.monotonic() > deadline:
                return False
            time.sleep(min(0.02, seconds))
        return True

    def result(self) -> subprocess.CompletedProcess[str]:
        """Its end, for which this waits."""
        code = _ask_cli_server({"process": self.pid})
        texts = [path.read_text("utf-8", "surrogateescape") for path in (self.out, self.err)]
        return subprocess.CompletedProcess([], code, *texts)


@contextmanager
def start_cli(
    *args: str | Path, before: str = "", cwd: Path | None = None, stdin: Path | None = None
) -> Iterator[CliRun]:
    """The command line as `run_cli` forks it, while it runs; ask for its result once."""
    with NamedTemporaryFile() as out, NamedTemporaryFile() as err:
        asked = {
            "arguments": [str(arg) for arg in args], "before": before,
            "cwd": str(cwd or Path.cwd()),
            "streams": [str(stdin or os.devnull), out.name, err.name],
        }  # fmt: skip
        yield CliRun(_ask_cli_server(asked), Path(out.name), Path(err.name))


def with_keys(**more: str) -> str:
    """Statements that give a forked process the variables of this one's S3."""
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return f"import os; os.environ.update({keys | more!r})"


def _ask_cli_server(asked: dict[str, Any]) -> int:
    server = _cli_server()
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    if "process" in asked and not select.select([server.stdout], [], [], _LONGEST_RUN)[0]:
        os.kill(asked["process"], signal.SIGABRT)  # it hangs, and writes where
    return int(server.stdout.readline())


@functools.cache
def _cli_server() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cli_server"]
    root = Path(__file__).parents[1]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # no fork may come after a second one
    server = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=root, env=one_thread)
    atexit.register(server.communicate)
    return server


def tiny(
    projection: DenseConfig | LowRankConfig | None = None,
    ctc: float = 0.0,
    norm: NormOrder = "post",
    convolution: int | None = None,
    attention: EncoderAttentionConfig | None = None,
) -> ModelConfig:
    return ModelConfig(
        norm=norm,
        encoder=EncoderConfig(
            convolution=convolution, attention=attention or FullAttentionConfig()
        ),
        d_model=D,
        d_inner=INNER,
        n_heads=HEADS,
        projection=projection or LowRankConfig(rank=3),
        frontend=VggConfig(channels=(3, 5)),
        ctc_weight=ctc,
    )


def build(config: ModelConfig, seed: int = 0) -> SpeechTransformer:
    torch.manual_seed(seed)
    model = config.build(FREQS, VOCAB).eval()
    for parameter in model.parameters():  # no bias or gain may hide by being zero or one
        nn.init.normal_(parameter, std=0.3)
    return model


def padded_batch(lengths: list[int], noise: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    alone = [torch.randn(n, FREQS) for n in lengths]
    batch = torch.randn(len(lengths), max(lengths) + 9, FREQS) * noise
    for row, feats in zip(batch, alone, strict=True):
        row[: len(feats)] = feats
    return batch, torch.tensor(lengths), alone


class Table:
    """A language that knows the whole history: random log-probabilities for each prefix."""

    def __init__(self, seeds: list[int], sharpness: float = 1.0) -> None:
        self.seeds, self.sharpness = seeds, sharpness

    def logp(self, seed: int, prefix: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, prefix)) % 2**31)
        return (torch.randn(V, generator=generator) * self.sharpness).log_softmax(-1)


class TableState:
    def __init__(self, table: Table, width: int) -> None:
        self.seeds = list(table.seeds)
        self.prefixes: list[list[tuple[int, ...]]] = [[()] * width for _ in self.seeds]

    def reorder(self, parents_BW: Tensor) -> None:
        self.prefixes = [
            [row[p] for p in parents]
            for row, parents in zip(self.prefixes, parents_BW.tolist(), strict=True)
        ]

    def select(self, indices: Tensor) -> None:
        self.prefixes = [self.prefixes[i] for i in indices.tolist()]
        self.seeds = [self.seeds[i] for i in indices.tolist()]


def step_of(table: Table):
    def step(tokens_BW: Tensor, state: TableState) -> Tensor:
        for row, tokens in zip(state.prefixes, tokens_BW.tolist(), strict=True):
            row[:] = [p if t == SOS else (*p, t) for p, t in zip(row, tokens, strict=True)]
        return torch.stack(
            [
                torch.stack([table.logp(seed, p) for p in row])
                for seed, row in zip(state.seeds, state.prefixes, strict=True)
            ]
        )

    return step


def search(table: Table, limits: list[int], config: DecodingOptions, ctc=None):
    state = TableState(table, config.beam_size)
    models = JointScorer(step_of(table), state, ctc)
    return BeamSearch(config, WORD_COUNTS)(models, torch.tensor(limits))


def attention_logp(table: Table, seed: int, tokens: tuple[int, ...]) -> float:
    whole = (*tokens, EOS)
    return sum(float(table.logp(seed, whole[:i])[t]) for i, t in enumerate(whole))


def all_texts(limit: int):
    for n in range(limit + 1):
        yield from itertools.product(LETTERS, repeat=n)


def ctc_logp(logp_SV: Tensor, tokens: tuple[int, ...]) -> float:
    """The log-probability of a text: the sum over all paths that collapse to it."""
    total = 0.0
    for path in itertools.product(range(V), repeat=len(logp_SV)):
        collapsed = [k for k, _ in itertools.groupby(path)]
        if tuple(t for t in collapsed if t != BLANK) == tokens:
            total += math.exp(sum(float(logp_SV[s, t]) for s, t in enumerate(path)))
    return math.log(total) if total else -math.inf


def tiny_model(ctc_weight: float = 0.5, seed: int = 0):
    """Random weights, sharp enough that no two texts tie."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=16, d_inner=32, n_heads=2, projection={"kind": "low_rank", "rank": 4},
        frontend={"kind": "vgg", "channels": [2, 2]}, encoder={"n_layers": 1},
        decoder={"n_layers": 1}, ctc_weight=ctc_weight,
    )  # fmt: skip
    model = config.build(8, V).eval()
    torch.nn.init.normal_(model.decoder.output.weight, std=1.0)
    if model.ctc_head:
        torch.nn.init.normal_(model.ctc_head.weight, std=1.0)
    return model


def texts_of(model, feats, config, padding: int = 0, lm=None):
    frames = torch.tensor([len(f) for f in feats])
    feats_BTF = torch.randn(len(feats), int(frames.max()) + padding, 8) * 9  # padding is noise
    for row, f in zip(feats_BTF, feats, strict=True):
        row[: len(f)] = f
    decoder = SpeechDecoder(model, Letters())
    return decoder.decode(decoder.encode(feats_BTF, frames), config, lm)


class Letters:
    """Stands for a tokenizer whose tokens are the letters a, b and c."""

    def word_counts(self) -> list[float]:
        return WORD_COUNTS.tolist()

    def decode(self, tokens) -> str:
        return "".join(chr(ord("a") + t - LETTERS[0]) for t in tokens)


def same(one: list[Hypothesis], other: list[Hypothesis]) -> None:
    assert [h.score for h in one] == pytest.approx([h.score for h in other], rel=1e-4, abs=1e-4)
    for h, g in zip(one, other, strict=True):
        assert (h.tokens, h.ended) == (g.tokens, g.ended)
        assert h.confidences == pytest.approx(g.confidences, abs=1e-4)


class Audio(NamedTuple):
    """A recording as a whole."""

    wave: np.ndarray
    seconds: float
    warnings: tuple[str, ...]


def read_all(source: Source, rate: int, **options: Any) -> Audio:
    """Read a recording as a whole."""
    recording = Recording(source, rate, **options)
    return Audio(np.concatenate(list(recording)), recording.seconds, recording.warnings)


def tone(path: Path, seconds: float = 0.2, pitch: float = 300.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    time_N = np.arange(round(seconds * 16000)) / 16000
    sf.write(path, 0.3 * np.sin(2 * np.pi * pitch * time_N), 16000, subtype="PCM_16")
    return path


def make_tree(root: Path) -> Path:
    tree = root / "data_aishell"
    for i, (key, split) in enumerate(TEXTS.items()):
        tone(tree / "wav" / split / key[6:11] / f"{key}.wav", 0.2 + 0.01 * i)
    tone(tree / "wav/dev/S0724/BAC009S0724W0009.wav")
    lines = [f"{key} 今天 第 {'一二三四五'[i]} 句 ａｂ" for i, key in enumerate(TEXTS)]
    lines.append("BAC009S9999W0001 没有 录音")
    content = "\ufeff" + "\r\n".join(lines) + "\r\n"
    (tree / "transcript").mkdir()
    (tree / aishell1.TRANSCRIPT).write_bytes(content.encode())
    return tree


def beeps(seed: int, seconds: float = 0.7, rate: int = 16000, channels: int = 1) -> np.ndarray:
    """Beeps over noise, which a model with random weights turns into a text of their own."""
    rng, time_N = np.random.default_rng(seed), np.arange(round(seconds * rate)) / rate
    beeps = np.sin(2 * np.pi * (200 + 97 * seed) * time_N) * (np.sin(20 * time_N + seed) > 0)
    wave = 0.5 * beeps + 0.01 * rng.standard_normal(len(time_N))
    return np.stack([wave] * channels, axis=1)


def encode_audio(
    wave: np.ndarray, rate: int = 16000, format: str = "WAV", subtype: str = ""
) -> bytes:
    """A recording as a file's content."""
    file = io.BytesIO()
    sf.write(file, wave, rate, format=format, subtype=subtype or None)
    return file.getvalue()


def bomb(seconds: int) -> bytes:
    """Silence in 8 channels at 384 kHz, whose header does not tell its length: 0.2 kB a second."""
    file = io.BytesIO()
    with sf.SoundFile(file, "w", 384_000, 8, format="FLAC") as sound:
        for _ in range(seconds):
            sound.write(np.zeros((384_000, 8), np.int16))
    data = bytearray(file.getvalue())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


@dataclass
class Service:
    """A running service: a client of its own, its address, and what it is made of."""

    client: httpx.Client
    host: str
    port: int
    engine: EngineClient
    state: Any

    def post(self, file: bytes, url: str = URL, **fields: Any) -> httpx.Response:
        """Send a recording."""
        data = {"model": "tiny", **fields}
        return self.client.post(url, files={"file": ("a.wav", file)}, data=data)

    def metric(self, name: str) -> float:
        """A value of /metrics without labels."""
        found = re.search(rf"^{name} (\S+)$", self.client.get("/metrics").text, re.M)
        assert found, name
        return float(found[1])


@contextmanager
def running(bundle: Path, **settings: Any) -> Iterator[Service]:
    """The service on a real socket, in a thread of this process."""
    given = {"bundles": (f"tiny={bundle}",), "device": "cpu", **settings}
    app = create_app(Settings.read(**given))
    server = uvicorn.Server(configure(app, "127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        limits = httpx.Limits(max_connections=None)
        base = f"http://{host}:{port}"
        try:
            with httpx.Client(base_url=base, timeout=60, trust_env=False, limits=limits) as client:
                yield Service(client, host, port, app.state.engine, app.state)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the service did not end"


@contextmanager
def changed(service: Service, **settings: Any) -> Iterator[None]:
    """Other settings for a while, of those that the decoding process need not know."""
    holders = [(service.state, "settings"), (service.state.load, "settings"),
               (service.engine, "_settings")]  # fmt: skip
    before = service.state.settings
    for holder, name in holders:
        setattr(holder, name, before.model_copy(update=settings))
    try:
        yield
    finally:
        for holder, name in holders:
            setattr(holder, name, before)


@contextmanager
def started(
    bundle: Path, *options: str, before: Sequence[str] = (), **environment: str
) -> Iterator[tuple[Any, str]]:
    """`asr serve` as a process of its own, with its address; it is ended if it still runs."""
    code = "from asr.cli import main; main()"
    command = [
        *before,
        sys.executable,
        "-c",
        code,
        "serve",
        f"tiny={bundle}",
        "--port",
        "0",
        *options,
    ]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as server:
        try:
            lines = iter(server.stderr.readline, "")  # type: ignore[union-attr]
            found = (re.search(r"http://127.0.0.1:\d+", line) for line in lines)
            yield server, next(match[0] for match in found if match)
        finally:
            server.kill()


def refused(reply: httpx.Response, status: int, param: str | None, code: str | None) -> str:
    """The message of an error in OpenAI's shape."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.json().keys() == {"error"}
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert (error["type"], error["param"], error["code"]) == (kind, param, code)
    assert "\n" not in error["message"] and "Traceback" not in error["message"]
    return error["message"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still for a block of statements."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)


@contextmanager
def engine(recognizer: Any, batch_seconds: float = 80, wait: float = 0.05) -> Iterator[Any]:
    """An engine's loop in a thread of this process; yields the service's end of its pipe."""
    ours, theirs = Pipe()
    patch = pytest.MonkeyPatch()
    patch.setattr("serve.engine.process._end", lambda: None)
    settings = Settings(max_seconds=60.0, batch_seconds=batch_seconds, batch_wait=wait)
    loop = Engine(theirs, {"m": recognizer}, settings)
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            loop.recognize_next()

    threads = [threading.Thread(target=run), threading.Thread(target=loop._listen)]
    for thread in threads:
        thread.start()
    try:
        yield ours
    finally:
        ended.set()
        ours.close()
        for thread in threads:
            thread.join()  # before the patch is undone, else it ends the process
        loop._readers.shutdown()
        theirs.close()
        patch.undo()


def transcribe(id: int, wave: bytes, **options: Any) -> Transcribe:
    return Transcribe(id, "m", wave, **options)


def last_messages(pipe: Any, n: int) -> dict[int, Done | Failed]:
    """The last messages of so many jobs."""
    found: dict[int, Done | Failed] = {}
    while len(found) < n:
        assert pipe.poll(60)
        message = pipe.recv()
        if isinstance(message, Done | Failed):
            found[message.id] = message
    return found


def read_until(raw: socket.socket, end: bytes) -> bytes:
    """What comes until those bytes; it fails where the peer closes before them."""
    found = b""
    while not found.endswith(end):
        part = raw.recv(2**16)
        assert part, found
        found += part
    return found


@contextmanager
def live_session(
    service: Service, start: Any = LIVE_START, **options: Any
) -> Iterator[ClientConnection]:
    url = f"ws://{service.host}:{service.port}/v1/live"
    with connect(url, proxy=None, compression=None, **options) as socket:
        with suppress(ConnectionClosed):  # it may be refused before
            if start:
                socket.send(json.dumps(start))
        yield socket


def pcm(wave: np.ndarray) -> bytes:
    return (wave * 2**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes()


def send_audio(socket: ClientConnection, audio: bytes, rate: int = RATE) -> None:
    for at in range(0, len(audio), rate // 5):
        socket.send(audio[at : at + rate // 5])
    socket.send('{"type": "end"}')


def answers(socket: ClientConnection) -> list[dict[str, Any]]:
    """All that comes until the service closes."""
    found = []
    with suppress(ConnectionClosed):
        while True:
            found.append(json.loads(socket.recv(timeout=60)))
    return found


def node_recognizer(script: str, **given: Any) -> Any:
    """What a function body returns that sees what a page of `--format html` computes with.

    `given` is an object there and passes as JSON, `floats` reads what `coded` made.
    """
    from asr.export.html import recognizer_script

    code = (
        "const given = JSON.parse(require('fs').readFileSync(0, 'utf8'));\n"
        "const floats = (text) => new Float32Array(fromBase64(text).buffer);\n"
        f"console.log(JSON.stringify((() => {{ {script} }})()));"
    )
    done = subprocess.run(
        ["node", "-e", recognizer_script() + code],
        input=json.dumps(given), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def coded(numbers: np.ndarray | Tensor) -> str:
    """Numbers as base64 of float32."""
    return base64.b64encode(np.asarray(numbers).astype("<f4").tobytes()).decode()


def page_numbers(
    blob: bytes, table: Mapping[str, tuple[str | int, list[int], int]]
) -> dict[str, np.ndarray]:
    """The numbers that a page of `--format html` holds, decoded by whole numbers of any length."""
    found = {}
    for name, (kind, shape, start) in table.items():
        size = math.prod(shape)
        if isinstance(kind, str):
            found[name] = np.frombuffer(blob, kind, size, start).reshape(shape)
            continue
        scales = np.frombuffer(blob, "<f4", shape[0], start)
        first, n_bits = start + scales.nbytes, kind * size
        content = int.from_bytes(blob[first : first + -(-n_bits // 8)], "little")
        digits = f"{content:0{n_bits}b}"
        q = [int(digits[n_bits - at - kind : n_bits - at], 2) for at in range(0, n_bits, kind)]
        rows = np.reshape(q, (shape[0], -1)) - (2 ** (kind - 1) - 1)
        found[name] = (rows * scales[:, None]).astype(np.float32).reshape(shape)
    return found
