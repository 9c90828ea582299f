"""Losses of training alone, against torch's own, by property, and in a run."""

import itertools
import math
import sys
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import torch
from torch.nn.functional import kl_div

from asr.bundle import Bundle
from asr.config import Config
from asr.errors import ConfigError
from asr.model.conditioning import SOUNDS
from asr.pinyin import units_of
from asr.tokenizer import Tokenizer
from asr.train.auxiliary import consistency, ctc_sum, intermediate_ctc
from asr.train.module import SpeechModule
from asr.training_config import IntermediateConfig
from asr.transcription.recognizer import Recognizer
from tests.helpers import run_cli, speak, tones_recipe, write_recipe

pytest.importorskip("pypinyin")


def test_syllables_have_tones_and_parts_and_letters_stay() -> None:
    assert units_of("syllable")("中国人 了 OK") == ["zhong1", "guo2", "ren2", "le5", "O", "K"]
    parts = units_of("initial_final")
    assert parts("中国人了OK") == ["zh", "ong1", "g", "uo2", "r", "en2", "l", "e5", "O", "K"]
    assert parts("女儿二十") == ["n", "v3", "er2", "er4", "sh", "i2"]


def test_letters_need_no_pypinyin(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "OK go, éTé 42"
    expected = units_of("initial_final")(text)
    monkeypatch.setitem(sys.modules, "pypinyin", None)
    assert units_of("letter")(text) == expected == units_of("letter")(text.replace(" ", ""))
    with pytest.raises(ConfigError, match="pypinyin knows"):
        units_of("initial_final")


@pytest.mark.parametrize(("texts", "has_pinyin"), [(["AB", "BA"], False), (["AB", "中"], True)])
def test_a_layer_guesses_letters_without_pypinyin_and_sounds_with_it(
    tones: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], has_pinyin: bool
) -> None:
    encoder = {"n_layers": 2, "conditioning": {"layer": 1}}
    config = Config.model_validate(tones_recipe(tones, model={"encoder": encoder}))
    bundle = Bundle.create(config, Tokenizer.train(texts, config.tokenizer))
    if not has_pinyin:
        monkeypatch.setitem(sys.modules, "pypinyin", None)
    (head,) = SpeechModule(bundle, 1, texts).heads
    units = [[SOUNDS[i - 1] for i in ids] for ids in head.targets(texts)]
    assert units == [["A", "B"], ["zh", "ong1"] if has_pinyin else ["B", "A"]]


def test_consistency_is_the_mean_divergence_of_both_directions() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 7, 5, generator=generator)
    mask = torch.arange(7) < torch.tensor([7, 4, 7, 4])[:, None]
    logp = logits.log_softmax(-1)
    expected = 0.0
    for i, n in ((0, 7), (1, 4)):
        one, two = logp[i, :n], logp[i + 2, :n]
        for given, other in ((one, two), (two, one)):
            expected += 0.5 * float(kl_div(other, given, reduction="sum", log_target=True))
    assert float(consistency(logits, mask)) == pytest.approx(expected, rel=1e-5)
    same = logits[:2].repeat(2, 1, 1)
    assert float(consistency(same, mask)) == pytest.approx(0, abs=1e-6)


def test_a_view_is_drawn_to_the_other_and_padding_to_nothing() -> None:
    logits = torch.randn(2, 5, 3, requires_grad=True)
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    consistency(logits, mask).backward()
    assert logits.grad is not None
    assert (logits.grad[:, 3:] == 0).all()
    # Only the other's cross-entropy has a gradient: softmax(self) - softmax(other).
    one, two = logits.detach().softmax(-1)
    torch.testing.assert_close(logits.grad[0, :3], (one - two)[:3] / 2)


def test_ctc_is_the_sum_over_all_alignments() -> None:
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2))
    texts, steps = [[1, 2], [2]], [4, 3]
    expected = 0.0
    for row, text, n in zip(logits.log_softmax(-1), texts, steps, strict=True):
        paths = itertools.product(range(3), repeat=n)
        fit = [p for p in paths if [k for k, _ in itertools.groupby(p) if k] == text]
        expected -= math.log(
            sum(math.exp(sum(float(row[s, t]) for s, t in enumerate(p))) for p in fit)
        )
    lengths = torch.tensor([len(text) for text in texts])
    found = ctc_sum(logits, torch.tensor([1, 2, 2]), torch.tensor(steps), lengths)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_head_learns_syllables_of_what_its_layer_says() -> None:
    torch.manual_seed(3)
    layer, texts = torch.nn.Linear(6, 6), ["中国", "钟", "果中"]
    head = intermediate_ctc(IntermediateConfig(layer=1), layer, 6, texts)
    zhong, guo, other = (ids.tolist() for ids in head.targets(["钟", "国", "咖果"]))
    assert (zhong, len(guo), len(other)) == (head.targets(["中"])[0].tolist(), 1, 1)
    # 中国 needs two steps, 中中 three: a blank is between equal units.
    assert head.labels(["中国", "中国", "中中", "中中"], torch.tensor([1, 2, 2, 3])) == 4
    inputs, steps = torch.randn(3, 9, 6), torch.tensor([9, 9, 5])
    adam = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.05)
    losses = []
    for _ in range(30):
        layer(inputs)
        loss = head(texts, steps)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 3


def test_all_readings_are_of_the_known_sounds() -> None:
    assert len(SOUNDS) == len(set(SOUNDS)) < 256
    parts = units_of("initial_final")
    common = "".join(chr(i) for i in range(0x4E00, 0x9FA6))
    unknown = [c for c in common if not set(parts(c)) <= set(SOUNDS)]
    assert len(unknown) < 60, "only interjections as 嗯, and units as 兙, are without"


@pytest.mark.costly
def test_the_layers_above_get_a_guess_and_it_is_learned(tones: Path, tmp_path: Path) -> None:
    conditioning = {"n_layers": 3, "conditioning": {"layer": 2, "weight": 0.5}}
    recipe = write_recipe(
        tmp_path / "r.yaml",
        tones_recipe(tones, model={"encoder": conditioning}, training={"epochs": 12}) | {"seed": 2},
    )
    done = run_cli("train", recipe, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    bundle = Bundle.load(tmp_path / "run")
    encoder, guessed = bundle.model.encoder, []
    assert encoder.conditioning
    encoder.conditioning.head.register_forward_hook(lambda *seen: guessed.append(seen[2]))
    recognizer = Recognizer(bundle, "cpu")
    texts = ["一二三四", "四三二一", "二四一三"]
    # An initial has little time here, and not each is found: a guess is nearest to its own text.
    for text in texts:
        guessed.clear()
        recognizer.texts([torch.from_numpy(speak(text, 7))])
        best = torch.unique_consecutive(guessed[0][0].argmax(-1)).tolist()
        sounds = [SOUNDS[i - 1] for i in best if i]
        alike = {
            t: SequenceMatcher(None, sounds, units_of("initial_final")(t)).ratio() for t in texts
        }
        assert max(alike, key=alike.__getitem__) == text and alike[text] > 0.5
    steps = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        given = encoder(steps, torch.ones(1, 9, dtype=torch.bool))
        torch.nn.init.zeros_(encoder.conditioning.back.weight)
        without = encoder(steps, torch.ones(1, 9, dtype=torch.bool))
    assert float((given - without).norm() / given.norm()) > 0.001


@pytest.mark.parametrize(
    ("training", "model", "words"),
    [
        ({"intermediate": [{"layer": 9}]}, {}, "names layer 9 of 1"),
        ({"consistency": 0.2}, {"ctc_weight": 0.0}, "go with a CTC head"),
        ({}, {"encoder": {"n_layers": 1, "conditioning": {"layer": 1}}}, "names layer 1 of 1"),
        ({}, {"encoder": {"conditioning": {"layer": 1}}, "ctc_weight": 0.0}, "go with a CTC head"),
        ({}, {"encoder": {"n_layers": 2, "sounds": {"layer": 2}}}, "sounds names layer 2 of 2"),
        ({}, {"encoder": {"sounds": {"layer": 1}}, "ctc_weight": 0.0}, "go with a CTC head"),
    ],
)
def test_what_does_not_fit_is_refused(training: dict, model: dict, words: str) -> None:
    values = tones_recipe(Path("data"), training=training, model=model, decoding={"ctc_weight": 0})
    with pytest.raises(ValueError, match=words):
        Config.model_validate(values)


@pytest.mark.costly
def test_a_recipe_trains_with_all_resumes_and_its_bundle_has_none(
    tones: Path, tmp_path: Path
) -> None:
    auxiliary = {
        "consistency": 0.2, "intermediate": [{"layer": 1, "weight": 0.3}], "shared_sounds": True
    }  # fmt: skip
    recipe = write_recipe(
        tmp_path / "r.yaml", tones_recipe(tones, training={**auxiliary, "epochs": 1})
    )
    out = tmp_path / "run"
    assert run_cli("train", recipe, "--out", out).returncode == 0
    more = run_cli("train", recipe, "--out", out, "--resume", "--set", "training.epochs=2")
    assert more.returncode == 0, more.stderr
    other = ("--set", "training.epochs=3", "--set", "training.intermediate=[]")
    refused = run_cli("train", recipe, "--out", out, "--resume", *other)
    assert refused.returncode == 2 and "another training.intermediate" in refused.stderr
    plain = write_recipe(tmp_path / "p.yaml", tones_recipe(tones, training={"epochs": 1}))
    assert run_cli("train", plain, "--out", tmp_path / "plain").returncode == 0
    size = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("run", "plain")]
    assert abs(size[0] - size[1]) < 100
    assert len((out / "training/history.csv").read_text().splitlines()) == 3
