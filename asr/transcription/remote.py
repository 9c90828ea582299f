"""Send recordings to a service that speaks OpenAI's API, and write its transcripts to files.

Nothing is decoded here: the service gets the files as they are.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
from h11 import LocalProtocolError

from asr.errors import AsrError, AudioError, ConfigError
from asr.transcription.jobs import Task, write_transcript
from asr.transcription.reply import Reply, shortened

# The response_format for each of our formats; tsv is made of the subtitles in srt.
_ASKED = {"txt": "text", "json": "verbose_json", "srt": "srt", "vtt": "vtt", "tsv": "srt"}
# Seconds that a service may refuse a recording, being full or away, until the job ends; and seconds
# that a request and its response may take.
_PATIENCE, _DECODE = 120.0, 3600.0
_MAX_REPLY = 2**26  # bytes; an hour of speech is about 3 MB of verbose_json

_log = logging.getLogger(__name__)

Result = tuple[Task, str | AudioError]
Progress = Callable[[float], object]


def ask_all(
    tasks: list[Task], url: str, model: str | None, format: str, jobs: int, on_progress: Progress,
    hotwords: str = "",
) -> Iterator[Result]:  # fmt: skip
    """Yield the tasks in order with a service's text in a format, by `jobs` requests at a time.

    `url` may end in `/v1`; without `model` the service must have only one; the key is `ASR_API_KEY`
    of the environment. Tasks with `out` are written there. A service that is full is asked again
    after its Retry-After. `hotwords` is a text with one of them per line. `on_progress` gets the
    number of recordings that are done. Raises ConfigError before any work where the service cannot
    be reached, refuses the key or lacks the model, AsrError where it stays away.
    """

    async def following() -> Result | None:
        return await anext(results, None)

    with asyncio.Runner() as runner:
        results = _results(tasks, _connect(url, jobs), model, format, jobs, on_progress, hotwords)
        while (result := runner.run(following())) is not None:
            yield result


def _connect(url: str, jobs: int) -> httpx.AsyncClient:
    """Return a client of `jobs` connections. Raises ConfigError for an invalid URL."""
    key = os.fsencode(os.environ.get("ASR_API_KEY", "").strip())
    try:
        return httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1") + "/v1/",
            headers={
                b"accept-encoding": b"identity",
                **({b"authorization": b"Bearer " + key} if key else {}),
            },
            limits=httpx.Limits(max_connections=jobs),
            timeout=httpx.Timeout(30, read=_DECODE, pool=None),
        )
    except httpx.InvalidURL as error:
        raise ConfigError(f"--server {url}: {error}: write http://HOST:PORT") from error


async def _results(
    tasks: list[Task], client: httpx.AsyncClient, model: str | None, format: str, jobs: int,
    on_progress: Progress, hotwords: str,
) -> AsyncIterator[Result]:  # fmt: skip
    async with client:
        fields = {"model": await _find_model(client, model), "response_format": _ASKED[format]}
        fields |= {"hotwords": hotwords} if hotwords else {}
        slots, n_done = asyncio.Semaphore(jobs), 0

        async def transcribe(task: Task) -> Result:
            nonlocal n_done
            async with slots:
                found = await _transcribe(client, task, fields, format)
            if isinstance(found, str):
                found = write_transcript(task, found) or found
            n_done += 1
            on_progress(n_done)
            return task, found

        waiting: deque[asyncio.Task[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(asyncio.create_task(transcribe(task)))
                if len(waiting) == 4 * jobs:  # more than are sent: a long one delays no other
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
        reply = await _exchange(client, "GET", "models")
        names = [str(each["id"]) for each in _accepted(reply, client).fields["data"]]
    except httpx.RequestError as error:
        raise ConfigError(
            f"{client.base_url} cannot be reached ({error}): is it running, is it http://HOST:PORT?"
        ) from error
    except AudioError as error:  # no recording is at fault yet
        raise AsrError(f"{reply.url}: {error}: try again later") from error
    except (LookupError, TypeError) as error:
        raise reply.foreign() from error
    if model is None and len(names) != 1:
        known = shortened(", ".join(names)) or "no model"
        raise ConfigError(f"{client.base_url} has {known}: choose by --model NAME")
    name = model or names[0]
    try:
        name.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can escape
        raise ConfigError(
            f"{client.base_url}: the model's name {name!a:.300} is not Unicode: choose "
            "another by --model NAME"
        ) from error
    return name


async def _transcribe(
    client: httpx.AsyncClient, task: Task, fields: dict[str, str], format: str
) -> str | AudioError:
    """Return the service's text of a recording, or why there is none."""
    # File names are not sent, only the suffix, which some services need.
    name = "recording" + task.recording.suffix.encode("ascii", "ignore").decode()

    async def send() -> Reply:
        with task.open() as file:
            return await _exchange(
                client, "POST", "audio/transcriptions", data=fields, files={"file": (name, file)}
            )

    try:
        reply = _accepted(await _patiently(client, send), client)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return AudioError(f"{task.recording} cannot be opened ({reason}): check the path")
    except LocalProtocolError:  # its bytes are not as many as were announced
        return AudioError(f"{task.recording} changed while it was sent: send it when it is whole")
    except AudioError as error:
        return AudioError(f"{task.recording}: {error}", error.code)
    for sentence in reply.warnings:
        _log.warning("%s: %s", task.recording, sentence)
    return reply.as_file(format)


async def _exchange(client: httpx.AsyncClient, method: str, url: str, **body: Any) -> Reply:
    """Send a request and return its response.

    Raises ConfigError for a response that is too large or compressed, httpx.RequestError for all
    other failures.
    """
    content = bytearray()
    try:
        async with asyncio.timeout(_DECODE), client.stream(method, url, **body) as response:
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):  # a small response could unpack to any size
                raise ConfigError(
                    f"{response.url} answers in {shortened(encoding)}, though no compression was "
                    "asked for: check --server"
                )
            async for part in response.aiter_raw():
                content += part
                if len(content) > _MAX_REPLY:
                    raise ConfigError(
                        f"{response.url} answers with more than {_MAX_REPLY >> 20} MiB: check "
                        "--server"
                    )
    except TimeoutError:
        raise httpx.ReadTimeout(f"no whole response in {_DECODE:g} seconds") from None
    return Reply(response.status_code, str(response.url), response.headers, bytes(content))


async def _patiently(client: httpx.AsyncClient, send: Callable[[], Awaitable[Reply]]) -> Reply:
    """Return the reply of a service that may be full or restarting.

    Raises AsrError where its refusals do not end in time, or AudioError where connections break
    while a recording is sent.
    """
    end, pause = float("inf"), 1.0
    while True:
        try:
            reply = await send()
            if reply.status not in (429, 503):
                return reply
            reason, delay, is_broken = reply.reason, max(pause, reply.retry_after), False
        except httpx.RequestError as error:
            reason, delay = str(error) or type(error).__name__, pause
            is_broken = isinstance(error, httpx.ReadError | httpx.WriteError)
        end = min(end, time.monotonic() + _PATIENCE)
        if time.monotonic() + delay > end and is_broken:
            raise AudioError(f"its connection breaks ({reason}): is it too large for the service?")
        if time.monotonic() + delay > end:
            raise AsrError(
                f"{client.base_url} does not accept more work ({reason}): try again later, "
                "recordings that --out holds are not sent again"
            )
        _log.debug("%s: %s; again in %g s", client.base_url, reason, delay)
        await asyncio.sleep(delay)
        pause *= 2


def _accepted(reply: Reply, client: httpx.AsyncClient) -> Reply:
    """Return a successful reply. Raises ConfigError, or AudioError if a recording is at fault."""
    status, error, reason = reply.status, reply.error, reply.reason
    if status in (401, 403):
        raise ConfigError(f"{client.base_url}: {reason}: set ASR_API_KEY to a valid key")
    if status >= 500 or status in (413, 415) or error.get("param") == "file":
        raise AudioError(reason, str(error.get("code") or "unreadable_audio"))
    if status in range(300, 400):
        address = shortened(reply.headers.get("location", "nowhere"))
        raise ConfigError(f"{reply.url} leads to {address}: give --server the final address")
    if status not in range(200, 300):
        raise ConfigError(f"{client.base_url}: {reason}")
    return reply
