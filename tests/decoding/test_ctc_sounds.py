"""Greedy decoding by sounds: against all paths, on homophones, and through the command line."""

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.ctc_prefix import BLANK
from asr.decoding.ctc_sounds import Homophones
from asr.decoding.decode import Encoded, SpeechDecoder
from asr.decoding.hotwords import as_hotwords
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError
from asr.tokenizer import EOS, SOS, SPECIAL, UNK, Tokenizer, TokenizerConfig
from serve.engine.models import load
from serve.settings import Settings
from tests.helpers import copied, run_cli, tiny_model

pytest.importorskip("pypinyin")
OPTIONS = DecodingOptions(method="ctc_sounds")
# 电, 殿 and 店 are dian4, of which 店 is the commonest; 点 is dian3 and 天 tian1.
TOKENIZER = Tokenizer.train(["店店店电", "殿点天A", "天点"], TokenizerConfig())
SOUND = dict.fromkeys("电殿店", "dian4") | {"点": "dian3", "天": "tian1", "A": "A"}
WRITTEN = {"dian4": "店", "dian3": "点", "tian1": "天", "A": "A"}


def _texts(logp_BSV: torch.Tensor, steps: list[int]) -> list:
    words_V = torch.tensor(TOKENIZER.word_counts(), dtype=torch.float32)
    return Homophones(TOKENIZER).texts(logp_BSV, torch.tensor(steps), OPTIONS, words_V)


def _head(seed: int, steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(steps, TOKENIZER.vocab_size, generator=generator) * 2).log_softmax(-1)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_likeliest_path_of_sounds_and_its_probability_that_of_all_such_paths(
    seed: int,
) -> None:
    sounds = [SOUND.get(token, token) for token in TOKENIZER.tokens()]
    said = [sound for k, sound in enumerate(sounds) if k not in (SOS, EOS, UNK)]
    heads, steps = [_head(seed, 4), _head(seed + 100, 4)], [4, 3]
    found = _texts(torch.stack(heads), steps)
    for h, logp_SV, n in zip(found, heads, steps, strict=True):
        frames = [dict.fromkeys(sounds, 0.0) for _ in range(n)]
        for frame, p_V in zip(frames, logp_SV.exp().tolist(), strict=False):
            for sound, p in zip(sounds, p_V, strict=True):
                frame[sound] += p
        path = [max(said, key=frame.__getitem__) for frame in frames]
        wanted = [sound for sound, _ in itertools.groupby(path) if sound != sounds[BLANK]]
        assert TOKENIZER.decode(h.tokens) == "".join(WRITTEN[sound] for sound in wanted)
        total = sum(
            math.prod(frame[sound] for frame, sound in zip(frames, each, strict=True))
            for each in itertools.product(dict.fromkeys(sounds), repeat=n)
            if [s for s, _ in itertools.groupby(each) if s != sounds[BLANK]] == wanted
        )
        assert h.ctc_log_prob == pytest.approx(math.log(total), abs=1e-4)
        assert all(0 < confidence <= 1 for confidence in h.confidences)


def test_homophones_outvote_a_character_that_has_none_and_are_written_alike() -> None:
    p_V = torch.full((TOKENIZER.vocab_size,), 0.01)
    ids = {token: k for k, token in enumerate(TOKENIZER.tokens())}
    for token, p in {"电": 0.25, "殿": 0.24, "店": 0.06, "天": 0.35}.items():
        p_V[ids[token]] = p
    logp_BSV = (p_V / p_V.sum()).log()[None, None]
    words_V = torch.ones(TOKENIZER.vocab_size)
    (greedy,) = greedy_texts(logp_BSV, torch.tensor([1]), OPTIONS, words_V)
    (sounds,) = _texts(logp_BSV, [1])
    assert TOKENIZER.decode(greedy.tokens) == "天" and TOKENIZER.decode(sounds.tokens) == "店"
    assert sounds.confidence == pytest.approx(0.55 / float(p_V.sum()), abs=1e-4)


def test_a_decoder_takes_the_method_and_has_characters_with_hotwords() -> None:
    p_V = torch.full((TOKENIZER.vocab_size,), 0.01)
    ids = {token: k for k, token in enumerate(TOKENIZER.tokens())}
    for token, p in {"电": 0.3, "殿": 0.2, "店": 0.1, "天": 0.35}.items():
        p_V[ids[token]] = p
    memory_BSD, mask_BS = torch.zeros(1, 1, 16), torch.ones(1, 1, dtype=torch.bool)
    encoded = Encoded(memory_BSD, mask_BS, (p_V / p_V.sum()).log()[None, None])
    decoder = SpeechDecoder(tiny_model(), TOKENIZER)

    def text(**changes: object) -> str:
        ((best, *_),) = decoder.decode(encoded, DecodingOptions().changed(changes))
        return best.text

    assert text(method="ctc_greedy") == "天" and text(method="ctc_sounds") == "店"
    hotwords = as_hotwords(["电A"])
    assert text(method="ctc_sounds", hotwords=hotwords) == "天", "a search of characters"
    threshold = DecodingOptions(method="ctc_sounds", confidence_threshold=0.5, hotwords=hotwords)
    ((best, *_),) = decoder.decode(encoded, threshold)
    assert best.text == "天", "the threshold is of sounds, and 0.35 is a character's confidence"


def test_the_first_tokens_are_the_special_ones_whatever_they_are_called() -> None:
    named = TOKENIZER.model
    for name, other in ((b"<PAD>", "他A".encode() + b"1"), (b"<EOS>", "她A".encode() + b"1")):
        named = named.replace(name, other)
    groups = Homophones(Tokenizer(named)).group_V
    assert groups.tolist() == Homophones(TOKENIZER).group_V.tolist()
    assert groups[: len(SPECIAL)].tolist() == list(SPECIAL)


def test_a_threshold_of_sounds_is_none_of_characters() -> None:
    sounds = DecodingOptions(method="ctc_sounds", confidence_threshold=0.3)
    assert sounds.changed({"beam_size": 4}).confidence_threshold == 0.3
    assert sounds.changed({"confidence_threshold": 0.4}).confidence_threshold == 0.4
    with pytest.raises(ConfigError, match="--hotwords looks for characters"):
        sounds.changed({"confidence_threshold": 0.4, "hotwords": as_hotwords(["电A"])})
    for method in ("ctc_greedy", "ctc_beam", "joint"):
        assert sounds.changed({"method": method}).confidence_threshold is None


def test_a_bonus_of_the_ctc_beam_is_none_of_joint_decoding() -> None:
    tuned = DecodingOptions(method="ctc_beam", lm="lm", lm_weight=0.7, lm_bonus=6.0)
    assert tuned.changed({"method": "rescore"}).lm_bonus == 6.0
    assert tuned.changed({"method": "joint"}).lm_bonus == 0.0


def test_a_service_that_cannot_decode_so_does_not_start(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = copied(tiny_bundle, tmp_path / "b", decoding__method="ctc_sounds")
    settings = Settings.read(bundles=(str(bundle),), device="cpu")
    assert load(settings)
    monkeypatch.setitem(sys.modules, "pypinyin", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrt-asr\[chinese\]'"):
        load(settings)


def test_letters_are_not_mixed_up_with_syllables_of_their_name() -> None:
    tokenizer = Tokenizer.train(["他她TtEé"], TokenizerConfig(case="keep"))
    groups = Homophones(tokenizer).group_V
    assert len(set(groups.tolist())) == tokenizer.vocab_size - 1, "他 and 她 alone sound alike"
    with pytest.raises(ConfigError, match="tokens of one character, and this model has longer"):
        Homophones(Tokenizer.train(["今天天气 今天"], TokenizerConfig(kind="bpe", vocab_size=10)))


@pytest.mark.costly
def test_the_command_line_decodes_by_sounds(learned: Path, tones: Path) -> None:
    greedy, sounds = (
        run_cli("evaluate", learned, tones / "dev.jsonl.gz", "--method", method).stdout
        for method in ("ctc_greedy", "ctc_sounds")
    )
    (greedy_line,), (sounds_line,) = (
        [line.split("; RTF")[0] for line in text.splitlines() if "CER" in line]
        for text in (greedy, sounds)
    )
    assert greedy_line == sounds_line, "no two of its five characters sound alike"
    weighted = ("--lm", tones / "none.arpa", "--lm-weight", "0.3")
    refused = run_cli(
        "evaluate", learned, tones / "dev.jsonl.gz", "--method", "ctc_sounds", *weighted
    )
    assert refused.returncode and "ctc_sounds has no language model" in refused.stderr


def test_a_sound_that_fine_tuning_brought_is_written_as_its_commonest_character() -> None:
    grown = Tokenizer.train(["好"], TokenizerConfig()).grown(["店", "电"])
    homophones, tokens = Homophones(grown), grown.tokens()
    group = homophones.group_V[tokens.index("电")]
    assert group == homophones.group_V[tokens.index("店")]
    assert tokens[int(homophones.written_G[group])] == "店"
