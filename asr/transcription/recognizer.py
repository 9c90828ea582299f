"""Waveform to text, on one page. The command line, the service and the tests all use it.

Legend: N samples, B utterances, T frames, F frequency bins.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio.recording import Recording, Source
from asr.audio.segmentation import split_at_silence
from asr.bundle import Bundle
from asr.config import Config
from asr.decoding.decode import Encoded, LanguageModel, SpeechDecoder, is_constant
from asr.decoding.endpoint import Endpoint
from asr.decoding.hotwords import Given, as_hotwords
from asr.decoding.hypothesis import NO_SPEECH, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.request import Request
from asr.errors import AudioError, ConfigError
from asr.joining import join_texts
from asr.lm.loading import load_language_model
from asr.model.inference.decoder import for_inference
from asr.model.inference.frontend import in_tiles
from asr.model.inference.int8 import in_8_bits
from asr.model.inference.sparse import prepare_for_inference
from asr.normalization import normalize_text
from asr.runtime.devices import choose_device
from asr.runtime.load import adapt
from asr.transcription.chunks import Chunk, ChunkedRecording, at_speed
from asr.transcription.stream import stream
from asr.transcription.timestamps import align_tokens, timed_tokens
from asr.transcription.transcript import Segment, StreamResult, Transcript

log = logging.getLogger(__name__)

# A recording is cut into chunks of at most _CHUNK_SECONDS, so that memory does not grow with it.
# A batch has _BATCH_SECONDS at most; a group of chunks is read before it is sorted into batches.
_CHUNK_SECONDS = 20.0
_BATCH_SECONDS = 80.0
_GROUP_SECONDS, _GROUP_CHUNKS = 4 * _BATCH_SECONDS, 64


class Recognizer:
    """A bundle ready to transcribe on one device."""

    def __init__(self, bundle: Bundle, device: str = "auto", int8: bool = False) -> None:
        self.device = choose_device(device)
        self.config: Config = bundle.config
        self.tokenizer = bundle.tokenizer
        self.features = bundle.features.eval()
        self.model = bundle.model.eval().to(self.device)
        # The fast decoder joins dense maps, so its sparse ones become dense.
        prepare_for_inference(self.model.decoder, may_be_sparse=False)
        prepare_for_inference(self.model)
        on_cpu = self.device.type == "cpu"
        self.model.decoder = for_inference(self.model.decoder, int8 and on_cpu)
        if on_cpu:
            self.model.frontend = in_tiles(self.model.frontend)
            if int8:
                in_8_bits(self.model)
        self.sample_rate = bundle.config.features.sample_rate
        self.decoder = SpeechDecoder(self.model, self.tokenizer)
        self._lms: dict[Path, LanguageModel] = {}
        self._pid = os.getpid()

    def transcribe(
        self,
        source: Source,
        options: DecodingOptions | None = None,
        max_seconds: float | None = None,
        hotwords: Iterable[Given] | None = None,
    ) -> Transcript:
        """Transcribe a recording: a path, an open binary file, its bytes, or `Samples` of an array.

        Files are wav, flac, ogg or mp3, and with lrt-asr[media] m4a, webm and more. Memory does not
        grow with their length. `hotwords` are phrases, or pairs of a phrase and a weight (see the
        options). The transcript's warnings are logged too, such as that of a text that is left out
        as uncertain. Raises AudioError where the recording cannot be read as speech, or is longer
        than `max_seconds`.
        """
        options = self._with_hotwords(options, hotwords)
        (result,) = self.transcribe_all([source], options, max_seconds=max_seconds)
        if isinstance(result, AudioError):
            raise result
        for warning in result.warnings:
            log.warning("%s", warning)
        return result

    def transcribe_all(
        self,
        sources: Iterable[Source],
        options: DecodingOptions | None = None,
        on_progress: Callable[[float], object] = lambda _: None,
        max_seconds: float | None = None,
        speed: float = 1.0,
    ) -> Iterator[Transcript | AudioError]:
        """Yield the transcripts of recordings in their order, or the error of an unreadable one.

        Short recordings share batches, long ones are decoded while they are read. `on_progress`
        gets the number of recordings that are done, the read part of the last one included. The
        chunks are played `speed` times as fast; this falsifies only the times of tokens in them.
        """
        pending: deque[ChunkedRecording] = deque()
        group: list[tuple[ChunkedRecording, Chunk]] = []
        n_read = 0
        for n_read, source in enumerate(sources, 1):
            recording = self.open(source, options, max_seconds, any_format=True)
            pending.append(recording)
            for chunk in recording.chunks():
                group.append((recording, chunk))
                seconds = sum(chunk.seconds for _, chunk in group)
                if seconds >= _GROUP_SECONDS or len(group) == _GROUP_CHUNKS:
                    self._recognize_group(group, options, speed)
                    on_progress(n_read - 1 + recording.recording.fraction)
                    while pending[0].is_read:
                        yield result_of(pending.popleft())
        self._recognize_group(group, options, speed)
        on_progress(n_read)
        yield from map(result_of, pending)

    def stream(
        self,
        blocks: Iterable[np.ndarray],
        options: DecodingOptions | None = None,
        endpoint: Endpoint | None = None,
        chunk: int | None = None,
        hotwords: Iterable[Given] | None = None,
    ) -> Iterator[StreamResult]:
        """Yield results of a waveform that arrives in blocks (samples,), as soon as they are known.

        Blocks are mono at `sample_rate`: int16, or floats from -1 to 1; a `Recording` is such
        blocks too. How the waveform is cut into blocks changes no result. A segment has partial
        results, then a final one; memory and cost per second do not grow with the stream. `chunk`
        is the number of encoder steps that are computed at once, by default the recipe's.
        `hotwords` are for final results. Raises ConfigError without a streaming encoder.
        """
        return stream(self, blocks, self._with_hotwords(options, hotwords), endpoint, chunk)

    def _with_hotwords(
        self, options: DecodingOptions | None, hotwords: Iterable[Given] | None
    ) -> DecodingOptions:
        options = options or self.config.decoding
        return options.changed({"hotwords": hotwords and as_hotwords(hotwords)})

    def _recognize_group(
        self,
        group: list[tuple[ChunkedRecording, Chunk]],
        options: DecodingOptions | None,
        speed: float,
    ) -> None:
        """Add the segments of chunks to their recordings, and empty the group."""
        rate = self.sample_rate
        chunks = [replace(c, wave_N=at_speed(c.wave_N, rate, speed)) for _, c in group]
        segments = self.recognize(chunks, options)
        for (recording, _), segment in zip(group, segments, strict=True):
            recording.segments.append(segment)
        group.clear()

    def open(
        self,
        source: Source,
        options: DecodingOptions | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
        request: Request | None = None,
        any_format: bool = False,
    ) -> ChunkedRecording:
        """Return a recording that is read chunk by chunk; see `Recording` for `any_format`."""
        options = options or self.config.decoding
        seconds = chunk_seconds(self.config, options)
        recording = Recording(
            source, self.sample_rate, max_seconds=max_seconds, max_samples=max_samples,
            any_format=any_format,
        )  # fmt: skip
        warning = self.decoder.hotwords(options).warning
        return ChunkedRecording(recording, seconds, request, (warning,) if warning else ())

    def recognize(
        self, chunks: Sequence[Chunk], options: DecodingOptions | None = None
    ) -> list[Segment]:
        """Return a segment for each chunk, in order; the chunks may be of several recordings.

        Chunks of similar length share batches. A segment does not depend on the other chunks, in 8
        bits within rounding. The segment of a cancelled chunk means nothing.
        """
        # A request costs a look at a flag in each step, so there are none where nothing can cancel.
        requests = [chunk.request for chunk in chunks if chunk.request]
        assert len(requests) in (0, len(chunks)), "either all chunks have a request, or none"
        found: dict[int, Segment] = {}
        for indices, encoded in self.encode([chunk.wave_N for chunk in chunks], requests):
            nbests = self.decode(encoded, options)
            spans = align_tokens(encoded, [nbest[0] for nbest in nbests])
            for i, nbest, span in zip(indices, nbests, spans, strict=True):
                found[i] = self.segment(chunks[i].start, chunks[i].end, nbest, span)
        return [
            found.get(i) or self.segment(chunk.start, chunk.end, [NO_SPEECH], None)
            for i, chunk in enumerate(chunks)
        ]

    def hypotheses(
        self, waves: Sequence[Tensor], options: DecodingOptions | None = None
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each waveform (N,) as a whole, without times."""
        results = [[NO_SPEECH] for _ in waves]
        for indices, encoded in self.encode(waves):
            for i, nbest in zip(indices, self.decode(encoded, options), strict=True):
                results[i] = nbest
        return results

    def texts(
        self, waves: Sequence[Tensor], options: DecodingOptions | None = None, speed: float = 1.0
    ) -> list[tuple[str, list[list[Hypothesis]]]]:
        """Return the text of each waveform (N,) of any length, and the n best of its chunks.

        They are decoded as `transcribe_all` decodes them at this speed.
        """
        rate, longest = self.sample_rate, chunk_seconds(self.config, options)
        cut = [list(split_at_silence([w.numpy()], rate, longest)) for w in waves]
        chunks = [at_speed(torch.from_numpy(c), rate, speed) for cs in cut for c in cs]
        results = iter(self.hypotheses(chunks, options))
        found = [[next(results) for _ in cs] for cs in cut]
        texts = (join_texts(nbest[0].text for nbest in nbests) for nbests in found)
        return [(normalize_text(t, "keep"), n) for t, n in zip(texts, found, strict=True)]

    def decode(
        self, encoded: Encoded, options: DecodingOptions | None = None
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each encoded utterance (see `SpeechDecoder.decode`)."""
        self._check_process()
        adapt()
        options = options or self.config.decoding
        return self.decoder.decode(encoded, options, self.language_model(options))

    @torch.inference_mode()
    def encode(
        self, waves: Sequence[Tensor], requests: Sequence[Request] | None = None
    ) -> Iterator[tuple[list[int], Encoded]]:
        """Yield batches: indices of waveforms and their encoder outputs, the longest first.

        Silent waveforms and those too short for an encoder step are left out. Raises ConfigError in
        a process that was forked from the one that loaded the model.
        """
        self._check_process()
        adapt()
        feats = {i: self.features(w) for i, w in enumerate(waves) if not is_constant(w)}
        steps = self.config.model.frontend.steps
        todo = sorted((i for i in feats if steps(len(feats[i]))), key=lambda i: len(feats[i]))
        hop_ms = self.config.features.hop_ms
        while todo:
            longest_ms = len(feats[todo[-1]]) * hop_ms
            size = max(1, int(_BATCH_SECONDS * 1000 / longest_ms))
            todo, batch = todo[:-size], todo[-size:]
            mine = tuple(requests[i] for i in batch) if requests else None
            frames_B = torch.tensor([len(feats[i]) for i in batch], device=self.device)
            feats_BTF = pad_sequence([feats[i] for i in batch], batch_first=True)
            yield batch, self.decoder.encode(feats_BTF.to(self.device), frames_B, mine)

    def _check_process(self) -> None:
        """Raise ConfigError after a fork: OpenMP would wait for threads that are gone."""
        if os.getpid() != self._pid and torch.get_num_threads() > 1:
            raise ConfigError(
                "this model was loaded before the process was forked: load it in each process, or "
                "set OMP_NUM_THREADS=1"
            )

    def segment(
        self, start: float, end: float, nbest: list[Hypothesis], spans: list[list[int]] | None
    ) -> Segment:
        """Return the segment of n best hypotheses; `spans` are the steps of the best's tokens."""
        best, tokens = nbest[0], None
        if spans is not None:
            texts = self.tokenizer.token_texts(best.tokens)
            tokens = timed_tokens(texts, spans, self.config.step_seconds, start, end)
        return Segment(
            start, end, best.text, best.score, best.ended, best.tokens,
            best.confidences, tokens, tuple(nbest),
        )  # fmt: skip

    def language_model(self, options: DecodingOptions) -> LanguageModel | None:
        """Return the language model that the options name, read once; None without a weight.

        Raises BundleError where it cannot be read or is of other tokens.
        """
        if options.lm is None or not options.lm_weight:
            return None
        if options.lm not in self._lms:
            self._lms[options.lm] = load_language_model(options.lm, self.tokenizer, self.device)
        return self._lms[options.lm]


def longest_seconds(config: Config) -> float:
    """Return the length in seconds of the longest chunk that a model can take, or should."""
    steps = config.model.encoder.longest
    if steps is None:
        return _CHUNK_SECONDS
    # Features whose frames are centered on samples have one more where the last hop is complete.
    sample = 1 / config.features.sample_rate
    return min(_CHUNK_SECONDS, steps * config.step_seconds - sample)


def chunk_seconds(config: Config, options: DecodingOptions | None) -> float:
    """Return the length in seconds of the longest chunk of a recording with these options."""
    chosen = (options or config.decoding).chunk_seconds
    return min(longest_seconds(config), chosen or _CHUNK_SECONDS)


def result_of(recording: ChunkedRecording) -> Transcript | AudioError:
    """Return the transcript of a recording's segments so far, or why it cannot be read."""
    source = recording.recording
    warnings = (*recording.warnings, *source.warnings)
    return recording.error or Transcript.join(recording.segments, source.seconds, warnings)
