"""Transcripts as the bodies of responses."""

import zlib
from math import log

from asr.transcription.transcript import Segment, Transcript
from asr.transcription.writers import words
from serve.engine.messages import Done
from serve.routes.schemas import (
    Logprob,
    NativeTranscription,
    TextDone,
    Timing,
    Transcription,
    TranscriptionForm,
    Usage,
    VerboseSegment,
    VerboseTranscription,
    VerboseWord,
)

_LEAST = 1e-10  # a confidence whose logarithm is finite


def brief(transcript: Transcript, form: TranscriptionForm) -> Transcription:
    """Return the body of `response_format=json`."""
    return Transcription(
        text=transcript.text,
        usage=Usage(seconds=transcript.duration),
        logprobs=_logprobs(transcript, form),
        warnings=list(transcript.warnings) or None,
    )


def last_event(transcript: Transcript, form: TranscriptionForm) -> TextDone:
    """Return the last event of a stream."""
    return TextDone(
        text=transcript.text,
        usage=Usage(seconds=transcript.duration),
        logprobs=_logprobs(transcript, form),
    )


def verbose(transcript: Transcript, form: TranscriptionForm) -> VerboseTranscription:
    """Return the body of `response_format=verbose_json`."""
    asked = form.timestamp_granularities or ["segment"]
    segments = [_segment(i, segment) for i, segment in enumerate(transcript.segments)]
    timed = [VerboseWord(word=w.text, start=w.start, end=w.end) for w in words(transcript)]
    return VerboseTranscription(
        language=form.language or "unknown",
        duration=transcript.duration,
        text=transcript.text,
        segments=segments if "segment" in asked else None,
        words=timed if "word" in asked else None,
        usage=Usage(seconds=transcript.duration),
        warnings=list(transcript.warnings) or None,
    )


def native(done: Done, model: str) -> NativeTranscription:
    """Return the body of POST /v1/transcribe."""
    transcript = done.transcript
    spoken = {segment.ended for segment in transcript.segments} - {"no_speech"}
    return NativeTranscription(
        model=model,
        text=transcript.text,
        duration=transcript.duration,
        score=transcript.score,
        ended="length" if "length" in spoken else "eos" if spoken else "no_speech",
        segments=list(transcript.segments),
        warnings=list(transcript.warnings),
        timing=Timing(
            wait_seconds=done.wait_seconds,
            decode_seconds=done.decode_seconds,
            real_time_factor=done.decode_seconds / transcript.duration,
        ),
    )


def _segment(index: int, segment: Segment) -> VerboseSegment:
    text = segment.text.encode()
    logs = [_log(confidence) for confidence in segment.confidences]
    return VerboseSegment(
        id=index,
        seek=round(segment.start * 100),
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=list(segment.token_ids),
        avg_logprob=sum(logs) / max(1, len(logs)),
        compression_ratio=len(text) / len(zlib.compress(text)),
        no_speech_prob=1.0 if segment.ended == "no_speech" else 0.0,
    )


def _logprobs(transcript: Transcript, form: TranscriptionForm) -> list[Logprob] | None:
    if "logprobs" not in form.include:
        return None
    return [
        Logprob(token=token.text, bytes=list(token.text.encode()), logprob=_log(confidence))
        for segment in transcript.segments
        if segment.tokens is not None
        for token, confidence in zip(segment.tokens, segment.confidences, strict=True)
    ]


def _log(confidence: float) -> float:
    return log(max(confidence, _LEAST))
