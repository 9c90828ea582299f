"""Text of a waveform while it arrives: encoder chunks, CTC along with them, endpoints, final text.

A segment begins like an utterance: an empty left context, a new search. So its text does not depend
on what was said before, and nothing grows with the stream. Where the decoder has a part in the
final text, the encoder sees the segment once more, as a whole: the text is that of a recording.
Legend: B sessions, N samples, T frames, F frequency bins, C steps of a chunk, S steps of a segment,
D d_model, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from asr.audio.feature_stream import FeatureStream
from asr.audio.recording import check_sample_type
from asr.decoding.ctc_greedy import GreedyPath
from asr.decoding.decode import Encoded, is_constant
from asr.decoding.endpoint import Endpoint, quiet_steps
from asr.decoding.hypothesis import NO_SPEECH, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.errors import AudioError, ConfigError
from asr.model.frontend import FRAMES_PER_STEP
from asr.model.streaming import EncoderState
from asr.runtime.load import adapt
from asr.transcription.timestamps import align_tokens
from asr.transcription.transcript import StreamResult

if TYPE_CHECKING:
    from asr.transcription.recognizer import Recognizer


def stream(
    recognizer: "Recognizer",
    blocks: Iterable[np.ndarray],
    options: DecodingOptions | None,
    endpoint: Endpoint | None,
    chunk: int | None,
) -> Iterator[StreamResult]:
    """Return the results of one session (see `Recognizer.stream`)."""
    session = Session(recognizer, options, endpoint, chunk)

    def results() -> Iterator[StreamResult]:
        for block in blocks:
            for part in _seconds_of(block, recognizer.sample_rate):
                session.feed(part)
                while session.is_ready:
                    yield from advance(recognizer, [session])[0]
        session.end()
        while session.is_ready:
            yield from advance(recognizer, [session])[0]
        yield from session.flush()

    return results()


def _seconds_of(block: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Return a block in parts of a second, since a segment's end copies all samples after it."""
    check_sample_type(block)
    return [block[n : n + sample_rate] for n in range(0, len(block), sample_rate)]


@dataclass
class Chunk:
    """The next chunk of a session: its frames, with those around them, and its steps."""

    feats_TF: Tensor
    steps: int


@dataclass
class EncodedChunk:
    """What front end, encoder and CTC head made of a chunk; the state of the encoder after it."""

    x_CD: Tensor
    memory_CD: Tensor
    logp_CV: Tensor
    state: EncoderState


def advance(recognizer: "Recognizer", sessions: Sequence["Session"]) -> list[list[StreamResult]]:
    """Compute the next chunk of each session, as one batch; return the new results of each.

    All of them are ready. Chunks have the same length, except the last one of a stream.
    """
    chunks = [session.next_chunk() for session in sessions]
    encoded = encode_chunks(recognizer, [s.state for s in sessions], chunks)
    return [session.take(each) for session, each in zip(sessions, encoded, strict=True)]


@torch.inference_mode()
def encode_chunks(
    recognizer: "Recognizer", states: Sequence[EncoderState], chunks: Sequence[Chunk]
) -> list[EncodedChunk]:
    """Encode chunks of several sessions as one batch; the states are not changed."""
    adapt()
    model, device = recognizer.model, recognizer.device
    longest = max(len(chunk.feats_TF) for chunk in chunks)
    feats = [pad(c.feats_TF, (0, 0, 0, longest - len(c.feats_TF))) for c in chunks]
    steps_B = torch.tensor([chunk.steps for chunk in chunks], device=device)
    state = EncoderState.join(states)
    x_BCD, memory_BCD = model.encode_chunk(torch.stack(feats).to(device), steps_B, state)
    logp_BCV = model.ctc_logits(memory_BCD).log_softmax(-1)
    return [
        EncodedChunk(
            x_BCD[b, : chunk.steps].clone(),  # a view would keep the whole batch
            memory_BCD[b, : chunk.steps].clone(),
            logp_BCV[b, : chunk.steps].clone(),
            state.select(torch.tensor([b], device=device)),
        )
        for b, chunk in enumerate(chunks)
    ]


class Session:
    """One stream: samples in, chunks out to the encoder, and results back in.

    Chunks are cut at fixed samples, so that the sizes of the blocks change nothing. Raises
    ConfigError where the model has no streaming encoder.
    """

    state: EncoderState

    def __init__(
        self,
        recognizer: "Recognizer",
        options: DecodingOptions | None = None,
        endpoint: Endpoint | None = None,
        chunk: int | None = None,
    ) -> None:
        config = recognizer.config
        if config.model.encoder.streaming is None:
            raise ConfigError(
                "this model has no streaming encoder: train one with model.encoder.streaming, or "
                "transcribe recordings as a whole"
            )
        if chunk is not None and chunk < 1:
            raise ConfigError(f"chunk {chunk}: give a number of encoder steps, 1 at least")
        options = options or config.decoding
        # The decoder searches no text while audio arrives. At the end of a segment it rescores the
        # texts that CTC finds in the segment, encoded as a whole.
        method = "rescore" if options.method == "joint" else options.method
        changes: dict[str, object] = {"method": method}
        if options.confidence_threshold != config.decoding.confidence_threshold:  # it was given
            changes["confidence_threshold"] = options.confidence_threshold
        self._recognizer, self._options = recognizer, options.changed(changes)
        self._rescores = method == "rescore"
        self._endpoint = endpoint or Endpoint.within(options.chunk_seconds)
        self._chunk = chunk or config.model.encoder.streaming.chunk
        self._frontend = recognizer.model.frontend
        self._features = FeatureStream(recognizer.features)
        self._step_samples = FRAMES_PER_STEP * config.features.hop_length
        self._is_ended, self._offset = False, 0
        self._begin(torch.zeros(0))

    def _begin(self, wave_N: Tensor) -> None:
        """Begin a segment, of which the samples `wave_N` have arrived."""
        self._wave_N, self._arrived, self._n_samples = wave_N, list[Tensor](), len(wave_N)
        self._tail_TF = torch.zeros(self._frontend.before, self._recognizer.config.features.n_freqs)
        self._n_frames = 0
        self._inputs: list[Tensor] = []
        self._memories: list[Tensor] = []
        self._logps: list[Tensor] = []
        self._path, self._shown, self._power = GreedyPath(), 0, list[float]()
        with torch.inference_mode():
            self.state = self._recognizer.model.encoder.start_stream()

    def feed(self, block: np.ndarray) -> None:
        """Add samples (N,) at the model's rate: int16, or floats from -1 to 1.

        Raises AudioError for samples that are NaN or infinite, ConfigError for other types.
        """
        check_sample_type(block)
        wave = block.astype(np.float32) / (2**15 if block.dtype == np.int16 else 1)
        if wave.ndim != 1 or not np.isfinite(wave).all():
            raise AudioError(
                f"a block of shape {wave.shape} is no audio: give finite samples (samples,), mono",
                "non_finite_audio",
            )
        self._arrived.append(torch.from_numpy(wave))
        self._n_samples += len(wave)

    @property
    def n_held(self) -> int:
        """Return the number of samples that the session holds: those of the running segment."""
        return self._n_samples

    @property
    def start(self) -> float:
        """Return where the running segment begins, in seconds from the stream's start."""
        return self._seconds(0)

    def end(self) -> None:
        """Say that no more samples come."""
        self._is_ended = True

    @property
    def is_ready(self) -> bool:
        """Tell whether there is a next chunk."""
        return self._next_steps() > 0

    def _next_steps(self) -> int:
        """Return the number of steps that the next chunk has by now."""
        done = self._path.n_steps
        frames = FRAMES_PER_STEP * (done + self._chunk) + self._frontend.after
        if self._n_samples >= self._features.n_samples(frames):
            return self._chunk
        if not self._is_ended:
            return 0
        steps = self._recognizer.config.model.frontend.steps
        return min(steps(self._features.n_frames(self._n_samples)) - done, self._chunk)

    def next_chunk(self) -> Chunk:
        """Return the frames of the next chunk; beyond the end of the stream they are zero."""
        steps, done = self._next_steps(), self._path.n_steps
        if self._arrived:
            self._wave_N = torch.cat((self._wave_N, *self._arrived))
            self._arrived.clear()
        until = wanted = FRAMES_PER_STEP * (done + steps) + self._frontend.after
        if self._is_ended:
            until = min(wanted, self._features.n_frames(self._n_samples))
        parts = [self._tail_TF]
        if until > self._n_frames:
            parts.append(self._features.frames(self._wave_N, self._n_frames, until))
        feats_TF = torch.cat(parts)
        self._n_frames, self._tail_TF = until, feats_TF[FRAMES_PER_STEP * steps :]
        return Chunk(pad(feats_TF, (0, 0, 0, wanted - until)), steps)

    @torch.inference_mode()
    def take(self, chunk: EncodedChunk) -> list[StreamResult]:
        """Take the encoded next chunk; return the new result, or none."""
        self.state = chunk.state
        if self._rescores:
            self._inputs.append(chunk.x_CD)
        else:
            self._memories.append(chunk.memory_CD)
            self._logps.append(chunk.logp_CV)
        path, seconds = self._path, self._recognizer.config.step_seconds
        self._power += self._powers(path.n_steps, len(chunk.logp_CV))
        path.extend(chunk.logp_CV)
        length, blanks = path.n_steps * seconds, path.trailing_blanks * seconds
        quiet = quiet_steps(self._power) * seconds
        has_text = bool(path.tokens) and not self._is_silent(path.n_steps)
        if not self._endpoint.is_reached(length, blanks, has_text, quiet):
            return self._partial() if has_text else []
        # The next segment begins in the silence: a word that has begun unnoticed is not cut.
        most = round(self._endpoint.silence_seconds / seconds)
        return self._final(path.n_steps - min(path.trailing_blanks, most) // 2)

    def flush(self) -> list[StreamResult]:
        """Return the final result of the last segment; the session has ended."""
        return self._final(self._path.n_steps) if self._path.n_steps else []

    def _partial(self) -> list[StreamResult]:
        """Return the result of the running segment if it has more text than before."""
        path = self._path
        if len(path.tokens) == self._shown:
            return []
        self._shown = len(path.tokens)
        text = self._recognizer.tokenizer.decode(path.tokens)
        best = Hypothesis(
            tuple(path.tokens), path.log_prob, None, path.log_prob, "eos",
            confidences=tuple(path.confidences), text=text,
        )  # fmt: skip
        start, end = self._seconds(0), self._seconds(path.n_steps)
        spans = [list(span) for span in path.spans]
        return [StreamResult(self._recognizer.segment(start, end, [best], spans), False)]

    @torch.inference_mode()
    def _final(self, steps: int) -> list[StreamResult]:
        """Return the final result of a segment of so many steps, and begin the next one there."""
        nbest, spans = self._decode(steps)
        segment = self._recognizer.segment(self._seconds(0), self._seconds(steps), nbest, spans)
        was_shown = self._shown > 0
        cut = min(steps * self._step_samples, self._n_samples)
        rest_N = torch.cat((self._wave_N, *self._arrived))[cut:]
        self._offset += cut
        self._begin(rest_N)
        return [StreamResult(segment, True)] if was_shown or segment.text else []

    def _decode(self, steps: int) -> tuple[list[Hypothesis], list[list[int]] | None]:
        """Return the n best of so many steps of the segment, and the spans of the best's tokens."""
        if self._is_silent(steps):
            return [NO_SPEECH], None
        encoded = self._encoded(steps)
        nbest = self._recognizer.decode(encoded, self._options)[0]
        return nbest, align_tokens(encoded, nbest[:1])[0]

    def _is_silent(self, steps: int) -> bool:
        """Tell whether so many steps of the segment are digital silence, which has no text."""
        return is_constant(self._wave_N[: steps * self._step_samples])

    def _encoded(self, steps: int) -> Encoded:
        """Return so many steps of the segment: for the decoder as a whole, else chunk by chunk."""
        if self._rescores:
            return self._recognizer.decoder.encode_steps(torch.cat(self._inputs)[:steps])
        memory_1SD, logp_1SV = (torch.cat(x)[None, :steps] for x in (self._memories, self._logps))
        mask_1S = torch.ones(1, steps, dtype=torch.bool, device=memory_1SD.device)
        return Encoded(memory_1SD, mask_1S, logp_1SV)

    def _powers(self, first: int, steps: int) -> list[float]:
        """Return the variance of the samples of each step from `first` on; 0 beyond the end."""
        step = self._step_samples
        wave_N = self._wave_N[first * step : (first + steps) * step]
        padded_N = pad(wave_N, (0, steps * step - len(wave_N)))
        powers: list[float] = padded_N.view(steps, step).var(1, correction=0).tolist()
        return powers

    def _seconds(self, step: int) -> float:
        """Return the time in the stream of a step of the running segment, within the audio."""
        rate = self._recognizer.sample_rate
        return (self._offset + min(step * self._step_samples, self._n_samples)) / rate
