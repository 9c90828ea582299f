"""`asr serve`: uvicorn that takes nothing new on the first signal and ends when all is answered."""

import asyncio
import logging
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from serve.app import create_app
from serve.engine.client import EngineClient
from serve.middleware.limits import Load
from serve.settings import Settings

logger = logging.getLogger("serve")

_LOGS: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "serve.logs.JsonFormatter"}},
    "handlers": {"json": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {"uvicorn": {"handlers": ["json"], "level": "INFO", "propagate": False}},
}


class Server(uvicorn.Server):
    """The first SIGTERM or SIGINT drains, with 503 for what is new; the second ends at once."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host,
                port,
                log_config=_LOGS,
                access_log=False,
                timeout_graceful_shutdown=1,
                ws_max_size=2**18,
                # Longer than the minute after which load balancers close idle connections.
                timeout_keep_alive=75,
            )
        )
        self._worker: EngineClient = app.state.worker
        self._load: Load = app.state.load
        self._end = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain, or end."""
        if self._load.draining:
            self.should_exit = self.force_exit = True
            self._worker.kill()
        self._load.draining = True
        self._end = time.monotonic() + self._load.settings.grace_seconds

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._load.draining and not self.should_exit:
            late = time.monotonic() > self._end
            if late:
                self._worker.close()  # what is left gets a 503
                await asyncio.sleep(0.1)
            self.should_exit = late or not self._load.n_accepted
        return await super().on_tick(counter)


def run(settings: Settings, host: str, port: int) -> None:
    """Serve until a signal. Raises as `create_app` does, before the port is opened."""
    Server(create_app(settings), host, port).run()
