"""What is fuzzed: for each parser its seeds, its tokens, and how it is called.

A target is made in the process that fuzzes it, with a folder of its own for files.
"""

import asyncio
import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import AsyncMock, patch

import httpx
import numpy as np
import soundfile as sf
import torch
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

from asr.audio.recording import Recording as Sound
from asr.bundle import CONFIG, TOKENIZER, WEIGHTS, Bundle
from asr.config import Config, load_config
from asr.data.manifest import filter_cuts, load_cuts, read_wave
from asr.errors import AsrError
from asr.evaluation.cer import score_files
from asr.lm.ngram import NGram
from asr.lm.texts import read_words
from asr.tokenizer import Tokenizer, TokenizerConfig
from asr.training_config import DataConfig
from asr.transcription import remote
from asr.transcription.reply import Reply
from data_prep import aishell1, hkust
from data_prep.probe import probe
from data_prep.table import prepare as prepare_table
from data_prep.transcripts import read_transcripts
from tests.attacks.fuzz.service import form, live, realtime
from tests.attacks.fuzz.target import Target

ROOT = Path(__file__).parents[3]


def sound(
    format: str,
    subtype: str | None = None,
    channels: int = 1,
    rate: int = 16000,
    seconds: float = 0.1,
) -> bytes:
    """Return a tone as a file."""
    wave = 0.5 * np.sin(np.arange(round(rate * seconds)) * 0.1)
    file = io.BytesIO()
    sf.write(file, np.stack([wave] * channels, 1), rate, format=format, subtype=subtype)
    return file.getvalue()


def audio(_folder: Path) -> Target:
    """Recordings of all formats, as the service and `asr transcribe` decode them."""
    kinds = [
        ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "ULAW"), ("WAV", "IMA_ADPCM"),
        ("WAV", "GSM610"), ("WAVEX", "PCM_24"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
        ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"), ("AU", "PCM_16"),
        ("NIST", "PCM_16"), ("CAF", "ALAC_16"), ("W64", "PCM_16"), ("RF64", "PCM_16"),
        ("SVX", "PCM_16"), ("VOC", "PCM_16"), ("IRCAM", "PCM_16"), ("MAT5", "PCM_16"),
        ("PVF", "PCM_16"), ("HTK", "PCM_16"), ("AVR", "PCM_16"), ("SDS", "PCM_16"),
    ]  # fmt: skip
    seeds = [sound(*kind) for kind in kinds]
    seeds += [sound(format, None, 2, 44100) for format in ("WAV", "FLAC", "OGG", "MP3", "AIFF")]
    seeds += [2 * sound("OGG", "VORBIS"), 2 * sound("MP3"), 2 * sound("WAV")]

    def run(data: bytes) -> None:
        for _ in Sound(io.BytesIO(data), 16000, max_seconds=60):
            pass

    tokens = [b"RIFF", b"data", b"fmt ", b"LIST", b"fLaC", b"OggS", b"\xff\xfb", b"ID3", b"FORM"]
    return Target(seeds, run, tokens)


def sphere(folder: Path) -> Target:
    """Headers that the preparation of a corpus checks."""
    path = folder / "a.sph"
    header = b"NIST_1A\n   1024\nsample_count -i 800\nsample_rate -i 8000\nchannel_count -i 2\n"
    packed = header + b"sample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n" + bytes(900)
    kinds = [("NIST", "PCM_16"), ("NIST", "ULAW"), ("WAV", "FLOAT"), ("WAV", "PCM_16")]

    def run(data: bytes) -> None:
        path.write_bytes(data)
        probe(path)

    tokens = [b"sample_count -i ", b"sample_coding -s4 ulaw\n", b"end_head\n", b"-s26 "]
    return Target([packed, *(sound(*kind, 2, 8000) for kind in kinds)], run, tokens)


def recipe(folder: Path) -> Target:
    """Recipes, with values given by `--set` after the file's text."""
    path = folder / "recipe.yaml"
    names = ("demo/lrt", "demo/set_sparse", "aishell1/best", "aishell1/lrt_r50")
    seeds = [(ROOT / "recipes" / f"{name}.yaml").read_bytes() for name in names]
    least = b"data: {train: a, dev: b}\nmodel: {d_model: 32, n_heads: 2}\n"
    seeds += [least, least + b"\n--set training.epochs=3\n--set model.encoder.n_layers=2"]

    def run(data: bytes) -> None:
        text, *overrides = data.split(b"\n--set ")
        path.write_bytes(text)
        load_config(path, [value.decode("utf-8", "replace") for value in overrides])

    tokens = [
        b"!!python/object/apply:os.system [id]", b"!!binary ", b"!!set ", b"!!omap ", b"&a ", b"*a",
        b"<<: *a", b"- ", b"? ", b"|\n", b">\n", b"---\n", b"%YAML 1.1\n", b"- - - ", b".inf",
        b"2001-01-01", b"kind: ", b"encoder: ", b"attention: {kind: linformer, rank: 4}", b"0o7",
        b"decoding: {lm: /dev/zero}", b"1:30", b"model: ", b"frontend: ",
    ]  # fmt: skip
    return Target(seeds, run, tokens)


def small_bundle(folder: Path) -> None:
    """Write the smallest bundle."""
    values = {
        "data": {"train": "a", "dev": "b"},
        "features": {"kind": "log_mel", "n_mels": 8},
        "model": {
            "d_model": 8, "d_inner": 8, "n_heads": 2, "ctc_weight": 0.3,
            "projection": {"kind": "low_rank", "rank": 2},
            "frontend": {"kind": "vgg", "channels": [2, 2]},
            "encoder": {"n_layers": 1}, "decoder": {"n_layers": 1},
        },
    }  # fmt: skip
    config = Config.model_validate(values)
    tokenizer = Tokenizer.train(["今天天气很好"], config.tokenizer)
    Bundle.create(config, tokenizer).save(folder, "a card")


def bundle(folder: Path) -> Target:
    """A bundle with another file in place of one of its own; the first byte says which."""
    small_bundle(folder / "good")
    names = (CONFIG, TOKENIZER, WEIGHTS)
    good = [(folder / "good" / name).read_bytes() for name in names]

    def run(data: bytes) -> None:
        chosen = data[:1].isdigit() and int(data[:1]) % 3
        (folder / "good" / names[chosen]).write_bytes(data[1:])
        try:
            Bundle.load(folder / "good")
        finally:
            (folder / "good" / names[chosen]).write_bytes(good[chosen])

    tokens = [b"F32", b"BF16", b"I64", b"data_offsets", b"shape", b"__metadata__", b"kind: "]
    return Target([str(i).encode() + content for i, content in enumerate(good)], run, tokens)


def manifest(folder: Path) -> Target:
    """Manifests of utterances."""
    path = folder / "cuts.jsonl"
    said = SupervisionSegment("a", "a", 0.0, 1.0, 0, "今天")
    (folder / "a.wav").write_bytes(sound("WAV", seconds=1.0))
    source = AudioSource("file", [0], "FOLDER/a.wav")
    config = DataConfig(train=(path,), dev=path)
    recording = Recording("a", [source], 16000, 16000, 1.0)
    cut = MonoCut("a", 0.0, 1.0, 0, [said], recording=recording)
    other = cut.perturb_speed(1.1).with_id("b")
    mixed = cut.append(other.resample(16000)).pad(4.0).perturb_volume(0.5).with_id("c")
    lines = [json.dumps(c.to_dict(), ensure_ascii=False).encode() for c in (cut, other, mixed)]

    def run(data: bytes) -> None:
        path.write_bytes(data.replace(b"FOLDER", bytes(folder)))
        for cut in filter_cuts(load_cuts(path), config, path):
            with suppress(AsrError):
                read_wave(cut, 8000)

    tokens = [b'"type": "command"', b'"type": "url"', b'"MixedCut"', b'"PaddingCut"', b'"tracks"']
    tokens += [
        b'"transforms": ["a"]',
        b'"features"',
        b'"custom": {}',
        b'"Recording"',
        b'"duration"',
    ]
    return Target([b"\n".join(lines), *lines], run, tokens)


def transcript(folder: Path) -> Target:
    """Transcripts of HKUST's calls, and of AISHELL-1 where a line of `aishell` comes first."""
    for name in ("audio/train/X_A1_B2.sph", "trans/train/X_A1_B2.txt"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    path, other = folder / "trans/train/X_A1_B2.txt", folder / "aishell.txt"

    def run(data: bytes) -> None:
        if data.startswith(b"aishell\n"):
            other.write_bytes(data)
            aishell1._read_transcript(other)
            return
        path.write_bytes(data)
        hkust._utterances(hkust._find(folder), "train")

    call = (
        "# X_A1_B2\n\n1.25 3.5 A: 喂 你好 {laugh} <noise> 今天</noise> ((天气))\n4 5.5 B: 好 [oh]\n"
    )
    seeds = [call.encode("gbk"), b"\xef\xbb\xbf" + call.encode()]
    seeds.append("aishell\nBAC009S0002W0122 而 对 楼市\nBAC009S0002W0123 也\n".encode())
    tokens = [b"((", b"))", b"<noise>", b"</noise>", b'<foreign language="', b"</foreign>", b"{"]
    return Target(seeds, run, [*tokens, b"A:", b"B:", b"1e9 ", b"# X_A1_B2", b"((a))"])


def table(folder: Path) -> Target:
    """Tables of texts, prepared; the first line is the file's name, or `kaldi` for a folder."""
    recordings = folder / "takes"
    recordings.mkdir()
    for name in ("a", "b"):
        (recordings / f"{name}.wav").write_bytes(sound("WAV"))
    (folder / "wav.scp").write_text("a a.wav\nb rm -rf x |\n")

    def run(data: bytes) -> None:
        name, _, content = data.partition(b"\n")
        known = {b"csv": "t.csv", b"tsv": "t.tsv", b"jsonl": "t.jsonl"}
        path = folder / known.get(name, "text")
        path.write_bytes(content)
        given = folder if path.name == "text" else path
        try:
            prepare_table(recordings, given, folder / "out", jobs=1)
        finally:
            shutil.rmtree(folder / "out", ignore_errors=True)

    rows = 'file,text,speaker,start,duration\na.wav,今天,s,0,0.05\nb,"x, ""y",t,,\n'
    json_rows = '{"audio_filepath": "a.wav", "text": "今", "offset": 0, "duration": 0.1}\n'
    seeds = [b"csv\n" + rows.encode(), b"csv\n" + rows.encode("utf-16"),
             b"csv\n" + rows.encode("gbk"), b"tsv\na\t\xe4\xbb\x8a\n",
             b"jsonl\n" + json_rows.encode(), b"kaldi\na x\nb y\n"]  # fmt: skip
    tokens = [b"\\u0000", b"\\ud800", b"nan", b"1e999", b'"', b"../", b"/etc/passwd", b"\xff\xfe"]
    return Target(seeds, run, [*tokens, b"a.wav", b"file,", b"text", b"split", b"\t", b"|", b";"])


def beside(folder: Path) -> Target:
    """Texts beside a recording, each after a line with its suffix."""
    (folder / "a.wav").write_bytes(sound("WAV"))
    written = ROOT / "tests" / "data_prep" / "annotations"
    suffixes = ("txt", "lab", "srt", "vtt", "trans.txt", "TextGrid", "eaf")

    def run(data: bytes) -> None:
        suffix, _, content = data.partition(b"\n")
        known = suffix.decode("ascii", "replace") in suffixes
        path = folder / f"a.{suffix.decode()}" if known else folder / "a.txt"
        path.write_bytes(content)
        try:
            read_transcripts(folder, {"text": "text"} if content[:1] == b"!" else {})
        finally:
            path.unlink()

    cue = "00:00:01,000 --> 00:00:02,500\n<i>one</i> &amp; {\\an8}two\n\n"
    seeds = [
        b"txt\n0.5\t1.5\tone\n", b"lab\n0 500000 h\n", b"trans.txt\na A TEXT\n",
        b"srt\n" + f"1\n{cue}2\n{cue}".encode(), b"vtt\n" + f"WEBVTT\n\n{cue}".encode(),
        b"TextGrid\n" + (written / "long.TextGrid").read_bytes(),
        b"TextGrid\n" + (written / "short.TextGrid").read_bytes(),
        b"TextGrid\n" + (written / "short.TextGrid").read_text("utf-16").encode(),
        b"eaf\n" + (written / "a.eaf").read_bytes(),
    ]  # fmt: skip
    tokens = [
        b'"', b'""', b"!", b"<exists>", b"IntervalTier", b"1e999", b"99999999", b"-1", b"-->",
        b"<!DOCTYPE x [", b"]>", b"<TIER ", b"ANNOTATION_REF=", b'"ts2"', b"&#", b"<![CDATA[",
    ]  # fmt: skip
    return Target(seeds, run, tokens)


def archive(folder: Path) -> Target:
    """Archives: of the corpus (0), of a speaker in it (1), or the packed bytes themselves (2)."""
    path, out = folder / "data_aishell.tgz", folder / "out"

    def tar(**members: bytes) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as opened:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                opened.addfile(info, io.BytesIO(content))
        return file.getvalue()

    def run(data: bytes) -> None:
        kind, content = data[:1], data[1:]
        if kind == b"1":
            content = tar(**{"data_aishell/wav/S1.tar.gz": gzip.compress(content, 1)})
        path.write_bytes(content if kind == b"2" else gzip.compress(content, 1))
        try:
            aishell1._extract_corpus(path, out)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    inner = tar(**{"train/S1/a.wav": b"RIFF", "train/S1/b.wav": b"RIFF2"})
    whole = tar(**{"data_aishell/transcript/t.txt": b"a b", "data_aishell/wav/S1.tgz": inner})
    seeds = [b"0" + whole, b"1" + inner, b"2" + gzip.compress(whole)]
    return Target(seeds, run, [b"../", b"./", b"/etc/x", b"ustar", b"\x00" * 512, b"1", b"2", b"L"])


def arpa(folder: Path) -> Target:
    """Language models as ARPA files, and a score of one."""
    path = folder / "lm.arpa"
    tokenizer = Tokenizer.train(["今天天气"], TokenizerConfig())
    seed = (
        "\\data\\\nngram 1=5\nngram 2=2\nngram 3=1\n\n\\1-grams:\n-1.0\t<s>\t-0.3\n-1\t</s>\n"
        "-0.7\t今\t-0.2\n-0.7\t天\t-0.2\n-2\t<unk>\n\n\\2-grams:\n-0.3\t<s> 今\t-0.1\n"
        "-0.2\t今 天\n\n\\3-grams:\n-0.1\t<s> 今 天\n\n\\end\\\n"
    )

    def run(data: bytes) -> None:
        path.write_bytes(data)
        scorer = NGram.load(path, tokenizer).start(1, 2, torch.device("cpu"))
        scorer.score(torch.arange(tokenizer.vocab_size).expand(1, 2, -1))

    tokens = [b"\\data\\", b"ngram 1=", b"-grams:", b"\\end\\", b"<s>", b"</s>", b"<unk>", b"\\1-"]
    return Target([seed.encode()], run, tokens)


def words(folder: Path) -> Target:
    """Lists of words with counts and tags."""
    path = folder / "words"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        assert all(word and times > 0 for word, times in read_words(path))

    seeds = ["今天 7 t\n打开\t3\n", "第 3 次\n\n一\n"]
    return Target([seed.encode() for seed in seeds], run, [b" 1", b"\t", b"\n", b" n"])


def reply(_folder: Path) -> Target:
    """Replies of other services: the status, a Retry-After, and after a line of -- the body."""
    loop, url = asyncio.new_event_loop(), "http://localhost/v1/"

    def run(data: bytes) -> None:
        head, _, body = data.partition(b"\n--\n")
        status, _, after = head.partition(b" ")
        code = int(status) if status.isdigit() and len(status) == 3 else 200
        headers = [(b"retry-after", after), (b"location", after), (b"content-type", b"text/plain")]
        received = Reply(code, url, httpx.Headers(headers), body)
        received.retry_after + 1
        answer = AsyncMock(return_value=received)
        with suppress(AsrError), patch.object(remote, "_exchange", answer):
            loop.run_until_complete(remote._find_model(client, None))
        remote._accepted(received, client)
        for format in ("txt", "srt", "tsv", "json"):
            received.as_file(format).encode()

    client = httpx.AsyncClient(base_url=url, verify=False)
    cues = "1\n00:00:00,120 --> 00:00:01,480\n今天\n\n2\n00:00:02,000 --> 00:00:03,000\n天气\n\n"
    error = b'429 3\n--\n{"error": {"message": "m", "type": "t", "param": "file", "code": "c"}}'
    verbose = '200 \n--\n{"text": "今", "segments": [{"start": 0.1, "end": 1e3, "text": "今"}]}'
    date = b"503 Wed, 21 Oct 2099 07:28:00 GMT\n--\nbusy"
    models = b'200 \n--\n{"object": "list", "data": [{"id": "a", "object": "model"}]}'
    seeds = [b"200 \n--\n" + cues.encode(), error, verbose.encode(), date, models]
    tokens = [b" --> ", b"00:00", b"\n\n", b"200 ", b"413 ", b"503 ", b'{"error": ', b"GMT", b"[[["]
    return Target(seeds, run, tokens)


def score(folder: Path) -> Target:
    """Two files of texts, with a line of -- between them."""
    paths = folder / "a.txt", folder / "b.txt"
    text = "u1\t今天 天气\nu2 很 好\n"

    def run(data: bytes) -> None:
        for path, content in zip(paths, (*data.split(b"--\n", 1), b"")[:2], strict=True):
            path.write_bytes(content)
        score_files(*paths)

    return Target([f"{text}--\n{text}".encode(), b"a b\n--\na c"], run, [b"u1", b"u2", b"--\n"])


TARGETS: dict[str, Callable[[Path], Target]] = {
    made.__name__: made
    for made in (
        audio, sphere, recipe, bundle, manifest, transcript, table, beside, archive, arpa, words,
        reply, score, form, live, realtime,
    )
}  # fmt: skip
