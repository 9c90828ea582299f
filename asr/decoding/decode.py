"""Decode features into hypotheses: encode, detect speech, and search by the chosen method.

Legend: B utterances, T frames, F frequency bins, S encoder steps, W hypotheses of an utterance,
V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_beam import beam_texts
from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.ctc_prefix import BLANK, CtcPrefixScorer
from asr.decoding.ctc_sounds import Homophones
from asr.decoding.hotword_scorer import Hotwords, HotwordScorer
from asr.decoding.hypothesis import NO_SPEECH, UNCERTAIN, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.prefix_beam import TokenScorer
from asr.decoding.request import Request
from asr.decoding.rescoring import rescore
from asr.decoding.scorers import JointScorer, LmScorer, State
from asr.decoding.speculation import is_sure, search_one
from asr.errors import ConfigError
from asr.model.inference.decoder import FastDecoder
from asr.model.inference.tree import PrefixTree
from asr.model.transformer import SpeechTransformer
from asr.tokenizer import Tokenizer

_MOST_LISTS = 4  # lists of hotwords that are kept as tokens


class LanguageModel(Protocol):
    """Scores texts without audio."""

    def start(self, n_utterances: int, n_hypotheses: int, device: torch.device) -> LmScorer:
        """Return a scorer of W empty hypotheses of each of B utterances."""

    def token_scorer(self) -> TokenScorer | None:
        """Return a scorer of one token at a time; None where that is slow, as with a network."""


@dataclass
class Encoded:
    """A batch of encoder outputs: memory (B, S, D), its mask, the CTC head's log P (B, S, V).

    `requests`, if given, are the utterances' requests, which may cancel their decoding.
    """

    memory_BSD: Tensor
    mask_BS: Tensor
    logp_BSV: Tensor | None
    requests: tuple[Request, ...] | None = None

    def to(self, device: torch.device) -> "Encoded":
        """Return the batch on a device."""
        return self._map(lambda tensor: tensor.to(device), self.requests)

    def select(self, indices: Tensor) -> "Encoded":
        """Return the batch of these utterances only, in their order."""
        if len(indices) == len(self.mask_BS):
            return self
        requests = self.requests and tuple(self.requests[i] for i in indices.tolist())
        return self._map(lambda tensor: tensor[indices], requests)

    def _map(
        self, change: Callable[[Tensor], Tensor], requests: tuple[Request, ...] | None
    ) -> "Encoded":
        logp_BSV = None if self.logp_BSV is None else change(self.logp_BSV)
        return Encoded(change(self.memory_BSD), change(self.mask_BS), logp_BSV, requests)


class SpeechDecoder:
    """A network and its vocabulary: `encode` features, then `decode` them by any options."""

    def __init__(self, model: SpeechTransformer, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._word_counts = torch.tensor(tokenizer.word_counts(), dtype=torch.float32)
        self.speculates = True  # benchmarks and tests set False to compare
        # One cache for all threads: in the service several of them ask for hotwords.
        self._hotwords = lru_cache(_MOST_LISTS)(partial(Hotwords.of, tokenizer=tokenizer))

    @torch.inference_mode()
    def encode(
        self, feats_BTF: Tensor, frames_B: Tensor, requests: tuple[Request, ...] | None = None
    ) -> Encoded:
        """Encode a padded batch of features; padding is ignored."""
        return self._encoded(*self.model.encode(feats_BTF, frames_B), requests)

    @torch.inference_mode()
    def encode_steps(self, x_SD: Tensor) -> Encoded:
        """Encode one utterance as a whole, from all steps (S, D) of the front end's output."""
        mask_1S = torch.ones(1, len(x_SD), dtype=torch.bool, device=x_SD.device)
        return self._encoded(self.model.encoder(x_SD[None], mask_1S), mask_1S)

    def _encoded(
        self, memory_BSD: Tensor, mask_BS: Tensor, requests: tuple[Request, ...] | None = None
    ) -> Encoded:
        has_ctc = self.model.ctc_head is not None
        logp_BSV = self.model.ctc_logits(memory_BSD).log_softmax(-1) if has_ctc else None
        return Encoded(memory_BSD, mask_BS, logp_BSV, requests)

    @torch.inference_mode()
    def decode(
        self, encoded: Encoded, options: DecodingOptions, lm: LanguageModel | None = None
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each utterance; `NO_SPEECH` alone where there is none.

        `UNCERTAIN` stands in front of hypotheses that are too uncertain to be a text (see the
        options). A text has at most one token per encoder step. An utterance that is cancelled
        before any hypothesis ended has `NO_SPEECH` too. Raises ConfigError as `check` does.
        """
        self.check(options)
        results = [[NO_SPEECH] for _ in encoded.mask_BS]
        spoken = _has_speech(encoded, options.speech_threshold).nonzero().squeeze(1)
        if len(spoken):
            found = self._search(encoded.select(spoken), options, lm)
            for i, nbest in zip(spoken.tolist(), found, strict=True):
                results[i] = [replace(h, text=self.tokenizer.decode(h.tokens)) for h in nbest]
        return results

    def check(self, options: DecodingOptions) -> None:
        """Raise ConfigError where this model cannot decode with these options.

        All methods need a CTC head, but for `joint` with `ctc_weight` 0. `ctc_sounds` also needs
        tokens of one character, and pypinyin.
        """
        if options.needs_ctc and self.model.ctc_head is None:
            raise ConfigError(
                f"decoding.method {options.method}, decoding.ctc_weight {options.ctc_weight:g}: "
                "this model has no CTC head: use method joint with ctc_weight 0"
            )
        if options.method == "ctc_sounds":
            _ = self._homophones

    @cached_property
    def _homophones(self) -> Homophones:
        return Homophones(self.tokenizer)

    def hotwords(self, options: DecodingOptions) -> Hotwords:
        """Return the hotwords of options as tokens; the latest lists are kept."""
        if not options.hotwords:
            return Hotwords()
        return self._hotwords(options.hotwords, options.hotword_weight)

    def _search(
        self, encoded: Encoded, options: DecodingOptions, lm: LanguageModel | None
    ) -> list[list[Hypothesis]]:
        if options.is_greedy and not self.hotwords(options).trie:
            assert encoded.logp_BSV is not None
            steps_B = encoded.mask_BS.sum(1)
            num_words_V = self._word_counts.to(steps_B.device)
            search = greedy_texts if options.method == "ctc_greedy" else self._homophones.texts
            texts = search(encoded.logp_BSV, steps_B, options, num_words_V)
            found = [[text] for text in texts]
        elif options.method == "joint":
            found = self._joint(encoded, options, lm)
        else:
            found = self._first_pass(encoded, options.first_pass, lm)
            if options.method == "ctc_sounds":  # its threshold is for sounds, not for tokens
                options = options.model_copy(update={"confidence_threshold": None})
        if options.method == "rescore":
            found = self.rescored(encoded, found, options)
        return reject_uncertain(found, options)

    def _joint(
        self, encoded: Encoded, options: DecodingOptions, lm: LanguageModel | None
    ) -> list[list[Hypothesis]]:
        """Search by the decoder and the CTC head together."""
        may_speculate = self._may_speculate(encoded, options, lm)
        if may_speculate and (found := self._speculate(encoded, options)):
            return found
        decoder = self.model.decoder
        state = decoder.start(encoded.memory_BSD, encoded.mask_BS)
        return self._beam_search(encoded, options, lm, decoder.step, state)

    def _first_pass(
        self, encoded: Encoded, options: DecodingOptions, lm: LanguageModel | None
    ) -> list[list[Hypothesis]]:
        """Search by the CTC head and a language model, without the decoder.

        Where the language model is a network, the search is token by token: the network then scores
        all hypotheses at once.
        """
        assert encoded.logp_BSV is not None
        lm = lm if options.lm_weight else None
        scorer = lm.token_scorer() if lm else None
        if lm and not scorer:
            return self._beam_search(encoded, options, lm)
        steps_B, words_V = encoded.mask_BS.sum(1), self._word_counts
        return beam_texts(
            encoded.logp_BSV, steps_B, options, words_V, scorer, encoded.requests,
            self.hotwords(options).trie,
        )  # fmt: skip

    def _beam_search(
        self,
        encoded: Encoded,
        options: DecodingOptions,
        lm: LanguageModel | None,
        step: Callable[[Tensor, Any], Tensor] | None = None,
        state: State | None = None,
    ) -> list[list[Hypothesis]]:
        """Search token by token, all utterances at once, by the decoder's `step` if given."""
        steps_B = encoded.mask_BS.sum(1)
        ctc, scorer = None, _start_lm(lm, options, steps_B, options.beam_size)
        if options.needs_ctc:
            assert encoded.logp_BSV is not None
            ctc = CtcPrefixScorer(encoded.logp_BSV, steps_B, options.beam_size)
        words_V, hotwords = self._word_counts.to(steps_B.device), None
        if trie := self.hotwords(options).trie:
            like_BW = steps_B[:, None].expand(-1, options.beam_size)
            hotwords = HotwordScorer(trie, len(words_V), like_BW)
        joint = JointScorer(step, state, ctc, scorer, hotwords)
        return BeamSearch(options, words_V)(joint, steps_B, encoded.requests)

    @torch.inference_mode()
    def rescored(
        self, encoded: Encoded, found: list[list[Hypothesis]], options: DecodingOptions
    ) -> list[list[Hypothesis]]:
        """Return the n best of the texts that CTC found, by the attention decoder."""

        def log_probs(texts_BWU: Tensor, utterances: Tensor) -> Tensor:
            part = encoded.select(utterances)
            return self.model.decoder.log_probs(texts_BWU, part.memory_BSD, part.mask_BS)

        return rescore(log_probs, found, options, encoded.mask_BS.device)

    def _may_speculate(
        self, encoded: Encoded, options: DecodingOptions, lm: LanguageModel | None
    ) -> bool:
        """Tell whether speculation finds the same sooner (see `asr.decoding.speculation`).

        Speculation drops hypotheses that score too little, and relies on scores that only fall.
        Hotwords raise scores. With a language model it gains nothing (0.84 times as fast), because
        the draft is made without one.
        """
        is_one = len(encoded.mask_BS) == options.n_best == 1 and options.needs_ctc
        if self.hotwords(options).trie or (lm and options.lm_weight):
            return False
        return self.speculates and is_one and isinstance(self.model.decoder, FastDecoder)

    def _speculate(
        self, encoded: Encoded, options: DecodingOptions
    ) -> list[list[Hypothesis]] | None:
        """Return the best hypothesis of one utterance, or None where a whole beam is as fast."""
        decoder, logp_BSV, steps_B = self.model.decoder, encoded.logp_BSV, encoded.mask_BS.sum(1)
        assert isinstance(decoder, FastDecoder) and logp_BSV is not None
        num_words_V = self._word_counts.to(steps_B.device)
        (draft,) = greedy_texts(logp_BSV, steps_B, options, num_words_V)
        if not is_sure(draft):
            return None
        ctc = partial(CtcPrefixScorer, logp_BSV, steps_B, 1)
        tree = PrefixTree(decoder, encoded.memory_BSD, encoded.mask_BS)
        search = BeamSearch(options, num_words_V)
        return search_one(search, tree, draft, ctc, steps_B, encoded.requests)


def _start_lm(
    lm: LanguageModel | None, options: DecodingOptions, steps_B: Tensor, n_hypotheses: int
) -> LmScorer | None:
    """Return the language model's scorer of empty hypotheses, if one is in use."""
    if lm and options.lm_weight:
        return lm.start(len(steps_B), n_hypotheses, steps_B.device)
    return None


def is_constant(wave_N: Tensor) -> bool:
    """Tell whether a waveform is digital silence, at any level, which holds no speech."""
    return not len(wave_N) or bool(wave_N.max() == wave_N.min())


def _has_speech(encoded: Encoded, threshold: float) -> Tensor:
    """Tell which utterances (B,) have a step where all tokens together reach `threshold`.

    The probabilities are the CTC head's. Without one, every utterance with a step has speech.
    """
    if encoded.logp_BSV is None:
        return encoded.mask_BS.any(1)
    token_BS = 1 - encoded.logp_BSV[..., BLANK].exp()
    return ((token_BS >= threshold) & encoded.mask_BS).any(1)


def reject_uncertain(
    found: list[list[Hypothesis]], options: DecodingOptions
) -> list[list[Hypothesis]]:
    """Return the n best of each utterance, with `UNCERTAIN` in front if the best one is that."""
    least = options.confidence_threshold or 0.0
    best = [nbest[: options.n_best] for nbest in found]
    return [n if n[0].confidence >= least else [UNCERTAIN, *n] for n in best]
