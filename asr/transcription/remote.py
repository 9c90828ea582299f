"""Recordings to a service that speaks OpenAI's API, and what it makes of them.

Nothing is decoded here: the service gets the files as they are.
"""

import asyncio
import json
import logging
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from asr.errors import AsrError, AudioError, ConfigError
from asr.transcription.jobs import Task, write_text

# What the service is asked for. It knows no tsv, but the same subtitles are in srt.
_ASKED = {"txt": "text", "json": "verbose_json", "srt": "srt", "vtt": "vtt", "tsv": "srt"}
# How long a recording waits for a service that is full or away before all is given up, and
# how long a decode may take, in seconds.
_PATIENCE, _DECODE = 120.0, 3600.0

_CUE = re.compile(r"^(\S+) --> (\S+)\n(.*?)\n\n", re.M | re.S)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """Where a service is, as its own clients are told: with or without `/v1` at the end.

    `model` is a name that it lists, None for the only one. The key is `ASR_API_KEY` of the
    environment.
    """

    url: str
    model: str | None = None

    def connect(self, jobs: int) -> httpx.AsyncClient:
        """A client of `jobs` connections. Raises ConfigError for what is no URL or no key."""
        try:
            url = httpx.URL(self.url.rstrip("/").removesuffix("/v1") + "/v1/")
            if url.scheme not in ("http", "https"):
                raise httpx.InvalidURL("it does not begin with http:// or https://")
            key = os.environ.get("ASR_API_KEY", "").strip()
            return httpx.AsyncClient(
                base_url=url,
                headers={b"authorization": f"Bearer {key}".encode()} if key else {},
                limits=httpx.Limits(max_connections=jobs),
                timeout=httpx.Timeout(30, read=_DECODE, pool=None),
            )
        except httpx.InvalidURL as error:
            raise ConfigError(f"--server {self.url}: {error}: write http://HOST:PORT") from error
        except UnicodeEncodeError as error:
            raise ConfigError("ASR_API_KEY has characters that no key has: check it") from error


def ask_all(
    tasks: list[Task],
    server: Server,
    format: str,
    jobs: int,
    on_progress: Callable[[float], object],
) -> Iterator[tuple[Task, str | AudioError]]:
    """The tasks in order with the service's text in a format, by `jobs` requests at a time.

    Those with `out` are written there. A service that is full is asked again when it says
    (Retry-After). `on_progress` is told how many recordings are done. Raises ConfigError before any
    work where the service cannot be reached, wants another key or has no such model, AsrError
    where it stays away.
    """
    with asyncio.Runner() as runner:
        answers = _answers(tasks, server, format, jobs, on_progress)
        while (answer := runner.run(_next(answers))) is not None:
            yield answer


_Answer = tuple[Task, str | AudioError]


async def _next(answers: AsyncIterator[_Answer]) -> _Answer | None:
    return await anext(answers, None)


async def _answers(
    tasks: list[Task], server: Server, format: str, jobs: int,
    on_progress: Callable[[float], object],
) -> AsyncIterator[_Answer]:  # fmt: skip
    async with server.connect(jobs) as client:
        names = await _models(client)
        if server.model is None and len(names) != 1:
            raise ConfigError(
                f"{server.url} has {', '.join(names) or 'no model'}: choose by --model NAME"
            )
        model = server.model or names[0]
        places, n_done = asyncio.Semaphore(jobs), 0

        async def answer(task: Task) -> _Answer:
            nonlocal n_done
            async with places:
                found = await _heard(client, task, model, format)
            if task.out and isinstance(found, str):
                write_text(task.out, found)
            n_done += 1
            on_progress(n_done)
            return task, found

        waiting: deque[asyncio.Task[_Answer]] = deque()
        try:
            for task in tasks:
                waiting.append(asyncio.create_task(answer(task)))
                if len(waiting) == 4 * jobs:  # more than are sent: a long one holds nobody up
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for unwanted in waiting:
                unwanted.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _models(client: httpx.AsyncClient) -> list[str]:
    try:
        reply = await client.get("models")
    except httpx.RequestError as error:
        raise ConfigError(
            f"{client.base_url} cannot be reached ({error}): is it running, is the address right?"
        ) from error
    try:
        return [str(model["id"]) for model in _json(_accepted(reply, client))["data"]]
    except AudioError as error:  # no recording is to blame yet
        raise AsrError(f"{reply.url}: {error}: try again later") from error
    except (LookupError, TypeError) as error:
        raise ConfigError(
            f'{reply.url} lists no models as OpenAI does ({{"data": [{{"id": …}}]}}): is it a '
            "service in OpenAI's shape?"
        ) from error


async def _heard(
    client: httpx.AsyncClient, task: Task, model: str, format: str
) -> str | AudioError:
    """What the service makes of a recording, or why this one cannot be had."""
    fields = {"model": model, "response_format": _ASKED[format]}
    # Its name stays at home; the ending helps services that go by it.
    name = "recording" + task.recording.suffix.encode("ascii", "ignore").decode()

    async def send() -> httpx.Response:
        with task.recording.open("rb") as file:
            return await client.post(
                "audio/transcriptions", data=fields, files={"file": (name, file)}
            )

    try:
        reply = _accepted(await _patiently(client, send), client)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return AudioError(f"{task.recording} cannot be opened ({reason}): check the path")
    except AudioError as error:
        return AudioError(f"{task.recording}: {error}", error.code)
    return _written(reply, format)


async def _patiently(
    client: httpx.AsyncClient, send: Callable[[], Awaitable[httpx.Response]]
) -> httpx.Response:
    """The reply of a service that may be full or restarting. Raises AsrError where it stays so."""
    waited, pause = 0.0, 1.0
    while True:
        try:
            reply = await send()
            if reply.status_code not in (429, 503):
                return reply
            why, wanted = _message(reply), _retry_after(reply)
        except httpx.RequestError as error:
            why, wanted = str(error) or type(error).__name__, None
        delay = pause if wanted is None else wanted
        if waited + delay > _PATIENCE:
            raise AsrError(
                f"{client.base_url} does not take more work ({why}): try again later, what --out "
                "holds is not done twice"
            )
        _log.debug("%s: %s; again in %g s", client.base_url, why, delay)
        await asyncio.sleep(delay)
        waited, pause = waited + delay, 2 * pause


def _retry_after(reply: httpx.Response) -> float | None:
    """What Retry-After says, in seconds from now; None where it says nothing."""
    value = reply.headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # TypeError: a date without a zone
        return None


def _accepted(reply: httpx.Response, client: httpx.AsyncClient) -> httpx.Response:
    """A reply that is good. Raises ConfigError, or AudioError where it is about a recording."""
    status, why = reply.status_code, _message(reply)
    if status in (401, 403):
        raise ConfigError(f"{client.base_url}: {why}: set ASR_API_KEY to a key that it takes")
    if status >= 500 or status in (413, 415) or _error(reply).get("param") == "file":
        raise AudioError(why, _error(reply).get("code") or "unreadable_audio")
    if not reply.is_success:
        raise ConfigError(f"{client.base_url}: {why}")
    return reply


def _message(reply: httpx.Response) -> str:
    """Why a request failed, as the service says it."""
    return _error(reply).get("message") or f"answered {reply.status_code} {reply.reason_phrase}"


def _error(reply: httpx.Response) -> dict[str, Any]:
    try:
        error = reply.json()["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": str(error)}


def _json(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError as error:
        raise ConfigError(
            f"{reply.url} answered with {reply.headers.get('content-type', 'nothing')}, not JSON: "
            "it is no service in OpenAI's shape"
        ) from error


def _written(reply: httpx.Response, format: str) -> str:
    """A reply as a file of the format, as `asr.transcription.writers` writes it."""
    if format == "json":
        return json.dumps(_json(reply), ensure_ascii=False) + "\n"
    if format == "txt":
        return reply.text.rstrip("\n") + "\n"
    return _as_tsv(reply.text) if format == "tsv" else reply.text


def _as_tsv(srt: str) -> str:
    rows = [
        f"{_milliseconds(start)}\t{_milliseconds(end)}\t{' '.join(text.splitlines())}\n"
        for start, end, text in _CUE.findall(srt)
    ]
    return "".join(["start\tend\ttext\n", *rows])


def _milliseconds(clock: str) -> int:
    hours, minutes, seconds = clock.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000 + int(seconds.replace(",", ""))
