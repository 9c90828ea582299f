"""Wave to text, on one page. The command line, the service and the tests all go through it.

Legend: N samples, B utterances, T frames, F frequency bins, S encoder steps.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import BinaryIO

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio.recording import Recording
from asr.audio.segmentation import split_at_silence
from asr.bundle import Bundle
from asr.config import Config
from asr.decoding.beam_search import BeamSearch, Gone
from asr.decoding.ctc_alignment import align
from asr.decoding.ctc_prefix import steps_needed
from asr.decoding.decode import Encoded, LanguageModel, encode, find_texts, is_constant
from asr.decoding.hypothesis import NO_SPEECH, Hypothesis
from asr.decoding.options import SearchConfig
from asr.errors import AudioError
from asr.lm.ngram import NGram
from asr.lm.transformer import LanguageTransformer
from asr.model.inference.decoder import for_inference
from asr.model.inference.frontend import TiledFrontend
from asr.model.inference.sparse import settle
from asr.runtime.devices import choose_device
from asr.tokenizer import normalize_text
from asr.transcription.chunks import Piece, Reading
from asr.transcription.timestamps import _FRAMES_PER_STEP
from asr.transcription.transcript import Candidate, Segment, Token, Transcript

# Longer recordings are cut at silences, so that memory does not grow with them; so many seconds
# share a batch, and so many pieces of one recording or of several are read before they are
# sorted into batches.
_PIECE_SECONDS = 20.0


_BATCH_SECONDS = 80.0


_GROUP_SECONDS, _GROUP_PIECES = 4 * _BATCH_SECONDS, 64


Source = str | Path | BinaryIO


# The n best, and where the best one's tokens start and end in encoder steps, if that is known.
_Found = tuple[list[Hypothesis], list[list[int]] | None]


class Recognizer:
    """A bundle ready to transcribe on one device."""

    def __init__(self, bundle: Bundle, device: str = "auto", int8: bool = False) -> None:
        self.device = choose_device(device)
        self.config: Config = bundle.config
        self.tokenizer = bundle.tokenizer
        self.features = bundle.features.eval()
        self.model = bundle.model.eval().to(self.device)
        settle(self.model.decoder, may_be_sparse=False)  # its fast form joins dense maps
        settle(self.model)
        on_cpu = self.device.type == "cpu"
        self.model.decoder = for_inference(self.model.decoder, int8 and on_cpu)
        if on_cpu:
            self.model.frontend = TiledFrontend(self.model.frontend)
        self.sample_rate = bundle.config.features.sample_rate
        self._lms: dict[Path, LanguageModel] = {}
        self._word_count_V = torch.tensor(
            self.tokenizer.word_counts(), dtype=torch.float32, device=self.device
        )

    def transcribe(
        self, source: Source, search: SearchConfig | None = None, max_seconds: float | None = None
    ) -> Transcript:
        """The text of a recording: a path or an open binary file; wav, flac, ogg or mp3.

        Memory does not grow with its length. Raises AudioError where it cannot be read as speech.
        """
        if max_seconds is not None:
            Recording(source, self.sample_rate, max_seconds=max_seconds).check_length()
        (result,) = self.transcribe_all([source], search)
        if isinstance(result, AudioError):
            raise result
        return result

    def transcribe_all(
        self,
        sources: Iterable[Source],
        search: SearchConfig | None = None,
        on_progress: Callable[[float], object] = lambda _: None,
    ) -> Iterator[Transcript | AudioError]:
        """The transcripts of recordings in their order, or the error of one that cannot be read.

        Short ones share batches, long ones are decoded as they are read. `on_progress` is told how
        many recordings are done, the read part of the last one included.
        """
        search = search or self.config.search
        readings: deque[Reading] = deque()
        group: list[Piece] = []
        for number, source in enumerate(sources):
            reading = self.reading(Recording(source, self.sample_rate), search)
            readings.append(reading)
            for piece in reading.pieces():
                group.append(piece)
                seconds = sum(p.end - p.start for p in group)
                if seconds >= _GROUP_SECONDS or len(group) == _GROUP_PIECES:
                    self.hear(group, search)
                    group.clear()
                    on_progress(number + reading.recording.fraction)
                    while readings[0].ended:
                        yield readings.popleft().result()
        self.hear(group, search)
        yield from (reading.result() for reading in readings)

    def hear(self, group: Sequence[Piece], search: SearchConfig, gone: Gone | None = None) -> None:
        """Recognise pieces and add the segments to their recordings, in order.

        `gone` is asked in each decoding step whether the piece of an index has lost its listener;
        it is given up then, and its segment means nothing.
        """
        found = self._recognize([piece.wave_N for piece in group], search, True, gone)
        for (reading, start, end, _), (nbest, spans) in zip(group, found, strict=True):
            best = self._candidate(nbest[0])
            tokens = None if spans is None else self._tokens(nbest[0], spans, start, end)
            reading.nbest = tuple(self._candidate(h) for h in nbest)
            reading.segments.append(
                Segment(start, end, best.text, best.score, best.ended, tokens, best.confidences)
            )

    def texts(
        self, waves: Sequence[Tensor], search: SearchConfig | None = None
    ) -> list[tuple[str, list[list[Hypothesis]]]]:
        """The text of each wave (N,) of any length, and the n best of the pieces it was cut to."""
        rate = self.sample_rate
        cut = [list(split_at_silence([w.numpy()], rate, self._longest_seconds)) for w in waves]
        pieces = [torch.from_numpy(piece) for pieces in cut for piece in pieces]
        results = iter(self.recognize(pieces, search))
        heard = [[next(results) for _ in pieces] for pieces in cut]
        return [(self._text(nbests), nbests) for nbests in heard]

    def reading(self, recording: Recording, search: SearchConfig | None = None) -> Reading:
        """A recording to be heard piece by piece."""
        search = search or self.config.search
        wanted = search.piece_seconds or _PIECE_SECONDS
        return Reading(recording, min(self._longest_seconds, wanted))

    @property
    def _longest_seconds(self) -> float:
        """The longest piece that the model can take, or should."""
        steps = self.config.model.encoder.longest
        if steps is None:
            return _PIECE_SECONDS
        return min(_PIECE_SECONDS, steps * self._step_seconds)

    @property
    def _step_seconds(self) -> float:
        """An encoder step's part of the audio."""
        features = self.config.features
        return _FRAMES_PER_STEP * features.hop_length / features.sample_rate

    def _text(self, pieces: list[list[Hypothesis]]) -> str:
        return normalize_text(" ".join(self.tokenizer.decode(n[0].tokens) for n in pieces))

    def recognize(
        self, waves: Sequence[Tensor], search: SearchConfig | None = None
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of each wave (N,) as a whole; one for those that are too short.

        Waves of like length share batches; a result does not depend on its batch-mates.
        """
        found = self._recognize(waves, search or self.config.search, timed=False)
        return [nbest for nbest, _ in found]

    @torch.inference_mode()
    def _recognize(
        self, waves: Sequence[Tensor], search: SearchConfig, timed: bool, gone: Gone | None = None
    ) -> list[_Found]:
        results: list[_Found] = [([NO_SPEECH], None) for _ in waves]
        feats = {i: self.features(w) for i, w in enumerate(waves) if not is_constant(w)}
        steps = self.config.model.frontend.steps
        spoken = sorted((i for i in feats if steps(len(feats[i]))), key=lambda i: len(feats[i]))
        hop_ms = self.config.features.hop_ms
        while spoken:
            longest_ms = len(feats[spoken[-1]]) * hop_ms
            size = max(1, int(_BATCH_SECONDS * 1000 / longest_ms))
            spoken, batch = spoken[:-size], spoken[-size:]
            left = (lambda k, batch=batch: gone(batch[k])) if gone else None
            found = self._search([feats[i] for i in batch], search, timed, left)
            for i, result in zip(batch, found, strict=True):
                results[i] = result
        return results

    def _search(
        self, feats: list[Tensor], search: SearchConfig, timed: bool, gone: Gone | None
    ) -> list[_Found]:
        frames_B = torch.tensor([len(f) for f in feats], device=self.device)
        feats_BTF = pad_sequence(feats, batch_first=True).to(self.device)
        encoded = encode(self.model, feats_BTF, frames_B)
        lm = self.language_model(search)
        nbests = find_texts(self.model, encoded, self.beam_search(search), lm, gone)
        if not timed or encoded.logp_BSV is None:
            return [(nbest, None) for nbest in nbests]
        return list(zip(nbests, self._spans(encoded, nbests), strict=True))

    def _spans(
        self, encoded: Encoded, nbests: list[list[Hypothesis]]
    ) -> list[list[list[int]] | None]:
        """Where the tokens of each best text start and end, in encoder steps; None if unknown."""
        assert encoded.logp_BSV is not None
        best = [torch.tensor(nbest[0].tokens, dtype=torch.long) for nbest in nbests]
        labels_BU = pad_sequence(best, batch_first=True).to(self.device)
        lengths_B = torch.tensor([len(b) for b in best]).to(self.device)
        steps_B = encoded.keep_BS.sum(1)
        spans_BU2 = align(encoded.logp_BSV, steps_B, labels_BU, lengths_B).tolist()
        fits_B = (steps_needed(labels_BU, lengths_B) <= steps_B).tolist()
        return [
            spans[: len(tokens)] if fits else None
            for tokens, spans, fits in zip(best, spans_BU2, fits_B, strict=True)
        ]

    def _tokens(
        self, hypothesis: Hypothesis, spans: list[list[int]], start: float, end: float
    ) -> tuple[Token, ...]:
        """The tokens of a piece from `start` to `end`, in seconds of the recording.

        CTC marks where a token begins and is blank for the rest of it, so a token lasts until the
        next begins, but no longer than is usual in the piece: what follows then is a pause.
        """
        if not spans:
            return ()
        step = self._step_seconds
        firsts = [first for first, _ in spans]
        usual = median(b - a for a, b in pairwise(firsts)) if len(firsts) > 1 else 0
        ends = [
            min(max(last, first + usual), following)
            for (first, last), following in zip(spans, [*firsts[1:], inf], strict=True)
        ]
        texts = self.tokenizer.spelt(hypothesis.tokens)
        return tuple(
            Token(text, min(start + first * step, end), min(start + last * step, end))
            for text, first, last in zip(texts, firsts, ends, strict=True)
        )

    def beam_search(self, search: SearchConfig) -> BeamSearch:
        """A search over this model's tokens."""
        return BeamSearch(search, self._word_count_V)

    def language_model(self, search: SearchConfig) -> LanguageModel | None:
        """The language model that a search asks for, read once; None where it has no weight.

        Raises BundleError where it cannot be read or is of other tokens.
        """
        if search.lm is None or not search.lm_weight:
            return None
        if search.lm not in self._lms:
            if search.lm.is_dir():
                model = LanguageTransformer.load(search.lm, self.tokenizer).to(self.device)
                settle(model)
                self._lms[search.lm] = model
            else:
                self._lms[search.lm] = NGram.load(search.lm, self.tokenizer)
        return self._lms[search.lm]

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        values = dict(vars(hypothesis))
        return Candidate(text=self.tokenizer.decode(values.pop("tokens")), **values)
