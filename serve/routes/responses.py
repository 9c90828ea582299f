"""Transcripts as the bodies of responses."""

import zlib
from collections.abc import Sequence
from math import log
from urllib.parse import quote

from asr.normalization import normalize_text
from asr.transcription.reply import WARNINGS
from asr.transcription.transcript import Segment, Transcript
from asr.transcription.writers import as_srt, as_vtt, words
from serve.engine.messages import Done
from serve.routes import schemas
from serve.routes.schemas import TranscriptionForm

_MOST_HEADER = 4096  # bytes; clients take 8 KiB and more
_LEAST = 1e-10  # a confidence whose logarithm is finite


def brief(transcript: Transcript, form: TranscriptionForm) -> schemas.TextDone:
    """Return the body of `response_format=json`, and the last event of a stream."""
    return schemas.TextDone(
        text=transcript.text,
        usage=schemas.Usage(seconds=transcript.duration),
        logprobs=logprobs(transcript.segments) if "logprobs" in form.include else None,
        warnings=list(transcript.warnings) or None,
    )


def verbose(transcript: Transcript, form: TranscriptionForm) -> schemas.VerboseTranscription:
    """Return the body of `response_format=verbose_json`."""
    asked = form.timestamp_granularities or ["segment"]
    segments = [_segment(i, segment) for i, segment in enumerate(transcript.segments)]
    timed = [
        schemas.VerboseWord(word=normalize_text(word.text, "keep"), start=word.start, end=word.end)
        for segment in transcript.segments
        for word in words(segment)
    ]
    return schemas.VerboseTranscription(
        language=form.language or "unknown",
        duration=transcript.duration,
        text=transcript.text,
        segments=segments if "segment" in asked else None,
        words=timed if "word" in asked else None,
        usage=schemas.Usage(seconds=transcript.duration),
        warnings=list(transcript.warnings) or None,
    )


def warnings_header(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header that tells warnings beside a text by itself, as many as fit."""
    value = ""
    for sentence in map(quote, warnings):
        if len(value) + len(sentence) < _MOST_HEADER:
            value += f"{', ' if value else ''}{sentence}"
    return {WARNINGS: value} if value else {}


def native(done: Done, model: str) -> schemas.NativeDone:
    """Return the body of POST /v1/transcribe."""
    transcript = done.transcript
    endings = {segment.ended for segment in transcript.segments}
    return schemas.NativeDone(
        model=model,
        text=transcript.text,
        duration=transcript.duration,
        score=transcript.score,
        ended=next((e for e in ("length", "eos", "uncertain") if e in endings), "no_speech"),
        segments=[timed(segment) for segment in transcript.segments],
        srt=as_srt(transcript),
        vtt=as_vtt(transcript),
        warnings=list(transcript.warnings),
        timing=schemas.Timing(
            wait_seconds=done.wait_seconds,
            decode_seconds=done.decode_seconds,
            real_time_factor=done.decode_seconds / transcript.duration,
        ),
    )


def timed(segment: Segment) -> schemas.TimedSegment:
    """Return a segment with its words."""
    return schemas.TimedSegment(**vars(segment), words=tuple(words(segment)))


def _segment(index: int, segment: Segment) -> schemas.VerboseSegment:
    text = segment.text.encode()
    logs = [_log(confidence) for confidence in segment.confidences]
    return schemas.VerboseSegment(
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


def logprobs(segments: Sequence[Segment]) -> list[schemas.Logprob]:
    """Return the tokens of segments, as far as their times are known, with their confidences."""
    return [
        schemas.Logprob(token=token.text, bytes=list(token.text.encode()), logprob=_log(confidence))
        for segment in segments
        if segment.tokens is not None
        for token, confidence in zip(segment.tokens, segment.confidences, strict=True)
    ]


def _log(confidence: float) -> float:
    return log(max(confidence, _LEAST))
