"""The processes of one run, as torchrun starts them: their ranks, sums and signals."""

import fcntl
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from asr.errors import ConfigError
from asr.runtime.files import LOCK, lock_folder, remove_stale

T = TypeVar("T")

# A process that waits longer than this assumes that the others died.
_TIMEOUT = timedelta(minutes=10)
# A signal within so many seconds is the same Ctrl-C: torchrun forwards it to processes that have
# got it from the terminal already.
_SAME_PRESS = 3.0
_SIOCGIFADDR = 0x8915  # Linux's request for the address of an interface, netdevice(7)


def rank() -> int:
    """Return the index of this process; process 0 writes the files."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return how many processes share the run, on all machines."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def init_distributed(device: torch.device) -> Iterator[torch.device]:
    """Connect the processes where torchrun started several; yield the device of this one.

    Raises ConfigError where there is no GPU for this process or the others cannot be reached.
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
    _choose_interface()
    try:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        where = ":".join(os.environ.get(name, "unset") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the processes of the run cannot meet at {where} ({reason}): start them by "
            "`torchrun --standalone`, or give it another --master-port; on several machines, name "
            "the network that joins them by GLOO_SOCKET_IFNAME"
        ) from error
    yield device
    dist.destroy_process_group()


def _choose_interface() -> None:
    """Let gloo use the network by which the first machine of several is reached.

    By default gloo takes the address of this machine's name, which often is a loopback.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") in (None, os.environ["WORLD_SIZE"]):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing
        except OSError:  # no network, or one of IPv6 alone
            return
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if found[20:24] == own and name != "lo":
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def rank_zero_first(work: Callable[[], T]) -> T:
    """Do the work in rank 0, then in the others; if rank 0 fails, the others exit silently."""
    if rank() and not int(all_reduce_sum(torch.tensor(0))):
        raise SystemExit(1)
    done = 0
    try:
        result = work()
        done = 1
    finally:
        if not rank():
            all_reduce_sum(torch.tensor(done))
    return result


def from_rank_zero(work: Callable[[], bytes]) -> bytes:
    """Do the work in rank 0 alone, and return its result in all processes.

    So other machines need none of the work's files. If it fails, the other processes exit silently.
    """
    content = rank_zero_first(lambda: b"" if rank() else work())
    if world_size() == 1:
        return content
    size = torch.tensor(len(content))
    dist.broadcast(size, 0)
    found = np.frombuffer(content, np.uint8) if not rank() else np.empty(int(size), np.uint8)
    data = torch.from_numpy(found.copy())
    dist.broadcast(data, 0)
    return data.numpy().tobytes()


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Lock a run's folder, and remove what killed processes left half written there.

    Rank 0 does so for all. If the run fails before it has written anything, the folders that it
    made are removed. Raises ConfigError if another run has the folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]

    def lock() -> AbstractContextManager[object]:
        if rank():
            return nullcontext()
        file = lock_folder(folder)
        for left in folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)
        remove_stale(folder.parent)  # other processes may write there, such as `asr evaluate`
        return file

    with rank_zero_first(lock):
        try:
            yield
        except BaseException:
            if made and not rank():
                _remove_unused(made)
            raise


def _remove_unused(made: list[Path]) -> None:
    """Remove the folders that a run made, innermost first, if they hold nothing but its lock."""
    with suppress(OSError):  # why the run ends is what counts
        if [path.name for path in made[0].iterdir()] == [LOCK]:
            (made[0] / LOCK).unlink()  # while it is locked: no other process can have it
            for folder in made:
                folder.rmdir()


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place; return it."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_reduce_gradients(parameters: Iterable[nn.Parameter], values: Tensor) -> Tensor:
    """Sum the gradients and `values` over all processes in one message; return `values`.

    A process without a batch takes part with zeros.
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
    """Return whether an error means that another process has ended or is out of reach."""
    return world_size() > 1 and (
        isinstance(error, dist.DistError)
        or any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "closed by peer"))
    )


def on_stop(ask: Callable[[int], None]) -> None:
    """Call `ask` on Ctrl-C or SIGTERM; the next one ends the run at once."""
    if threading.current_thread() is not threading.main_thread():
        return
    owner, pressed = os.getpid(), 0.0

    def handle(signum: int, _: FrameType | None) -> None:
        nonlocal pressed
        if os.getpid() != owner:  # a loader's worker, which its owner ends
            return
        if not pressed:
            pressed = time.monotonic()
            ask(signum)
        elif time.monotonic() - pressed > _SAME_PRESS:
            raise KeyboardInterrupt(signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
