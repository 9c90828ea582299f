"""Features to hypotheses: encode, see whether anything was said, then search by the chosen method.

Legend: B utterances, T frames, F frequency bins, S encoder steps, W hypotheses of an utterance,
U tokens, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from asr.decoding.beam_search import BeamSearch, Gone
from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.ctc_prefix import BLANK, CtcPrefixScorer
from asr.decoding.hypothesis import NO_SPEECH, Hypothesis
from asr.decoding.options import SearchConfig
from asr.decoding.rescoring import rescore
from asr.decoding.scorers import LmScorer, Models
from asr.errors import ConfigError
from asr.model.transformer import SpeechTransformer


class LanguageModel(Protocol):
    """What knows which texts are likely, whatever was heard."""

    def start(self, n_utterances: int, n_hypotheses: int, device: torch.device) -> LmScorer:
        """A scorer of W empty hypotheses of each of B utterances."""


@dataclass
class Encoded:
    """What the encoder made of a batch: memory (B, S, D), its mask, the CTC head's log P."""

    memory_BSD: Tensor
    keep_BS: Tensor
    logp_BSV: Tensor | None

    def to(self, device: torch.device) -> "Encoded":
        """The same on a device."""
        logp_BSV = None if self.logp_BSV is None else self.logp_BSV.to(device)
        return Encoded(self.memory_BSD.to(device), self.keep_BS.to(device), logp_BSV)

    def select(self, utterances: Tensor) -> "Encoded":
        """These utterances only."""
        logp_BSV = None if self.logp_BSV is None else self.logp_BSV[utterances]
        return Encoded(self.memory_BSD[utterances], self.keep_BS[utterances], logp_BSV)


def is_constant(wave_N: Tensor) -> bool:
    """Whether a wave is digital silence, at any level: nothing was said, whatever a model hears."""
    return not len(wave_N) or bool(wave_N.max() == wave_N.min())


@torch.inference_mode()
def encode(model: SpeechTransformer, feats_BTF: Tensor, frames_B: Tensor) -> Encoded:
    """The encoder's part of decoding, the same whatever the search."""
    memory_BSD, keep_BS = model.encode(feats_BTF, frames_B)
    logp_BSV = model.ctc_head(memory_BSD).log_softmax(-1) if model.ctc_head else None
    return Encoded(memory_BSD, keep_BS, logp_BSV)


def decode(
    model: SpeechTransformer, feats_BTF: Tensor, frames_B: Tensor, search: BeamSearch,
    lm: LanguageModel | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Encode a batch and search each utterance's text, of at most one token an encoder step.

    Raises ConfigError where the search needs a CTC head that the model has not.
    """
    return find_texts(model, encode(model, feats_BTF, frames_B), search, lm)


@torch.inference_mode()
def find_texts(
    model: SpeechTransformer, encoded: Encoded, search: BeamSearch,
    lm: LanguageModel | None = None, gone: Gone | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """The n best hypotheses of each encoded utterance; `NO_SPEECH` alone where none was heard.

    One that is `gone` before any hypothesis ended has `NO_SPEECH` too.
    """
    if search.config.needs_ctc and encoded.logp_BSV is None:
        raise ConfigError(
            f"search.method {search.config.method}, search.ctc_weight {search.config.ctc_weight:g}:"
            " this model has no CTC head: use method joint with ctc_weight 0"
        )
    results = [[NO_SPEECH] for _ in encoded.keep_BS]
    speech = _has_speech(encoded, search.config.speech_threshold).nonzero().squeeze(1)
    if len(speech):
        spoken = speech.tolist()
        left = (lambda k: gone(spoken[k])) if gone else None
        found = _search(model, encoded.select(speech), search, lm, left)
        for i, nbest in zip(spoken, found, strict=True):
            results[i] = nbest
    return results


def _has_speech(encoded: Encoded, threshold: float) -> Tensor:
    """(B,): whether the CTC head gives all tokens together `threshold` somewhere; else True."""
    if encoded.logp_BSV is None:
        return encoded.keep_BS.any(1)
    token_BS = 1 - encoded.logp_BSV[..., BLANK].exp()
    return ((token_BS >= threshold) & encoded.keep_BS).any(1)


def _search(
    model: SpeechTransformer, encoded: Encoded, search: BeamSearch, lm: LanguageModel | None,
    gone: Gone | None,
) -> list[list[Hypothesis]]:  # fmt: skip
    config, steps_B = search.config, encoded.keep_BS.sum(1)
    if config.method == "ctc_greedy":
        assert encoded.logp_BSV is not None
        texts = greedy_texts(encoded.logp_BSV, steps_B, config, search.word_count_V)
        return _certain([[h] for h in texts], [[h] for h in texts], config)
    ctc = scorer = None
    if config.needs_ctc:
        assert encoded.logp_BSV is not None
        ctc = CtcPrefixScorer(encoded.logp_BSV, steps_B, config.beam_size)
    if lm and config.lm_weight:
        scorer = lm.start(len(steps_B), config.beam_size, steps_B.device)
    state = (
        None
        if config.method == "ctc_beam"
        else model.decoder.start(encoded.memory_BSD, encoded.keep_BS)
    )
    if config.method == "joint":
        found = search(Models(model.decoder.step, state, ctc, scorer), steps_B, gone)
        return _certain(found, found, config)
    first = BeamSearch(config.first_pass, search.word_count_V)
    found = first(Models(None, None, ctc, scorer), steps_B, gone)
    if config.method == "ctc_beam":
        return _certain(found, [nbest[: config.n_best] for nbest in found], config)
    judged = rescore(model.decoder.step, state, found, config, steps_B.device)
    return _certain(found, judged, config)


def _certain(
    found: list[list[Hypothesis]], results: list[list[Hypothesis]], config: SearchConfig
) -> list[list[Hypothesis]]:
    """The results, but `NO_SPEECH` where what was found best is less sure than is asked for."""
    return [
        nbest if geometric_mean(first[0].confidences) >= config.confidence_threshold
        else [NO_SPEECH]
        for first, nbest in zip(found, results, strict=True)
    ]  # fmt: skip


def geometric_mean(values: Sequence[float]) -> float:
    """Of probabilities; 1 of none."""
    return math.exp(sum(math.log(max(v, 1e-30)) for v in values) / max(1, len(values)))
