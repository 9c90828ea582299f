"""From what the decoding process says of a recording to the bodies of answers."""

import zlib
from collections.abc import Iterator
from math import log
from typing import Any

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

_LEAST = 1e-10  # a confidence whose log is still a number


def brief(heard: dict[str, Any], form: TranscriptionForm) -> Transcription:
    """`response_format=json`."""
    return Transcription(
        text=heard["text"],
        usage=Usage(seconds=heard["duration"]),
        logprobs=_logprobs(heard, form),
        warnings=list(heard["warnings"]) or None,
    )


def done(heard: dict[str, Any], form: TranscriptionForm) -> TextDone:
    """The last event of a stream."""
    return TextDone(
        text=heard["text"],
        usage=Usage(seconds=heard["duration"]),
        logprobs=_logprobs(heard, form),
    )


def verbose(heard: dict[str, Any], form: TranscriptionForm) -> VerboseTranscription:
    """`response_format=verbose_json`."""
    asked = form.timestamp_granularities or ["segment"]
    return VerboseTranscription(
        language=form.language or "unknown",
        duration=heard["duration"],
        text=heard["text"],
        segments=list(_segments(heard)) if "segment" in asked else None,
        words=[_word(word) for word in heard["words"]] if "word" in asked else None,
        usage=Usage(seconds=heard["duration"]),
        warnings=list(heard["warnings"]) or None,
    )


def native(heard: dict[str, Any], model: str) -> NativeTranscription:
    """POST /v1/transcribe."""
    reasons = [segment["ended"] for segment in heard["segments"]]
    spoken = [reason for reason in reasons if reason != "no_speech"]
    ended = "length" if "length" in spoken else "eos" if spoken else "no_speech"
    work, duration = heard["decode_seconds"], heard["duration"]
    return NativeTranscription.model_validate(
        {
            **heard,
            "model": model,
            "ended": ended,
            "timing": Timing(
                wait_seconds=heard["wait_seconds"],
                decode_seconds=work,
                real_time_factor=work / duration,
            ),
        }
    )


def _segments(heard: dict[str, Any]) -> Iterator[VerboseSegment]:
    for number, (segment, ids) in enumerate(zip(heard["segments"], heard["ids"], strict=True)):
        text, spoken = segment["text"].encode(), segment["ended"] != "no_speech"
        logs = [log(max(c, _LEAST)) for c in segment["confidences"]]
        yield VerboseSegment(
            id=number,
            seek=round(segment["start"] * 100),
            start=segment["start"],
            end=segment["end"],
            text=segment["text"],
            tokens=ids,
            avg_logprob=sum(logs) / max(1, len(logs)),
            compression_ratio=len(text) / len(zlib.compress(text)),
            no_speech_prob=0.0 if spoken else 1.0,
        )


def _word(word: dict[str, Any]) -> VerboseWord:
    return VerboseWord(word=word["text"], start=word["start"], end=word["end"])


def _logprobs(heard: dict[str, Any], form: TranscriptionForm) -> list[Logprob] | None:
    if "logprobs" not in form.include:
        return None
    return [
        Logprob(
            token=token["text"],
            bytes=list(token["text"].encode()),
            logprob=log(max(confidence, _LEAST)),
        )
        for segment in heard["segments"]
        if segment["tokens"] is not None
        for token, confidence in zip(segment["tokens"], segment["confidences"], strict=True)
    ]
