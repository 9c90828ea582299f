"""Logs: one JSON object a line on standard error, with sizes, times and ids but no client data."""

import json
import logging
import time
from dataclasses import dataclass, field
from uuid import uuid4


@dataclass
class RequestRecord:
    """What the log says of a request; the routes fill it in as `scope["asr.record"]`."""

    request: str = field(default_factory=lambda: uuid4().hex)
    bytes: int = 0
    audio_seconds: float | None = None
    wait_seconds: float | None = None
    error: str | None = None


class JsonFormatter(logging.Formatter):
    """Format time, level, logger, message, and the values of `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        values: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


def configure_logging() -> None:
    """Format the records of the service, uvicorn and asyncio as JSON.

    A logger that has a handler, such as uvicorn's after its own command, keeps it. uvicorn's lines
    about requests and WebSockets contain addresses and query strings, so they are dropped. So are
    python_multipart's lines about errors in a form, which the client gets as a 400.
    """
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").addFilter(_is_about_no_client)
    for name in ("serve", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(JsonFormatter())
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False


def _is_about_no_client(record: logging.LogRecord) -> bool:
    return "WebSocket %s" not in str(record.msg)
