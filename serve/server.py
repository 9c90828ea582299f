"""`asr serve`: uvicorn, which stops accepting on the first signal and ends when all is answered."""

import asyncio
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from serve.app import create_app
from serve.engine.client import EngineClient
from serve.middleware.limits import Load
from serve.settings import Settings


class Server(uvicorn.Server):
    """The first SIGTERM or SIGINT drains (503 for new requests); the second ends at once."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host,
                port,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
                ws_max_size=2**18,
                # Longer than the minute after which load balancers close idle connections.
                timeout_keep_alive=75,
            )
        )
        self._engine: EngineClient = app.state.engine
        self._load: Load = app.state.load
        self._end = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain, or end."""
        if self._load.draining:
            self.should_exit = self.force_exit = True
            self._engine.kill()
        self._load.draining = True
        self._end = time.monotonic() + self._load.settings.grace_seconds

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; uvicorn asks ten times a second."""
        if self._load.draining and not self.should_exit:
            late = time.monotonic() > self._end
            if late:
                self._engine.close()  # open requests get a 503
                await asyncio.sleep(0.1)
            self.should_exit = late or not self._load.n_accepted
        return await super().on_tick(counter)


def run(settings: Settings, host: str, port: int) -> None:
    """Serve until a signal. Raises as `create_app` does, before the port is opened."""
    Server(create_app(settings), host, port).run()
