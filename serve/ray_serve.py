"""The service as an application of Ray Serve, whose tools start, scale and replace the replicas.

`serve run serve.ray_serve:application bundles=BUNDLE` is a command of Ray's; deploy/ray-serve.yaml
has more options. A replica is the whole service with a decoding process of its own; Ray's
proxies pass requests to the replicas, and a WebSocket stays with one.
"""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fastapi import FastAPI

from asr.errors import ConfigError
from serve.app import create_app
from serve.bundles import local_bundles
from serve.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application

_LAST_SECONDS = 5.0  # after the grace: Ray looks every two seconds whether requests are open


class Service:
    """A replica. Ray adds the app, and runs its lifespan."""

    app: FastAPI

    async def check_health(self) -> None:
        """Raise RuntimeError while the engine is not ready.

        Ray replaces a replica that fails three times.
        """
        if not self.app.state.engine.ready:
            raise RuntimeError("the engine process makes no progress")

    def __del__(self) -> None:
        """Remove the copies of bundles; Ray calls it once, after the lifespan."""
        if hasattr(self, "app"):  # else it could not be built
            self.app.state.copies.close()


def application(given: dict[str, object]) -> "Application":
    """Return the application for Ray Serve; `given` maps names of `Settings` to values.

    Other settings come from the environment of this process, not from that of the replicas. Raises
    ConfigError where a setting is invalid or no bundle is given.
    """
    settings = Settings.read(**given)
    if not settings.bundles:
        raise ConfigError("no model to serve: give bundles=URL, or a folder that all nodes have")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use to its makers
    from ray import serve

    def build() -> FastAPI:
        return create_replica(settings)

    deployment = serve.deployment(
        ray_actor_options={"num_gpus": int(settings.device.startswith("cuda"))},
        # Above the service's own limit, so that further requests get a 503 and no queue in a proxy.
        max_ongoing_requests=2 * settings.max_requests,
        graceful_shutdown_timeout_s=settings.grace_seconds + _LAST_SECONDS,
    )
    return deployment(serve.ingress(build)(Service)).bind()


def create_replica(settings: Settings) -> FastAPI:
    """Return the service of one replica, with a GPU only if Ray has given it one.

    Raises as `create_app` does.
    """
    import ray

    device = settings.device
    if device == "auto" and not ray.get_gpu_ids():
        device = "cpu"
    with ExitStack() as copies:
        bundles = tuple(local_bundles(settings.bundles, copies))
        app = create_app(settings.model_copy(update={"bundles": bundles, "device": device}))
        app.state.copies = copies.pop_all()
    return app
