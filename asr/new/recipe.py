"""Choose a recipe by the measurements of a corpus alone, each value with its reason."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asr.config import apply_override, positive_number
from asr.new.commented import Recipe
from asr.new.measure import LONGEST, CorpusMeasures
from asr.new.size import BY_MUON, SIZES, Size, size_for

_STEPS_OF_AN_HOUR = 6000  # steps that a corpus of at most an hour gets
_STEPS_BY_MUON = 2 / 3
_CTC_SECONDS = 0.05  # per token; below, more text is said than CTC has steps for
_BPE_HOURS, _BPE_WORDS = 20.0, 5000
_MARKS_HOURS = 20.0
_VOICES_HOURS = 2.0
_TURKISH = 0.01  # of the letters are ı, İ or ğ
_SPELLED = 0.8  # share of the text that the units of self-conditioning can write
_WORD_SECONDS = 2.0  # most utterances of a corpus of single words are shorter
_LIVE = {"chunk": 16, "left_chunks": 4, "rotary": True}  # in steps of 40 ms
_VOICES = {
    "pitch": 1.3, "formants": 1.2, "tempo": 1.2, "filter_db": 8, "rooms": 0.2, "noise": 0.3,
    "overload": 0.3,
}  # fmt: skip


def choose(
    corpus: CorpusMeasures,
    data: Path,
    overrides: list[str] | None = None,
    has_bfloat16: bool = False,
    is_live: bool = False,
) -> Recipe:
    """Return a recipe for the corpus in the folder `data`, with `key.key=value` set in it.

    If `training.epochs` or `model.encoder.n_layers` is set, the values that depend on it follow.
    `has_bfloat16`: the processor that trains is faster in bfloat16. `is_live`: the model is to
    write text while one speaks. Raises ConfigError where an override has another form.
    """
    given: dict[str, Any] = {}
    keys = [apply_override(given, override) for override in overrides or []]
    recipe, size = Recipe(), size_for(corpus)
    is_by_muon = has_bfloat16 and size.hours in BY_MUON
    if is_by_muon:
        size = size._replace(**BY_MUON[size.hours])
    n_speeds = 3 if _VOICES_HOURS <= corpus.hours < 200 else 1
    batch_seconds = _batch_seconds(corpus, size, n_speeds)
    step_seconds = batch_seconds * size.accumulate
    steps = math.ceil(corpus.hours * 3600 * n_speeds / step_seconds)
    epochs = math.ceil(positive_number(given, "training", "epochs") or 0)
    epochs = epochs or _epochs(corpus, steps, n_speeds, is_by_muon)
    _add_data(recipe, corpus, data, batch_seconds, n_speeds, steps)
    _add_features(recipe, corpus, size, is_live)
    _add_augmentation(recipe, corpus, size, epochs)
    is_aligned = _add_tokens(recipe, corpus)
    _add_model(recipe, corpus, size, is_aligned, is_live)
    _add_training(recipe, corpus, size, epochs, steps)
    if has_bfloat16:
        recipe.add("training.precision", "bfloat16", "half the time on this processor")
    if is_by_muon:
        recipe.add("training.optimizer", {"kind": "muon", "rate": 1.5}, size.source)
    n_layers = math.ceil(positive_number(given, "model", "encoder", "n_layers") or size.n_layers[0])
    if n_layers > 1 and (has_pinyin() or not corpus.chinese):
        if corpus.is_mandarin:
            is_char = not any(
                o.startswith(("tokenizer.kind", "tokenizer=")) for o in overrides or []
            )
            _add_sounds(recipe, n_layers, corpus.longest <= _WORD_SECONDS and is_char)
        elif size is SIZES[0] and is_aligned and corpus.spelled >= _SPELLED:
            why = "the guesses of a layer help those above it: fewer errors of 20 words"
            recipe.add("model.encoder.conditioning", {"layer": _guessing_layer(n_layers)}, why)
    for key, override in zip(keys, overrides or [], strict=True):
        apply_override(recipe.values, override)
        for below in [other for other in recipe.reasons if other.startswith(f"{key}.")]:
            del recipe.reasons[below]  # the reason for the value before
        recipe.reasons[key] = "given by --set"
    return recipe


def _epochs(corpus: CorpusMeasures, steps: int, n_speeds: int, is_by_muon: bool) -> int:
    """Return the number of epochs, of so many steps each, for the hours of a corpus."""
    wanted: float = _STEPS_OF_AN_HOUR * max(1.0, corpus.hours**0.6)
    share = _STEPS_BY_MUON if is_by_muon else 1.0
    return min(math.ceil(share * max(10, wanted / steps)), 600 // n_speeds)


def _batch_seconds(corpus: CorpusMeasures, size: Size, n_speeds: int) -> float:
    """Return the seconds of a batch: few for a small corpus, so that there are enough steps."""
    share = corpus.hours * 3600 * n_speeds / 150
    return float(round(max(8.0, 2 * corpus.longest, min(size.batch_seconds, share))))


def _add_data(
    recipe: Recipe,
    corpus: CorpusMeasures,
    data: Path,
    batch_seconds: float,
    n_speeds: int,
    steps: int,
) -> None:
    recipe.add("data.train", str(data / "train.jsonl.gz"))
    recipe.add("data.dev", str(data / "dev.jsonl.gz"))
    recipe.add(
        "data.batch_seconds",
        batch_seconds,
        f"about {steps:,} steps an epoch; less needs less memory",
    )
    speeds = [0.9, 1.0, 1.1] if n_speeds == 3 else [1.0]
    if corpus.hours < _VOICES_HOURS:
        why = "augment.voices has other tempos and pitches"
    else:
        why = "other speeds are like other speakers" if n_speeds == 3 else "there is enough audio"
    recipe.add("data.speed_factors", speeds, why)
    recipe.add("data.min_seconds", 0.1, "what is shorter holds no word")
    why = f"{corpus.too_long} longer ones are left out" if corpus.too_long else "none is longer"
    recipe.add("data.max_seconds", LONGEST, why)


def _add_features(recipe: Recipe, corpus: CorpusMeasures, size: Size, is_live: bool) -> None:
    rates = corpus.sample_rates
    wide = sum(hours for rate, hours in rates.items() if rate >= 16000) / sum(rates.values())
    recipe.add("features.kind", "fbank" if is_live else "log_mel")
    rate = 16000 if wide >= 0.9 else 8000
    recipe.add("features.sample_rate", rate, f"{wide:.0%} of the audio has 16000 Hz or more")
    has_tones = corpus.is_chinese and size is not SIZES[0]  # few words need no tones
    # At half the bandwidth fewer bins are as close to each other.
    bins = (80 if rate == 16000 else 64) if has_tones else size.n_mels
    why = "tones are in the pitch, which fewer bins resolve less"
    recipe.add("features.n_mels", bins, why if has_tones else f"for {_amount(corpus)}")
    if is_live:
        recipe.add("features.normalize", "corpus", "a stream does not know its whole recording")
        recipe.add("features.sherpa_onnx", True, "as sherpa-onnx computes them, on phones too")
        recipe.add("features.window_ms", 25)
        recipe.add("features.hop_ms", 10)
        return
    seconds = corpus.seconds_per_character * (1 - corpus.silence)
    spoken = f"a character takes {seconds:.3f} s without silence"
    # A Chinese character is two sounds, and speeds and people are faster than the mean too.
    is_slow = seconds >= (0.22 if corpus.is_chinese else 0.16)
    recipe.add("features.window_ms", 40 if is_slow else 20)
    why = "half the work, and still two encoder steps" if is_slow else "an encoder step is 0.04 s"
    recipe.add("features.hop_ms", 20 if is_slow else 10, f"{spoken}: {why}")


def _add_augmentation(recipe: Recipe, corpus: CorpusMeasures, size: Size, epochs: int) -> None:
    is_small = size.hours < 20
    masks = "masked bands and spans, so that no single one decides (SpecAugment)"
    recipe.add("augment.freq_masks", 2, masks)
    n_mels = recipe.values["features"]["n_mels"]
    width = round((0.15 if is_small else 0.34) * n_mels)
    recipe.add("augment.freq_width", width, f"bins of {n_mels}")
    recipe.add("augment.time_masks", 1 if size.hours < 5 else 4)
    recipe.add("augment.time_ratio", 0.05)
    if corpus.hours < _VOICES_HOURS:
        why = "other voices, rooms and microphones than the few of a small corpus"
        recipe.add("augment.voices", dict(_VOICES), why)
    has_pauses = corpus.silence >= 0.25
    why = "has pauses of its own" if has_pauses else "is cut tightly around speech"
    recipe.add(
        "augment.pauses.padded",
        0.2 if has_pauses else 0.4,
        f"{corpus.silence:.0%} is silence: the corpus {why}",
    )
    recipe.add(
        "augment.pauses.from_epoch",
        min(epochs, max(2, round(0.7 * epochs))),
        "pauses and noise come late: an alignment is learned sooner without",
    )


def _add_tokens(recipe: Recipe, corpus: CorpusMeasures) -> bool:
    """Add the kind of tokens; return whether CTC has enough steps for the tokens."""
    per_character = corpus.seconds_per_character
    is_bpe = (
        corpus.hours >= _BPE_HOURS
        and corpus.words >= _BPE_WORDS
        and corpus.characters <= 200
        and per_character < 0.12
    )
    why = f"{corpus.characters:,} different characters"
    if corpus.turkish >= _TURKISH:
        recipe.add("tokenizer.case", "lower_tr", "ı and i are two letters, I is the capital of ı")
    elif corpus.chinese < 0.5:
        recipe.add("tokenizer.case", "lower", "upper would merge ß with ss and ı with i")
    if corpus.marks and corpus.hours < _MARKS_HOURS:
        unsaid = "no mark is said, and little speech does not teach where one is; keep writes them"
        recipe.add("tokenizer.punctuation", "remove", unsaid)
    if is_bpe:
        recipe.add("tokenizer.kind", "bpe", f"{why}, {corpus.words:,} words: an alphabet")
        recipe.add("tokenizer.vocab_size", 500 if corpus.hours < 100 else 1000, "parts of words")
        return True
    recipe.add("tokenizer.kind", "char", f"{why}, {_amount(corpus)}")
    return per_character >= _CTC_SECONDS


def _add_model(
    recipe: Recipe, corpus: CorpusMeasures, size: Size, is_aligned: bool, is_live: bool
) -> None:
    recipe.add("model.d_model", size.d_model, f"for {_amount(corpus)}: {size.source}")
    recipe.add("model.d_inner", 4 * size.d_model)
    recipe.add("model.n_heads", size.n_heads)
    recipe.add("model.dropout", size.dropout)
    recipe.add("model.norm", "pre", "converges sooner than post")
    if size.rank is None:
        why = "an LRT as large had 1 to 2.6 points more errors of sentences"
        recipe.add("model.projection.kind", "dense", why)
    else:
        recipe.add("model.projection.kind", "low_rank", "the Low-Rank Transformer")
        recipe.add("model.projection.rank", size.rank)
    if size.rank and size.hours:
        why = "with the usual start an LRT learned nothing in an epoch of sentences"
        recipe.add("model.projection.init", "spectral", why)
    recipe.add("model.frontend.kind", "vgg")
    recipe.add("model.frontend.channels", list(size.channels))
    recipe.add("model.encoder.n_layers", size.n_layers[0])
    if size.convolution:
        recipe.add("model.encoder.convolution", size.convolution)
    if is_live:
        why = "text every 0.64 s, from 2.56 s of the past"
        recipe.add("model.encoder.streaming", dict(_LIVE), why)
    recipe.add("model.decoder.n_layers", size.n_layers[1])
    ctc_weight, why = 0.3, "the decoder learns from enough text"
    if not is_aligned:
        why = f"{corpus.seconds_per_character:.3f} s per character is little time for CTC"
    elif size.ctc_weight > ctc_weight:
        ctc_weight, why = size.ctc_weight, "CTC learns the alignment that a decoder needs hours for"
    recipe.add("model.ctc_weight", ctc_weight, why)
    ctc_leads = ctc_weight > 0.5
    why = "the decoder of a small corpus leaves words out"
    recipe.add(
        "decoding.ctc_weight",
        0.8 if ctc_leads else ctc_weight,
        why if ctc_leads else "as in training",
    )
    if ctc_leads:
        recipe.add("decoding.gamma", 1.5, why)
    recipe.reasons["decoding"] = "training adds chunk_seconds, by the lengths that it has seen"


def _add_training(
    recipe: Recipe, corpus: CorpusMeasures, size: Size, epochs: int, steps: int
) -> None:
    recipe.add("training.epochs", epochs, f"about {epochs * steps:,} steps for {_amount(corpus)}")
    if corpus.hours < 100 and corpus.longest >= 1.5 * corpus.shortest and epochs > 1:
        recipe.add(
            "training.curriculum",
            {"epochs": max(1, round(0.4 * epochs)), "share": 0.5},
            "the alignment is learned sooner on short utterances",
        )
    recipe.add("training.schedule.kind", "linear")
    recipe.add("training.schedule.lr", size.lr, size.source)
    warmup = max(1, min(size.warmup, epochs * steps // 10))
    recipe.add("training.schedule.warmup_steps", warmup)
    recipe.add("training.accumulate", size.accumulate)
    recipe.add(
        "training.average", min(size.average, epochs), "best epochs, whose mean is the model"
    )


def has_pinyin() -> bool:
    """Return whether lrt-asr[chinese] is installed, which knows how characters sound."""
    return find_spec("pypinyin") is not None


def _add_sounds(recipe: Recipe, n_layers: int, are_words: bool) -> None:
    """Add losses of initials and finals after a third of the layers, of syllables after two thirds.

    Where the utterances are single words, the head of syllables stays in the model.
    """
    first, second = _guessing_layer(n_layers), math.ceil(2 * n_layers / 3)
    why = "initials and finals of Mandarin; other languages: without these three"
    recipe.add("model.encoder.conditioning", {"layer": first}, why)
    if are_words and second < n_layers:
        why = "syllables, by which words that are not in training have fewer errors"
        recipe.add("model.encoder.sounds", {"layer": second}, why)
    else:
        recipe.add("training.intermediate", [{"layer": second, "weight": 0.7}], "syllables")
    recipe.add("training.shared_sounds", True, "rare characters learn from all that sound so")


def _guessing_layer(n_layers: int) -> int:
    """Return the layer, from 1, whose guesses go to the layers above it."""
    return math.ceil(n_layers / 3)


def _amount(corpus: CorpusMeasures) -> str:
    return (
        f"{corpus.hours:.2g} h of audio" if corpus.hours < 100 else f"{corpus.hours:.0f} h of audio"
    )
