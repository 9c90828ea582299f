"""Logs: a JSON object a line on standard error; sizes, times, an id, nothing a client said."""

import json
import logging
import time
from typing import Any


class JsonFormatter(logging.Formatter):
    """A record's time, level, logger, message and what was given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        values: dict[str, Any] = {
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
    """Let the service's loggers write so; those of others stay as they are."""
    own = logging.getLogger("serve")
    if not own.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        own.addHandler(handler)
        own.setLevel(logging.INFO)
        own.propagate = False
