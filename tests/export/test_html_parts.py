"""The search, the audio and the subtitles of a page of `--format html`, under Node against ours."""

import base64
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import soxr
import torch

from asr.audio.segmentation import split_at_silence
from asr.decoding.ctc_beam import beam_texts
from asr.decoding.options import DecodingOptions
from asr.export.page_weights import pack_weights
from asr.joining import join_texts
from asr.lm.ngram import NGram, tables_of
from asr.normalization import normalize_text
from asr.transcription.transcript import Segment, Token, Transcript
from asr.transcription.writers import as_srt, as_vtt
from tests.helpers import coded, node_recognizer, say

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(not NODE, reason="there is no node: apt-get install nodejs")


def ngram() -> NGram:
    """A random n-gram of 12 tokens whose longer n-grams are few."""
    rng = np.random.default_rng(8)
    grams = {(v,): (-rng.uniform(0, 2), -rng.uniform(0, 1)) for v in range(12)}
    for n in (2, 3):
        for _ in range(40):
            gram = (int(rng.choice([1, 4, 5])), *map(int, rng.integers(2, 12, n - 1)))
            grams[gram] = (-rng.uniform(0, 2), -rng.uniform(0, 1))
    return NGram(tables_of(grams), 12)


@pytest.mark.parametrize(
    ("gamma", "lm", "lm_bonus"),
    [(0.0, None, 3.0), (0.7, None, 0.0), (0.3, ngram(), 0.0), (0.3, ngram(), 3.0)],
)
def test_the_search_finds_the_texts_of_ours(
    gamma: float, lm: NGram | None, lm_bonus: float
) -> None:
    rng = torch.Generator().manual_seed(3)
    logp_BSV = (3 * torch.randn(4, 30, 12, generator=rng)).log_softmax(-1)
    words = [0, 0, 0, 0, 1, 2, 1, 0, 1, 1, 3, 1]
    options = DecodingOptions(
        method="ctc_beam", beam_size=6, gamma=gamma, alpha=0.8, n_best=6, lm="x", lm_weight=0.4,
        lm_bonus=lm_bonus,
    )  # fmt: skip
    counts, scorer = torch.tensor(words).float(), lm and lm.token_scorer()
    wanted = beam_texts(logp_BSV, torch.full((4,), 30), options, counts, scorer)
    blob, table = pack_weights({f"lm.{k}": v for k, v in lm.state_dict().items()} if lm else {})
    found = node_recognizer(
        """
        return given.logp.map((one) => {
          const weights = readWeights(given.weights, given.table);
          const lm = given.lm && new NGram(weights, given.lm);
          const logp = floats(one), beam = new PrefixBeam(given.options, given.words, lm);
          beam.extend(logp.subarray(0, 120), 10, 12);
          beam.extend(logp.subarray(120), 20, 12);
          const exact = (text) => textLogProb(logp, 30, 12, text.tokens) - text.logProb;
          const { alpha } = given.options;
          return beam.nBest()
            .map((text) => ({ ...text, score: text.score + alpha * exact(text) }))
            .sort((a, b) => b.score - a.score);
        });
        """,
        logp=[coded(logp) for logp in logp_BSV], words=words,
        options=options.model_dump(mode="json"), table=table,
        weights=base64.b64encode(blob).decode(),
        lm=lm and {"order": lm.order, "first": lm.first, "vocab_size": 12},
    )  # fmt: skip
    for texts, nbest in zip(found, wanted, strict=True):
        assert [tuple(text["tokens"]) for text in texts] == [h.tokens for h in nbest]
        assert len({h.tokens for h in nbest}) == 6
        for text, h in zip(texts, nbest, strict=True):
            assert text["score"] == pytest.approx(h.score, abs=1e-5)
            assert text["confidences"] == pytest.approx(h.confidences, abs=1e-6)


def test_wav_files_are_read_as_ours(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    wanted, contents = [], []
    for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"):
        sf.write(tmp_path / "a.wav", 0.2 * rng.normal(size=(50, 2)), 11025, subtype=subtype)
        wanted.append(sf.read(tmp_path / "a.wav", dtype="float32")[0].mean(1))
        contents.append((tmp_path / "a.wav").read_bytes())
    sf.write(tmp_path / "a.wav", np.zeros(50), 999, subtype="PCM_16")
    broken = [
        (tmp_path / "a.wav").read_bytes(),
        b"",
        b"RIFF",
        b"OggS" * 20,
        b"RIFF0000WAVEdata\4\0\0\0abcd",
        b"RIFF0000WAVEfmt \xff",
    ]
    found = node_recognizer(
        """
        return given.files.map((file) => readWav(fromBase64(file)))
          .map((found) => found && [Array.from(found.wave), found.rate]);
        """,
        files=[base64.b64encode(content).decode() for content in (*contents, *broken)],
    )
    for (wave, rate), one in zip(found, wanted, strict=False):
        assert rate == 11025
        np.testing.assert_allclose(wave, one, atol=1e-7)
    assert found[len(wanted) :] == [None] * len(broken)


def test_waveforms_are_resampled_and_cut_as_ours() -> None:
    rates = ((44100, 16000), (48000, 8000), (8000, 16000), (44056, 8000))
    tones, wanted = [], []
    for source, ours in rates:
        t = np.arange(source // 2) / source
        tones.append(sum(np.sin(2 * np.pi * f * t + f) for f in (150, 700, 1900, 3300)))
        stream = soxr.ResampleStream(source, ours, 1, dtype="float32")
        wanted.append(stream.resample_chunk(tones[-1].astype(np.float32), last=True))
    spoken = np.concatenate([say(6, seed)[0] for seed in range(12)]).astype(np.float32)
    found, parts = node_recognizer(
        """
        const found = given.tones.map((it, i) => {
          const whole = resampled(floats(it), ...given.rates[i]);
          return [...whole.read(0, 1000), ...whole.read(1000, whole.length)];
        });
        const parts = [...cutAtSilence(resampled(floats(given.spoken), 8000, 8000), 8000, 4.5)];
        return [found, parts.map((part) => Array.from(part))];
        """,
        tones=list(map(coded, tones)), rates=rates, spoken=coded(spoken),
    )  # fmt: skip
    for one, ours in zip(found, wanted, strict=True):
        assert len(one) == len(ours)
        inner = slice(100, -100)  # a tone that begins at once has all frequencies
        np.testing.assert_allclose(one[inner], ours[inner], atol=2e-3)
    for part, one in zip(parts, split_at_silence([spoken], 8000, 4.5), strict=True):
        assert np.array_equal(np.float32(part), one)
    assert len(parts) > 3


def test_a_waveform_is_resampled_in_blocks_as_the_whole() -> None:
    rng = np.random.default_rng(3)
    cases = [[44100, 16000, 9000], [8000, 16000, 4321], [48000, 8000, 13], [16000, 16000, 500],
             [44056, 8000, 7000], [48000, 8000, 0]]  # fmt: skip
    found = node_recognizer(
        """
        return given.cases.map(([from, to], i) => {
          const wave = floats(given.waves[i]), resampler = new Resampler(from, to), found = [];
          let before = 0;
          for (let at = 0, size = 1; at < wave.length; at += size, size = (5 * size) % 997) {
            found.push(...resampler.push(wave.subarray(at, at + size)));
            before = found.length;
          }
          found.push(...resampler.push(new Float32Array(), true));
          const whole = resampled(wave, from, to);
          return [found, [...whole.read(0, whole.length)], before, resampler.held.length];
        });
        """,
        cases=cases, waves=[coded(rng.normal(size=n)) for *_, n in cases],
    )  # fmt: skip
    for (source, rate, n), (blocks, whole, before, held) in zip(cases, found, strict=True):
        assert blocks == (whole if n else []) and len(blocks) == round(n * rate / source)
        assert before > len(blocks) - 300, "they come while it arrives"
        assert held < 900, "and the past is not kept"


def test_subtitles_are_ours() -> None:
    rng = np.random.default_rng(4)
    segments, at = [], 0.0
    for size in (30, 1, 60):
        tokens, start = [], at
        for _ in range(size):
            text = str(rng.choice(["好", " the", "ing", " a", " ", "，", "<b>", "&", "に"]))
            tokens.append(Token(text, at, at + 0.2005))
            at += float(rng.choice([0.2005, 0.25, 1.5], p=[0.6, 0.35, 0.05]))
        text = normalize_text("".join(t.text for t in tokens), "keep")
        confidences = tuple(rng.uniform(size=size))
        segments.append(Segment(start, at, text, 0.0, "eos", (), confidences, tuple(tokens)))
    transcript = Transcript.join(segments, at, ())
    found = node_recognizer(
        """
        const segments = given.segments.map(({ tokens, confidences, ...rest }) =>
          ({ ...rest, ended: "eos", nbest: [], words: wordsOf(tokens, confidences) }));
        return transcript(segments, 1);
        """,
        segments=[{"text": s.text, "tokens": [vars(t) for t in s.tokens or ()], "score": 0,
                   "confidences": s.confidences, "end": s.end} for s in segments],
    )  # fmt: skip
    assert found["srt"] == as_srt(transcript) and found["vtt"] == as_vtt(transcript)
    assert found["text"] == transcript.text and "&lt;b" in found["vtt"]


def test_texts_of_parts_are_joined_as_ours() -> None:
    parts = [["そう", "です?", "", "はい"], ["one", "two"], ["ไป", "ไหน", "OK", "今天"], []]
    found = node_recognizer(
        """
        const joined = (texts) => transcript(texts.map((text) =>
          ({ text, score: 0, start: 0, end: 1, ended: "eos", nbest: [], words: [] })), 1).text;
        return given.parts.map(joined);
        """,
        parts=parts,
    )
    assert found == [normalize_text(join_texts(texts), "keep") for texts in parts]
    assert found[0] == "そうです?はい"


def test_marks_of_punctuation_are_ours() -> None:
    """A model that learned without punctuation knows marks within words."""
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice([*"ab'-·好1 é"], 8)) for _ in range(300)]
    script = "return given.texts.map((text) => tidy(withoutMarks(text.normalize('NFKC'))));"
    expected = [normalize_text(text, "keep", "remove") for text in texts]
    assert node_recognizer(script, texts=texts) == expected


def test_texts_of_thai_and_lao_are_ours() -> None:
    texts = ["ทำ", "ນ້ຳ", "ทํา ABC"]
    found = node_recognizer("return given.texts.map((text) => tidy(text));", texts=texts)
    assert found == [normalize_text(text, "keep") for text in texts]


WORKER = """
const said = [], computed = [];
globalThis.postMessage = (message) => {
  said.push(message);
  if (message.result) console.log(JSON.stringify([computed.join(""), message, said.length]));
};
let receive;
globalThis.addEventListener = (kind, listener) => { receive = (data) => listener({ data }); };
const fromBase64 = () => new Uint8Array(), readWeights = () => ({});
const transcript = (segments) => segments.length;
class Session {
  *feed(samples, isEnd) {
    if (samples[0] < -0.5) throw new Error("broken");
    computed.push(samples.length);
    yield { text: `${samples.length}` };
    if (isEnd) yield { segment: "last" };
  }
}
class Recognizer {
  *segments(wave) {
    for (const part of wave) {
      computed.push(part);
      if (part === "b") receive({ cancel: 1 }); // arrives while it computes
      yield { segment: { text: part }, progress: 1 };
    }
  }
}
MODULE
receive({ config: { kernel: "" }, weights: "" });
EVENTS
"""
RECORDINGS = """
receive({ id: 1, wave: "abc" });
receive({ id: 2, wave: "de" });
receive({ cancel: 2 });
receive({ id: 3, wave: "fg" });
"""


def worker_says(events: str) -> Any:
    worker = (files("asr.export") / "page/worker.js").read_text("utf-8")
    module = re.sub(r"^import .*\n", "", worker, flags=re.MULTILINE)
    script = WORKER.replace("MODULE", module).replace("EVENTS", events)
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_cancelled_recording_computes_no_further_segment() -> None:
    # Two parts of the first, none of the second, and the third as a whole, with a result.
    assert worker_says(RECORDINGS) == ["abfg", {"id": 3, "result": 2}, 5]


def test_a_stream_ends_with_its_text_an_error_or_when_it_is_cancelled() -> None:
    found = worker_says(
        """
        receive({ live: 1, rate: 2 });
        receive({ id: 1, samples: [1, 2, 3] });
        receive({ cancel: 1 });
        receive({ id: 1, samples: [1, 2] });
        receive({ live: 2, rate: 2 });
        receive({ id: 2, samples: [-32768] });
        receive({ id: 2, isEnd: true });
        receive({ live: 3, rate: 2 });
        receive({ id: 3, samples: [1] });
        receive({ id: 3, isEnd: true });
        console.log(JSON.stringify(said));
        """
    )
    assert found == [
        {"id": 1, "partial": "3"},
        {"id": 2, "error": "broken"},
        {"id": 3, "partial": "1"},
        {"id": 3, "partial": "0"},
        {"id": 3, "final": "last"},
        {"id": 3, "end": 1},
    ]
