"""Bundles and language models of strangers: what a token becomes, and where training writes."""

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from sentencepiece import SentencePieceTrainer

from asr.bundle import Bundle
from asr.config import Config
from asr.decoding.options import DecodingOptions
from asr.errors import BundleError, ConfigError, DataError
from asr.evaluation.records import Evaluation
from asr.lm.loading import load_language_model
from asr.lm.training import train_ngram
from asr.reporting.results import write_evaluation
from asr.runtime.tensors import read_metadata, read_shapes, read_tensors, shapes_alone
from asr.tokenizer import Tokenizer, TokenizerConfig, _fields
from asr.train.language_model import train_lm
from tests.helpers import beeps, encode_audio, run_cli, tones_recipe

CPU = torch.device("cpu")
RESULT = Evaluation(
    cer=0.5, substitutions=1, insertions=0, deletions=0, reference_length=2, mean_length=2.0,
    rtf=0.1, audio_seconds=1.0, utterances=1, skipped=0, device="cpu", decoding=DecodingOptions(),
    worst=(),
)  # fmt: skip


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def field(key: int, content: bytes) -> bytes:
    """Return a field of a protobuf message, of less than 128 bytes."""
    return bytes([key << 3 | 2, len(content)]) + content


@pytest.mark.parametrize("resume", [False, True])
def test_a_language_model_does_not_replace_a_recognizer(bundle: Path, resume: bool) -> None:
    """S7: `asr train-lm B --out B`."""
    before = contents(bundle)
    with pytest.raises(ConfigError, match="holds a recognizer"):
        train_lm(Bundle.load(bundle), [], bundle, 1, resume, CPU)
    assert contents(bundle) == before


@pytest.mark.costly
@pytest.mark.parametrize("link", ["lm", "lm/training", "lm.arpa"])
def test_a_bundles_link_does_not_lead_a_training_elsewhere(
    bundle: Path, tmp_path: Path, link: str
) -> None:
    """S6: without --out, `asr train-lm` writes into the bundle."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (bundle / link).parent.mkdir(exist_ok=True)
    (bundle / link).symlink_to(elsewhere)
    text = tmp_path / "text"
    text.write_text("一二三\n", "utf-8")
    option = ["--order", "2"] if link == "lm.arpa" else ["--epochs", "1"]
    result = run_cli("train-lm", bundle, text, *option)
    assert result.returncode == 2 and f"{link}: leads out of" in result.stderr, result.stderr
    assert not list(elsewhere.iterdir())


def test_a_null_in_the_place_of_metadata_is_none(bundle: Path) -> None:
    """A5: safetensors accepts it, and a bundle without the digest of its tokenizer is refused."""
    path = bundle / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]) | {"__metadata__": None}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    assert read_tensors(path)
    with pytest.raises(BundleError, match="belong to two models"):
        Bundle.load(bundle)


@pytest.mark.parametrize("content", [None, b"\xff a card"])
def test_an_evaluation_copies_nothing_from_elsewhere_into_the_card(
    bundle: Path, tmp_path: Path, content: bytes | None
) -> None:
    """A bundle's card may be a link to any file of the user, or no text at all."""
    (tmp_path / "secret").write_text("a secret", "utf-8")
    card = bundle / "README.md"
    card.unlink()
    if content is None:
        card.symlink_to(tmp_path / "secret")
    else:
        card.write_bytes(content)
    write_evaluation(bundle, Path("m.jsonl"), RESULT)
    assert "## Results" in card.read_text("utf-8") and "secret" not in card.read_text("utf-8")
    assert not card.is_symlink() and (tmp_path / "secret").read_text("utf-8") == "a secret"


@pytest.mark.parametrize(
    "part",
    [
        field(5, field(2, b"rules")),
        field(5, b""),
        field(3, field(2, b"rules")),
        field(3, field(6, b"rules")),
        field(3, b"\x92\x80\x80\x80\x10\x05rules"),  # field 2, in bits that protobuf cuts off
        field(4, field(1, field(1, "一".encode()))),
        b"\xaa\x00" + field(2, b"rules"),
        b"\x2b" + field(2, b"rules") + b"\x2c",
        b"\x0a\x00" * 300_000,
    ],
)
def test_a_tokenizer_that_rewrites_texts_is_refused(part: bytes) -> None:
    """S5: a rule can make a million characters of each token, or of a test of the model itself."""
    model = Tokenizer.train(["一二三"], TokenizerConfig()).model
    with pytest.raises(BundleError, match=r"tokenizer\.model (has|is not)"):
        Tokenizer(model + part)


@pytest.mark.parametrize("place", [3, 5])
def test_a_token_does_not_become_a_thousand(tmp_path: Path, place: int) -> None:
    """S5: with rules as sentencepiece itself makes them, of a normalizer or a denormalizer."""
    rules, model = tmp_path / "rules.tsv", io.BytesIO()
    rules.write_text(f"{ord('一'):X}\t{' '.join(['957F'] * 1000)}\n")
    SentencePieceTrainer.train(
        sentence_iterator=iter(["一二三"]), model_writer=model, model_type="char", vocab_size=20,
        hard_vocab_limit=False, normalization_rule_tsv=str(rules), minloglevel=2,
    )  # fmt: skip
    (normalizer,) = (content for key, content in _fields(model.getvalue()) if key == 3)
    (charsmap,) = (content for key, content in _fields(normalizer) if key == 2)
    spec = b"\x12" + bytes([len(charsmap) & 127 | 128, len(charsmap) >> 7]) + charsmap
    part = bytes([place << 3 | 2, len(spec) & 127 | 128, len(spec) >> 7]) + spec
    good = Tokenizer.train(["一二三"], TokenizerConfig())
    with pytest.raises(BundleError, match=r"has a (de)?normalizer"):
        assert Tokenizer(good.model + part).decode(good.encode("一")) == "一"


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_tokenizers_that_training_makes_are_accepted(kind: str) -> None:
    """S5: they have no rules."""
    texts = ["今天天气 GO ON", "一二三 GO"] * 3
    tokenizer = Tokenizer.train(
        texts, TokenizerConfig.model_validate({"kind": kind, "vocab_size": 15})
    )
    assert tokenizer.decode(tokenizer.encode("今天 GO")) == "今天GO"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool])
def test_weights_of_other_types_are_refused_in_a_sentence(bundle: Path, dtype: torch.dtype) -> None:
    """S5: torch cannot compute with all of them; halves and doubles are read."""
    from safetensors.torch import save_file

    path = bundle / "model.safetensors"
    good, digest = read_tensors(path), Bundle.load(bundle).tokenizer.digest

    def write(dtype: torch.dtype) -> None:
        changed = {k: v.to(dtype) if v.is_floating_point() else v for k, v in good.items()}
        save_file(changed, path, {"tokenizer": digest})

    for sound in (torch.float16, torch.bfloat16, torch.float64):
        write(sound)
        Bundle.load(bundle)
    write(dtype)
    with pytest.raises(BundleError, match=r"tensor .* is (of type F8|torch)"):
        Bundle.load(bundle)


@pytest.mark.parametrize("order", [-1, 0, 21, 4000])
def test_orders_that_no_language_model_has_are_refused(tmp_path: Path, order: int) -> None:
    """S5: each order is a step of every look-up."""
    arpa = tmp_path / "lm.arpa"
    grams = f"\\{order}-grams:\n-1{' 一' * order}\n"
    arpa.write_text(
        f"\\data\\\nngram 1=1\nngram {order}=1\n\n\\1-grams:\n-1 一 -1\n{grams}\\end\\\n", "utf-8"
    )
    tokenizer = Tokenizer.train(["一二三"], TokenizerConfig())
    with pytest.raises(BundleError, match=re.escape(f"the order is {order}, 1 to 20")):
        load_language_model(arpa, tokenizer, CPU)


def test_a_bundle_with_a_language_model_elsewhere_works(bundle: Path, tmp_path: Path) -> None:
    """S9: the verbs warn, and --lm gives it."""
    config = bundle / "config.yaml"
    text = config.read_text("utf-8").replace("lm: null", f"lm: {json.dumps(str(tmp_path / 'x'))}")
    config.write_text(text.replace("lm_weight: 0.0", "lm_weight: 0.5"), "utf-8")
    (tmp_path / "a.wav").write_bytes(encode_audio(beeps(1)))
    token = Bundle.load(bundle).tokenizer.tokens()[-1]
    arpa = tmp_path / "lm.arpa"
    arpa.write_text(f"\\data\\\nngram 1=1\n\n\\1-grams:\n-1 {token}\n\n\\end\\\n", "utf-8")
    for options in ([], ["--lm-weight", "0"], ["--lm", arpa, "--lm-weight", "0.5"]):
        result = run_cli("transcribe", bundle, tmp_path / "a.wav", *options)
        assert result.returncode == 0 and result.stderr.count("is not used") == 1, result.stderr


@pytest.mark.drawn(1)
@pytest.mark.parametrize("link", ["lm/notes.txt", "lm/more", "lm/config.yaml", "lm.arpa"])
def test_compressing_copies_nothing_from_elsewhere(bundle: Path, tmp_path: Path, link: str) -> None:
    """A smaller bundle is meant to be passed on."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/id_rsa").write_text("the key")
    (bundle / "lm").mkdir()
    for name in ("config.yaml", "model.safetensors"):
        (bundle / "lm" / name).write_text("x")
    (bundle / link).unlink(missing_ok=True)
    (bundle / link).symlink_to(tmp_path / ("secret" if link == "lm/more" else "secret/id_rsa"))
    config, lm = bundle / "config.yaml", link.partition("/")[0]
    config.write_text(config.read_text("utf-8").replace("lm: null", f"lm: {lm}"), "utf-8")
    done = run_cli("compress", bundle, "--int8", "--out", tmp_path / "out")
    copied = [p.read_bytes() for p in tmp_path.glob("out/**/*") if p.is_file()]
    assert not any(b"the key" in content for content in copied)
    assert (done.returncode == 0) == (link != "lm/config.yaml"), done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_a_bundle_makes_train_lm_read_manifests_alone(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the secret\n")
    opened = Bundle.load(bundle)
    names = {"train": (tmp_path / "notes.txt",), "dev": tmp_path / "notes.txt"}
    data = opened.config.data.model_copy(update=names)
    config = opened.config.model_copy(update={"data": data})
    (tmp_path / "own.txt").write_text(f"{opened.tokenizer.tokens()[-1]}\n", "utf-8")
    for texts in ([], [tmp_path / "own.txt"]):
        with pytest.raises(DataError, match="is not a lhotse manifest") as caught:
            train_ngram(config, opened.tokenizer, texts, [], tmp_path / "lm.arpa", 2)
        assert "secret" not in str(caught.value)
    assert not (tmp_path / "lm.arpa").exists()


def test_a_pipe_among_the_files_of_a_language_model_is_refused(
    bundle: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    for read in (read_shapes, read_metadata):
        with pytest.raises(BundleError, match="not a plain file"):
            read(tmp_path / "model.safetensors")


def test_sparse_maps_that_would_take_gigabytes_are_refused(tones: Path) -> None:
    """A file of a megabyte becomes whole matrices where it is used."""
    sparse = {"kind": "set_sparse", "epsilon": 1e-4}
    values = tones_recipe(
        tones, model={"d_model": 512, "d_inner": 65536, "projection": sparse, "n_heads": 1}
    )
    model = Config.model_validate(values).model
    with shapes_alone(), pytest.raises(ConfigError, match="denser than one of 100"):
        model.build(20, 10)
