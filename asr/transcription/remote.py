"""Recordings to a service that speaks OpenAI's API, and its transcripts as files.

Nothing is decoded here: the service gets the files as they are.
"""

import asyncio
import json
import logging
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from asr.errors import AsrError, AudioError, ConfigError
from asr.runtime.files import write_text
from asr.transcription.jobs import Task

# The response_format for each of our formats; tsv is made of the subtitles in srt.
_ASKED = {"txt": "text", "json": "verbose_json", "srt": "srt", "vtt": "vtt", "tsv": "srt"}
# Seconds that a recording waits for a service that is full or away before the job ends, and
# seconds that a response may take.
_PATIENCE, _DECODE = 120.0, 3600.0

_CUE = re.compile(r"^(\S+) --> (\S+)\n(.*?)\n\n", re.M | re.S)
_log = logging.getLogger(__name__)

Result = tuple[Task, str | AudioError]
Progress = Callable[[float], object]


def ask_all(
    tasks: list[Task], url: str, model: str | None, format: str, jobs: int, on_progress: Progress
) -> Iterator[Result]:
    """Yield the tasks in order with a service's text in a format, by `jobs` requests at a time.

    `url` may end in `/v1`; without `model` the service must have only one; the key is `ASR_API_KEY`
    of the environment. Tasks with `out` are written there. A service that is full is asked again
    after its Retry-After. `on_progress` gets the number of recordings that are done. Raises
    ConfigError before any work where the service cannot be reached, refuses the key or lacks the
    model, AsrError where it stays away.
    """

    async def following() -> Result | None:
        return await anext(results, None)

    with asyncio.Runner() as runner:
        results = _results(tasks, _connect(url, jobs), model, format, jobs, on_progress)
        while (result := runner.run(following())) is not None:
            yield result


def _connect(url: str, jobs: int) -> httpx.AsyncClient:
    """Return a client of `jobs` connections. Raises ConfigError for an invalid URL."""
    key = os.fsencode(os.environ.get("ASR_API_KEY", "").strip())
    try:
        return httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1") + "/v1/",
            headers={b"authorization": b"Bearer " + key} if key else {},
            limits=httpx.Limits(max_connections=jobs),
            timeout=httpx.Timeout(30, read=_DECODE, pool=None),
        )
    except httpx.InvalidURL as error:
        raise ConfigError(f"--server {url}: {error}: write http://HOST:PORT") from error


async def _results(
    tasks: list[Task], client: httpx.AsyncClient, model: str | None, format: str, jobs: int,
    on_progress: Progress,
) -> AsyncIterator[Result]:  # fmt: skip
    async with client:
        name = await _find_model(client, model)
        slots, n_done = asyncio.Semaphore(jobs), 0

        async def transcribe(task: Task) -> Result:
            nonlocal n_done
            async with slots:
                found = await _transcribe(client, task, name, format)
            if task.out and isinstance(found, str):
                write_text(task.out, found)
            n_done += 1
            on_progress(n_done)
            return task, found

        waiting: deque[asyncio.Task[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(asyncio.create_task(transcribe(task)))
                if len(waiting) == 4 * jobs:  # more than are sent: a long one delays no others
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for unwanted in waiting:
                unwanted.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _find_model(client: httpx.AsyncClient, model: str | None) -> str:
    """Return the model to ask for, after a request that shows that the service can be reached."""
    try:
        reply = await client.get("models")
        names = [str(each["id"]) for each in _accepted(reply, client).json()["data"]]
    except httpx.RequestError as error:
        raise ConfigError(
            f"{client.base_url} cannot be reached ({error}): is it running, is it http://HOST:PORT?"
        ) from error
    except AudioError as error:  # no recording is at fault yet
        raise AsrError(f"{reply.url}: {error}: try again later") from error
    except (ValueError, LookupError, TypeError) as error:
        raise _foreign(reply) from error
    if model is None and len(names) != 1:
        known = ", ".join(names) or "no model"
        raise ConfigError(f"{client.base_url} has {known}: choose by --model NAME")
    return model or names[0]


async def _transcribe(
    client: httpx.AsyncClient, task: Task, model: str, format: str
) -> str | AudioError:
    """Return the service's text of a recording, or why there is none."""
    fields = {"model": model, "response_format": _ASKED[format]}
    # File names are not sent, only the suffix, which some services need.
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
    return _as_file(reply, format)


async def _patiently(
    client: httpx.AsyncClient, send: Callable[[], Awaitable[httpx.Response]]
) -> httpx.Response:
    """Return the reply of a service that may be full or restarting. Raises AsrError in the end."""
    waited, pause = 0.0, 1.0
    while True:
        try:
            reply = await send()
            if reply.status_code not in (429, 503):
                return reply
            reason, wanted = _reason(reply), _retry_after(reply)
        except httpx.RequestError as error:
            reason, wanted = str(error) or type(error).__name__, None
        delay = pause if wanted is None else wanted
        if waited + delay > _PATIENCE:
            raise AsrError(
                f"{client.base_url} does not accept more work ({reason}): try again later, "
                "recordings that --out holds are not sent again"
            )
        _log.debug("%s: %s; again in %g s", client.base_url, reason, delay)
        await asyncio.sleep(delay)
        waited, pause = waited + delay, 2 * pause


def _retry_after(reply: httpx.Response) -> float | None:
    """Return the seconds of Retry-After; None where it is missing or invalid."""
    value = reply.headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # TypeError: a date without a time zone
        return None


def _accepted(reply: httpx.Response, client: httpx.AsyncClient) -> httpx.Response:
    """Return a successful reply. Raises ConfigError, or AudioError if a recording is at fault."""
    status, error, reason = reply.status_code, _error(reply), _reason(reply)
    if status in (401, 403):
        raise ConfigError(f"{client.base_url}: {reason}: set ASR_API_KEY to a valid key")
    if status >= 500 or status in (413, 415) or error.get("param") == "file":
        raise AudioError(reason, error.get("code") or "unreadable_audio")
    if not reply.is_success:
        raise ConfigError(f"{client.base_url}: {reason}")
    return reply


def _reason(reply: httpx.Response) -> str:
    """Return why a request failed, in the service's words."""
    return _error(reply).get("message") or f"answered {reply.status_code} {reply.reason_phrase}"


def _error(reply: httpx.Response) -> dict[str, str]:
    """Return the error of a reply in OpenAI's shape; empty where there is none."""
    try:
        error = reply.json()["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": str(error)}


def _foreign(reply: httpx.Response) -> ConfigError:
    kind = reply.headers.get("content-type", "an unknown type")
    return ConfigError(f"{reply.url} answered in {kind}, not in OpenAI's shape: check --server")


def _as_file(reply: httpx.Response, format: str) -> str:
    """Return a reply as a file of the format, as `asr.transcription.writers` writes it."""
    if format == "json":
        try:
            return json.dumps(reply.json(), ensure_ascii=False) + "\n"
        except ValueError as error:
            raise _foreign(reply) from error
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
