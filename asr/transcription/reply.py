"""Turn the answer of a service of any kind into a transcript's file; nothing in it is trusted."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import httpx

from asr.errors import ConfigError

_SPAN = re.compile(r"(\S+) --> (\S+)")
_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})(?:[,.](\d{1,3}))?")
WARNINGS = "x-asr-warnings"  # a header: sentences encoded as in a URL, with commas between
_LONGEST = 300  # characters of a service's own words in a message


@dataclass(frozen=True)
class Reply:
    """A response as a whole."""

    status: int
    url: str
    headers: httpx.Headers
    content: bytes

    @property
    def text(self) -> str:
        """Return the body as UTF-8, whatever the headers call it."""
        return self.content.decode("utf-8", "replace")

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a JSON object; none where it is no object, or nested too deeply."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def error(self) -> dict[str, Any]:
        """Return the error in OpenAI's shape; empty where there is none."""
        error = self.fields.get("error") or {}
        return error if isinstance(error, dict) else {"message": error}

    @property
    def reason(self) -> str:
        """Return why a request failed, in the service's words."""
        return shortened(str(self.error.get("message") or f"answered {self.status}"))

    @property
    def warnings(self) -> list[str]:
        """Return the warnings that our service puts in a header beside a text without fields."""
        sentences = self.headers.get(WARNINGS, "").split(",")
        return [shortened(unquote(sentence.strip())) for sentence in sentences if sentence.strip()]

    @property
    def retry_after(self) -> float:
        """Return the seconds of Retry-After; at most 0 where it is missing, invalid or past.

        A date is compared with the service's own, for the clocks of two machines may differ.
        """
        value, sent = self.headers.get("retry-after", ""), self.headers.get("date")
        if value.isdecimal():
            return float(value)
        try:
            now = parsedate_to_datetime(sent) if sent else datetime.now(UTC)
            return (parsedate_to_datetime(value) - now).total_seconds()
        except (TypeError, ValueError, OverflowError):  # TypeError: a date without a time zone
            return 0.0

    def foreign(self) -> ConfigError:
        """Return the error for a service of another kind."""
        kind = shortened(self.headers.get("content-type", "an unknown type"))
        return ConfigError(f"{self.url} answered in {kind}, not in OpenAI's shape: check --server")

    def as_file(self, format: str) -> str:
        """Return a file of the format, as `asr.transcription.writers` writes it.

        Raises ConfigError where the body is of another kind.
        """
        if format == "json":
            if not self.fields:
                raise self.foreign()
            try:
                text = json.dumps(self.fields, ensure_ascii=False, allow_nan=False)
            except ValueError as error:  # NaN, or a number beyond all floats, which no JSON has
                raise self.foreign() from error
            # JSON can escape half a surrogate pair, which is no character of UTF-8.
            return text.encode("utf-8", "backslashreplace").decode() + "\n"
        if format == "txt":
            return self.text.rstrip("\n") + "\n"
        return self._as_tsv() if format == "tsv" else self.text

    def _as_tsv(self) -> str:
        """Return subtitles in srt as tsv; blocks without times belong to the text before them."""
        rows: list[list[str]] = []
        for block in self.text.replace("\r\n", "\n").strip("\ufeff\n").split("\n\n"):
            lines = block.split("\n")
            found = ((i, _SPAN.fullmatch(line.strip())) for i, line in enumerate(lines))
            n_before, span = next(((i, m) for i, m in found if m), (-1, None))
            if span:
                rows.append([self._milliseconds(span[1]), self._milliseconds(span[2]), ""])
            elif block and not rows:
                raise self.foreign()
            if rows:
                rows[-1][2] += " " + " ".join(lines[n_before + 1 :])
        texts = (f"{start}\t{end}\t{' '.join(text.split())}\n" for start, end, text in rows)
        return "".join(["start\tend\ttext\n", *texts])

    def _milliseconds(self, clock: str) -> str:
        parts = _CLOCK.fullmatch(clock)
        if parts is None:
            raise self.foreign()
        hours, minutes, seconds = (int(part or 0) for part in parts.groups()[:3])
        return str((hours * 60 + minutes) * 60_000 + seconds * 1000 + int(f"{parts[4] or 0:0<3}"))


def shortened(text: str) -> str:
    """Return a service's words, cut to the length of a message."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
