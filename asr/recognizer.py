"""Wave to text, on one page. The command line, the service and the tests all go through it.

Legend: N samples, B utterances, T frames, F frequency bins, S encoder steps.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio import load_audio, split_at_silence
from asr.bundle import Bundle
from asr.config import Config
from asr.ctc import CtcPrefixScorer
from asr.errors import ConfigError
from asr.model.inference import for_inference
from asr.model.transformer import SpeechTransformer
from asr.search import BeamSearch, Hypothesis, SearchConfig
from asr.tokenizer import normalize_text

# Longer recordings are cut at silences, so that memory does not grow with them; so many seconds
# share a batch.
_PIECE_SECONDS = 20.0
_BATCH_SECONDS = 160.0

# A recording with fewer frames than one encoder step needs says nothing.
_NOTHING = Hypothesis((), 0.0, 0.0, None, "eos")


@dataclass(frozen=True)
class Candidate:
    """One of the texts that a recording may hold; scores as in `asr.search.Hypothesis`."""

    text: str
    score: float
    log_prob: float
    ctc_log_prob: float | None
    ended: Literal["eos", "length", "no_speech"]


@dataclass(frozen=True)
class Transcript:
    """What was said: the best text and its score, seconds of audio, and the n best.

    A recording of over 20 s is recognised in pieces; its score is their sum, and `nbest` is empty.
    """

    text: str
    score: float
    duration: float
    nbest: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Recognizer:
    """A bundle ready to transcribe on one device."""

    def __init__(self, bundle: Bundle, device: str = "auto", int8: bool = False) -> None:
        self.device = choose_device(device)
        self.config: Config = bundle.config
        self.tokenizer = bundle.tokenizer
        self.features = bundle.features.eval()
        self.model = bundle.model.eval().to(self.device)
        self.model.decoder = for_inference(self.model.decoder, int8 and self.device.type == "cpu")
        self.sample_rate = bundle.config.features.sample_rate
        self._word_count_V = torch.tensor(
            self.tokenizer.word_counts(), dtype=torch.float32, device=self.device
        )

    def transcribe(
        self,
        source: str | Path | BinaryIO,
        search: SearchConfig | None = None,
        max_seconds: float | None = None,
    ) -> Transcript:
        """The text of a recording: a path or an open binary file; wav, flac, ogg or mp3.

        Raises AudioError where it cannot be read as speech.
        """
        audio = load_audio(source, self.sample_rate, max_seconds=max_seconds)
        ((text, pieces),) = self.texts([audio.wave_N], search)
        return Transcript(
            text=text,
            score=sum(nbest[0].score for nbest in pieces),
            duration=audio.seconds,
            nbest=tuple(self._candidate(h) for h in pieces[0]) if len(pieces) == 1 else (),
            warnings=audio.warnings,
        )

    def texts(
        self, waves: Sequence[Tensor], search: SearchConfig | None = None
    ) -> list[tuple[str, list[list[Hypothesis]]]]:
        """The text of each wave (N,) of any length, and the n best of the pieces it was cut to."""
        cuts = [split_at_silence(wave, self.sample_rate, _PIECE_SECONDS) for wave in waves]
        pieces = [
            w[start:end] for w, ranges in zip(waves, cuts, strict=True) for start, end in ranges
        ]
        results = iter(self.recognize(pieces, search))
        heard = [[next(results) for _ in ranges] for ranges in cuts]
        return [(self._text(nbests), nbests) for nbests in heard]

    def _text(self, pieces: list[list[Hypothesis]]) -> str:
        return normalize_text(" ".join(self.tokenizer.decode(n[0].tokens) for n in pieces))

    @torch.inference_mode()
    def recognize(
        self, waves: Sequence[Tensor], search: SearchConfig | None = None
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of each wave (N,) as a whole; one for those that are too short.

        Waves of like length share batches; a result does not depend on its batch-mates.
        """
        results: list[list[Hypothesis]] = [[_NOTHING] for _ in waves]
        feats = {i: self.features(wave) for i, wave in enumerate(waves)}
        steps = self.config.model.frontend.steps
        spoken = sorted((i for i in feats if steps(len(feats[i]))), key=lambda i: len(feats[i]))
        hop_ms = self.config.features.hop_ms
        while spoken:
            longest_ms = len(feats[spoken[-1]]) * hop_ms
            size = max(1, int(_BATCH_SECONDS * 1000 / longest_ms))
            spoken, batch = spoken[:-size], spoken[-size:]
            found = self._search([feats[i] for i in batch], search or self.config.search)
            for i, nbest in zip(batch, found, strict=True):
                results[i] = nbest
        return results

    def _search(self, feats: list[Tensor], search: SearchConfig) -> list[list[Hypothesis]]:
        frames_B = torch.tensor([len(f) for f in feats], device=self.device)
        feats_BTF = pad_sequence(feats, batch_first=True).to(self.device)
        if search.ctc_weight and not self.model.ctc_head:
            raise ConfigError("search.ctc_weight: this model has no CTC head, set it to 0")
        return decode(self.model, feats_BTF, frames_B, BeamSearch(search, self._word_count_V))

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        h = hypothesis
        text = self.tokenizer.decode(h.tokens)
        ended = "no_speech" if h is _NOTHING else h.ended
        return Candidate(text, h.score, h.log_prob, h.ctc_log_prob, ended)


def decode(
    model: SpeechTransformer, feats_BTF: Tensor, frames_B: Tensor, search: BeamSearch
) -> list[list[Hypothesis]]:
    """Encode a batch and search each utterance's text, of at most one token an encoder step."""
    memory_BSD, keep_BS = model.encode(feats_BTF, frames_B)
    steps_B = keep_BS.sum(1)
    ctc = None
    if search.config.ctc_weight and model.ctc_head:
        logp_BSV = model.ctc_head(memory_BSD).log_softmax(-1)
        ctc = CtcPrefixScorer(logp_BSV, steps_B, search.config.beam_size)
    state = model.decoder.start(memory_BSD, keep_BS)
    return search(model.decoder.step, state, steps_B, ctc)


def choose_device(name: str) -> torch.device:
    """The device of a name: auto, cpu, cuda or cuda:N. Raises ConfigError where it is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: write auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: this machine has no such GPU, use cpu or auto")
    return device
