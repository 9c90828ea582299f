"""Live sessions by model: streamed where it has a streaming encoder, else segment by segment."""

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.datastructures import State

from asr.decoding.hotwords import Hotword
from asr.transcription.transcript import Transcript
from serve.engine.client import EngineClient, Job
from serve.engine.messages import Done
from serve.errors import ApiError
from serve.routes.live_session import LiveSession, Session
from serve.routes.sockets import Refusal
from serve.routes.streamed_session import StreamedSession


def begin(
    state: State,
    model: str,
    sample_rate: int,
    silence_seconds: float | None = None,
    hotwords: tuple[Hotword, ...] = (),
) -> LiveSession:
    """Return a new session of a model, whose segments end after so much silence, or as usual.

    The hotwords count in final texts.
    """
    engine: EngineClient = state.engine
    deadline = state.settings.deadline_seconds
    if model in engine.streaming:
        return StreamedSession(
            sample_rate,
            lambda: engine.open(model, sample_rate, silence_seconds, hotwords),
            deadline,
        )

    async def transcribe(pcm: bytes, quick: bool) -> Transcript:
        asked = partial(engine.submit, model, pcm, sample_rate, quick=quick)
        return await _transcribe(partial(asked, hotwords=() if quick else hotwords), deadline)

    return Session(sample_rate, transcribe, silence_seconds)


async def _transcribe(submit: Callable[[], Job], deadline: float) -> Transcript:
    """Transcribe a part of a session, again if the engine was restarted meanwhile."""
    try:
        async with asyncio.timeout(deadline):
            while True:
                try:
                    with submit() as job:
                        event = await job.next()
                    assert isinstance(event, Done), "without partials the first event is the last"
                    return event.transcript
                except ApiError as error:
                    if error.status_code != 503:
                        raise Refusal(1011, error.message, error.code or "failed") from error
                await asyncio.sleep(1)
    except TimeoutError as error:
        message = f"not done within {deadline:g} seconds: try again later"
        raise Refusal(1011, message, "deadline") from error
