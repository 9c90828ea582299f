"""Live sessions by model: streamed where it has a streaming encoder, else segment by segment."""

import asyncio

from starlette.datastructures import State

from asr.transcription.transcript import Transcript
from serve.engine.client import EngineClient
from serve.engine.messages import Done
from serve.errors import ApiError
from serve.routes.live_session import LiveSession, Session
from serve.routes.sockets import Refusal
from serve.routes.streamed_session import StreamedSession


def begin(
    state: State, model: str, sample_rate: int, silence_seconds: float | None = None
) -> LiveSession:
    """Return a new session of a model, whose segments end after so much silence, or as usual."""
    engine: EngineClient = state.engine
    deadline = state.settings.deadline_seconds
    if model in engine.streaming:
        return StreamedSession(
            sample_rate, lambda: engine.open(model, sample_rate, silence_seconds), deadline
        )

    async def transcribe(pcm: bytes, quick: bool) -> Transcript:
        return await _transcribe(engine, model, sample_rate, pcm, quick, deadline)

    return Session(sample_rate, transcribe, silence_seconds)


async def _transcribe(
    engine: EngineClient, model: str, sample_rate: int, pcm: bytes, quick: bool, deadline: float
) -> Transcript:
    """Transcribe a part of a session, again if the engine was restarted meanwhile."""
    try:
        async with asyncio.timeout(deadline):
            while True:
                try:
                    with engine.submit(model, pcm, sample_rate, quick=quick) as job:
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
