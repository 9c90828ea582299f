"""`asr serve`: uvicorn, which stops accepting on the first signal and ends when all is answered."""

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Mapping
from types import FrameType

import uvicorn
from fastapi import FastAPI

from asr.errors import ConfigError
from serve.app import create_app
from serve.connections import backlog
from serve.engine.client import EngineClient
from serve.middleware.limits import Load
from serve.protocols import HttpProtocol, LiveProtocol
from serve.settings import Settings

logger = logging.getLogger("serve.server")

# After the first signal, for requests on their way: they get a 503 and not a closed connection.
_LAST_SECONDS = 1.0
_CLOSED = (errno.EADDRINUSE, errno.EACCES)
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def configure(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """Return uvicorn's settings."""
    return uvicorn.Config(
        app,
        host,
        port,
        http=HttpProtocol,
        ws=LiveProtocol,
        ws_max_size=2**21,  # the routes take less, and say so
        ws_per_message_deflate=False,  # speech hardly compresses; bombs would expand
        backlog=backlog(),
        # Longer than the minute after which load balancers close idle connections.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        log_config=None,
        access_log=False,
    )


class Server(uvicorn.Server):
    """The first SIGTERM, SIGINT or SIGHUP drains (503 for what is new); the second ends at once."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(configure(app, host, port))
        self._engine: EngineClient = app.state.engine
        self._load: Load = app.state.load
        self._idle_end = self._end = float("inf")
        self._next_report = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, and report what fails in the event loop."""
        asyncio.get_running_loop().set_exception_handler(self._report)
        await super().startup(sockets)

    def _report(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        """Log an error that has no caller; a lack of descriptors at most once a second."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _FULL):
            cause = error if isinstance(error, BaseException) else None
            logger.error("%s", context["message"], exc_info=cause)
        elif time.monotonic() > self._next_report:
            self._next_report = time.monotonic() + 1
            logger.error("no connection can be accepted: %s", error.strerror)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain, or end."""
        if self._load.draining:
            self.should_exit = self.force_exit = True
            self._engine.kill()
        self._load.draining = True
        self._idle_end = time.monotonic() + _LAST_SECONDS
        self._end = time.monotonic() + self._load.settings.grace_seconds

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; uvicorn asks ten times a second."""
        if self._load.draining and not self.should_exit:
            late = time.monotonic() > self._end
            if late:
                self._load.end()  # uploads get a 503
                self._engine.close()  # and so do other requests
                await asyncio.sleep(0.1)
            is_idle = time.monotonic() > self._idle_end and not self._load.n_accepted
            self.should_exit = late or is_idle
        return await super().on_tick(counter)


def check_port(host: str, port: int) -> None:
    """Raise ConfigError where the port is taken or forbidden, or there is no such host.

    It is called before the models are loaded, which takes a while. Other errors show when the port
    is opened.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            _check_address(family, kind, protocol, address)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"port {port} of {host} cannot be opened ({reason}): give another --port or --host, or "
            "end the program that has it"
        ) from error


def _check_address(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> None:
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno in _CLOSED:
            raise


def run(settings: Settings, host: str, port: int) -> None:
    """Serve until a signal. Raises as `check_port` and `create_app` do."""
    check_port(host, port)
    hosts = (*settings.allowed_hosts, host)
    app = create_app(settings.model_copy(update={"allowed_hosts": hosts}))
    server = Server(app, host, port)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run()
