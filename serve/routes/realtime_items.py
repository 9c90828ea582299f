"""From the results of a live session to the items and events of OpenAI's realtime transcription."""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from asr.joining import join_texts
from asr.normalization import normalize_text
from asr.transcription.transcript import Segment, StreamResult
from serve.routes.live_session import LiveSession
from serve.routes.realtime_schemas import LOGPROBS, Options
from serve.routes.responses import logprobs

Send = Callable[[str, dict[str, object]], Awaitable[None]]  # an event's type, and its fields

_BUFFER, _TEXT = "input_audio_buffer", "conversation.item.input_audio_transcription"


def new_id(kind: str) -> str:
    """Return an identifier such as `item_…`."""
    return f"{kind}_{secrets.token_hex(10)}"


class Conversation:
    """The items in their order, each announced when its audio is committed."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self._last: str | None = None

    async def commit(self, item: str) -> None:
        """Announce an item."""
        before = {"previous_item_id": self._last}
        self._last = item
        await self.send(f"{_BUFFER}.committed", {**before, "item_id": item})
        message = {
            "id": item,
            "object": "realtime.item",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        for state in ("added", "done"):
            await self.send(f"conversation.item.{state}", {**before, "item": message})


@dataclass(eq=False)
class Item:
    """An item whose text grows. A delta is more text; what was sent is never taken back."""

    conversation: Conversation
    options: Options
    id: str = field(default_factory=lambda: new_id("item"))
    is_begun: bool = False  # as speech
    is_committed: bool = False
    segments: list[Segment] = field(default_factory=list)
    _sent: str = ""

    async def begin(self, seconds: float) -> None:
        """Tell that speech begins, once."""
        if not self.is_begun:
            self.is_begun = True
            at = {"audio_start_ms": round(1000 * seconds)}
            await self.conversation.send(f"{_BUFFER}.speech_started", {**at, "item_id": self.id})

    async def stop(self, seconds: float) -> None:
        """Tell that speech ends."""
        at = {"audio_end_ms": round(1000 * seconds)}
        await self.conversation.send(f"{_BUFFER}.speech_stopped", {**at, "item_id": self.id})

    async def commit(self) -> None:
        """Announce the item, once."""
        if not self.is_committed:
            self.is_committed = True
            await self.conversation.commit(self.id)

    async def grow(self, running: str = "") -> str:
        """Send what the text has more than before; return it with that of the running segment."""
        texts = [*(segment.text for segment in self.segments), running]
        text = normalize_text(join_texts(texts), "keep")
        if text.startswith(self._sent) and text != self._sent:
            delta = text.removeprefix(self._sent)
            self._sent = text
            fields = {"item_id": self.id, "content_index": 0, "delta": delta}
            await self.conversation.send(f"{_TEXT}.delta", fields)
        return text

    async def complete(self, seconds: float) -> None:
        """Send the text, which is right also where the deltas are not."""
        text = await self.grow()
        fields: dict[str, object] = {
            "item_id": self.id,
            "content_index": 0,
            "transcript": text,
            "usage": {"type": "duration", "seconds": seconds},
        }
        if LOGPROBS in self.options.include:
            fields["logprobs"] = [each.model_dump() for each in logprobs(self.segments)]
        await self.conversation.send(f"{_TEXT}.completed", fields)


class Turn:
    """Audio up to a commit or a clear, which begins `start` seconds after the connection's first.

    With server VAD each segment that has text is an item, else the turn is one. So it is where a
    client commits silence.
    """

    def __init__(
        self, session: LiveSession, start: float, options: Options, conversation: Conversation
    ) -> None:
        self.session, self.options = session, options
        self.is_cleared = self.is_committed = False
        self._start, self._conversation, self._has_items = start, conversation, False
        self.item = Item(conversation, options)

    async def answer(self) -> None:
        """Send the events of the turn, until it ends. Raises why the session ended, if so."""
        if self.is_cleared:
            return
        take = self._take if self.options.vad else self._take_into_one
        async with aclosing(self.session.results()) as results:
            async for result in results:
                if self.is_cleared:
                    return
                await take(result)
        if self.is_cleared:
            return
        if not self.options.vad or (self.is_committed and not self._has_items):
            await self.item.commit()
            await self.item.complete(self.session.seconds)

    async def _take(self, result: StreamResult) -> None:
        item, segment = self.item, result.segment
        if not (result.text or item.is_begun):
            return  # silence
        await item.begin(self._start + _first(segment))
        if not result.is_final:
            await item.grow(result.text)
            return
        self.item, self._has_items = Item(self._conversation, self.options), True
        item.segments.append(segment)
        await item.stop(self._start + segment.end)
        await item.commit()
        await item.complete(segment.end - segment.start)

    async def _take_into_one(self, result: StreamResult) -> None:
        if result.is_final:
            self.item.segments.append(result.segment)
        await self.item.grow("" if result.is_final else result.text)


def _first(segment: Segment) -> float:
    """Return when the text of a segment begins."""
    return segment.tokens[0].start if segment.tokens else segment.start
