"""The processes of one run, as torchrun starts them: who they are, what they add up."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from asr.errors import ConfigError

T = TypeVar("T")

# Whoever waits longer than this for the others takes them for dead.
_TIMEOUT = timedelta(minutes=10)
# torchrun passes a Ctrl-C on to processes that had it from the terminal already.
_SAME_PRESS = 3.0  # seconds


def rank() -> int:
    """This process's number; 0 writes the files."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes share the run, on all machines."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def init_distributed(device: torch.device) -> Iterator[torch.device]:
    """Meet the other processes where torchrun started several; the device is this one's own.

    Raises ConfigError where there is no GPU for this process or the others cannot be met.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index >= torch.cuda.device_count():
            raise ConfigError(
                f"process {device.index} of this machine has no GPU, there are "
                f"{torch.cuda.device_count()}: start as many by --nproc-per-node"
            )
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                                timeout=_TIMEOUT)  # fmt: skip
    except (RuntimeError, ValueError) as error:
        where = ":".join(os.environ.get(name, "unset") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise ConfigError(
            f"the processes of the run cannot meet at {where} ({_first_line(error)}): start them "
            "by `torchrun --standalone`, or give it another --master-port"
        ) from error
    yield device
    dist.destroy_process_group()


def rank_zero_first(work: Callable[[], T]) -> T:
    """Let rank 0 do the work before the others do; where it fails, they end without a word."""
    if rank():
        if not int(all_reduce_sum(torch.tensor(0))):
            raise SystemExit(1)
        return work()
    done = 0
    try:
        result = work()
        done = 1
    finally:
        all_reduce_sum(torch.tensor(done))
    return result


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in its place."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_reduce_gradients(parameters: Iterable[nn.Parameter], values: Tensor) -> Tensor:
    """Sum the gradients over all processes, and in the same message `values`, which it returns.

    A process that had nothing to do takes part with zeros.
    """
    if world_size() == 1:
        return values
    parameters = list(parameters)
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    parts = [*(p.grad for p in parameters if p.grad is not None), values]
    total = all_reduce_sum(torch.cat([part.flatten() for part in parts]))
    *sums, values = total.split([part.numel() for part in parts])
    for part, found in zip(parts, sums, strict=False):
        part.copy_(found.view(part.shape))
    return values


def is_lost_peer(error: Exception) -> bool:
    """Whether an error means that another process is gone or out of reach."""
    return world_size() > 1 and (
        isinstance(error, dist.DistError)
        or any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "closed by peer"))
    )


def on_stop(ask: Callable[[int], None]) -> None:
    """Let Ctrl-C or SIGTERM ask for the run's end; the next one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        return
    owner, pressed = os.getpid(), 0.0

    def handle(signum: int, _: FrameType | None) -> None:
        nonlocal pressed
        if os.getpid() != owner:  # a loader's worker, whose end its owner sees to
            return
        if not pressed:
            pressed = time.monotonic()
            ask(signum)
        elif time.monotonic() - pressed > _SAME_PRESS:
            raise KeyboardInterrupt(signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
