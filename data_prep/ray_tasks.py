"""Ray as the engine of a preparation: the nodes of a cluster look at the recordings."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from asr.errors import AsrError
from asr.runtime.ray_cluster import connect, told

_PER_CORE = 2  # tasks in flight, so that no core waits for its next one
_RETRIES = 3  # of a task whose node is lost
T = TypeVar("T")
R = TypeVar("R")


class RayTasks:
    """Tasks of a cluster: `jobs` at a time, or two for each core, as nodes come and go."""

    def __init__(self, engine: str, jobs: int | None) -> None:
        """Raise ConfigError where no cluster answers."""
        self._ray, self._jobs = connect(engine), jobs

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield what a function returns for each task, in order; a lost one is done again.

        Raises AsrError where the function does, or a task was lost too often.
        """
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_call)
        given, running = self._ray.put(function), deque[Any]()
        try:
            for task in tasks:
                running.append(remote.remote(given, task))
                if len(running) >= self._room():
                    yield self._result(running.popleft())
            while running:
                yield self._result(running.popleft())
        finally:
            with suppress(ConnectionError):
                for reference in running:
                    self._ray.cancel(reference)

    def _room(self) -> int:
        return self._jobs or max(1, int(_PER_CORE * self._ray.cluster_resources().get("CPU", 1)))

    def _result(self, reference: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(reference)
        except RayTaskError as error:
            raise told(error) from error
        except (RayError, ConnectionError) as error:
            raise AsrError(
                f"the cluster has lost a task ({type(error).__name__}), {_RETRIES + 1} times where "
                "its node died: look whether the cluster runs, or start again with fewer --jobs"
            ) from error


def _call(function: Callable[[T], R], task: T) -> R:
    return function(task)
