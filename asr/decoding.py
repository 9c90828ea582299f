"""Features to hypotheses: encode, see whether anything was said, then search by the chosen method.

Legend: B utterances, T frames, F frequency bins, S encoder steps, W hypotheses of an utterance,
U tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss, pad
from torch.nn.utils.rnn import pad_sequence

from asr.ctc import BLANK, CtcPrefixScorer
from asr.errors import ConfigError
from asr.model.transformer import SpeechTransformer
from asr.score import NO_SPEECH, Hypothesis, SearchConfig
from asr.scorers import LmScorer, Models
from asr.search import BeamSearch, Gone
from asr.tokenizer import EOS, PAD, SOS, UNK


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


def greedy_texts(
    logp_BSV: Tensor, steps_B: Tensor, config: SearchConfig, word_count_V: Tensor
) -> list[Hypothesis]:
    """The text of each utterance's likeliest path; its log P is that of all paths to the text.

    A token's confidence is its highest probability in the steps where the path has it.
    """
    silent = torch.tensor((SOS, EOS, UNK), device=logp_BSV.device)
    best_BS = logp_BSV.index_fill(2, silent, -torch.inf).argmax(-1)
    starts_BS = (best_BS != BLANK) & (best_BS != pad(best_BS, (1, 0), value=BLANK)[:, :-1])
    texts, peaks = [], []
    for logp_SV, best_S, starts_S, n in zip(
        logp_BSV, best_BS, starts_BS, steps_B.tolist(), strict=True
    ):
        path_S, spans_S = best_S[:n], starts_S[:n].cumsum(0)
        tokens_U = path_S[starts_S[:n]]
        p_S = logp_SV[:n].gather(1, path_S[:, None]).squeeze(1).exp()
        p_S = p_S.masked_fill(path_S == BLANK, 0.0)
        peaks.append(p_S.new_zeros(len(tokens_U) + 1).scatter_reduce(0, spans_S, p_S, "amax")[1:])
        texts.append(tokens_U)
    lengths_B = torch.tensor([len(t) for t in texts], device=steps_B.device)
    labels_BU = pad_sequence(texts, batch_first=True)
    log_p_B = -ctc_loss(
        logp_BSV.double().transpose(0, 1), labels_BU, steps_B, lengths_B, BLANK, "none"
    )
    length_B = config.gamma * torch.stack([word_count_V[t].sum() for t in texts]).sqrt()
    columns = zip(texts, log_p_B.tolist(), length_B.tolist(), peaks, strict=True)
    return [
        Hypothesis(
            tuple(tokens.tolist()), config.alpha * log_p + length, None, log_p, "eos",
            length_score=length, confidences=tuple(peak.tolist()),
        )
        for tokens, log_p, length, peak in columns
    ]  # fmt: skip


def rescore(
    step: Callable[[Tensor, Any], Tensor], state: Any, found: list[list[Hypothesis]],
    config: SearchConfig, device: torch.device,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Judge the hypotheses of a first pass by the decoder too; the n best of each, best first.

    `state` is at its start. A token's confidence is the decoder's and the first pass's, mixed as
    their scores are.
    """
    logp_BWU = _follow(step, state, found, device)
    att, ctc, lm = config.weights
    results = []
    for nbest, rows in zip(found, logp_BWU.tolist(), strict=True):
        judged = []
        for h, row in zip(nbest, rows, strict=False):
            logp_U, log_prob = row[: len(h.tokens)], sum(row[: len(h.tokens) + 1])
            parts = att * log_prob + ctc * (h.ctc_log_prob or 0) + lm * (h.lm_log_prob or 0)
            mixed = torch.tensor(logp_U).exp() ** (1 - config.ctc_weight)
            mixed *= torch.tensor(h.confidences) ** config.ctc_weight
            score, confidences = parts + h.length_score, tuple(mixed.tolist())
            judged.append(replace(h, score=score, log_prob=log_prob, confidences=confidences))
        results.append(sorted(judged, key=lambda h: -h.score)[: config.n_best])
    return results


def _follow(
    step: Callable[[Tensor, Any], Tensor], state: Any, found: list[list[Hypothesis]],
    device: torch.device,
) -> Tensor:  # fmt: skip
    """(B, W, U): the log-probability of each token of each hypothesis and, after them, of EOS."""
    width = max(map(len, found))
    texts = [h.tokens for nbest in found for h in [*nbest, *[nbest[0]] * (width - len(nbest))]]
    tokens = [torch.tensor([SOS, *text, EOS], device=device) for text in texts]
    tokens_BWU = pad_sequence(tokens, batch_first=True, padding_value=PAD).unflatten(0, (-1, width))
    logp = [
        step(tokens_BWU[..., u], state).gather(2, tokens_BWU[..., u + 1, None]).squeeze(2)
        for u in range(tokens_BWU.shape[-1] - 1)
    ]
    return torch.stack(logp, -1)
