"""One cell, measured in a process of its own: what it does to memory is its own affair."""

import ctypes
import gc
import multiprocessing
import resource
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from asr.efficiency.grid import BASELINE, BenchmarkCase, Measurement
from asr.errors import AsrError, is_out_of_memory
from asr.model.inference.sparse import prepare_for_inference
from asr.model.projection import DenseConfig
from asr.model.transformer import Encoder, ModelConfig
from asr.runtime.memory import keep_buffers
from asr.runtime.processes import end_with_parent

_LARGEST_BATCH = 1024
_MIB = 2**20
# What the kernel sends when memory is out, and what C++ does when it finds none.
_OUT_OF_MEMORY = (-signal.SIGKILL, -signal.SIGABRT)


def measure(
    cell: BenchmarkCase, device: torch.device, batch: int | None, memory_gib: float | None
) -> Measurement:
    """Time and memory of a cell; without a `batch`, of the largest that fits on the GPU.

    On a CPU, one thread; more than `memory_gib` (by default, what is free) is out of memory.
    Raises AsrError where the process dies of anything else.
    """
    context = _fresh_processes()
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_work, args=(cell, device, batch, memory_gib, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        batch, found = ours.recv()
    except EOFError:
        found = None
    process.join()
    if process.exitcode and process.exitcode not in _OUT_OF_MEMORY:
        raise AsrError(f"{cell}: its process died with {process.exitcode}: see its traceback")
    seconds, deviation, memory = found or (None, None, None)
    return Measurement(
        **cell.model_dump(), batch=batch or 1, seconds=seconds, deviation=deviation,
        memory_mib=memory, parameters=cell.count_parameters(),
        outcome="measured" if found else "out of memory",
    )  # fmt: skip


def _fresh_processes() -> ForkServerContext:
    """Forks of a process that has imported torch and computed nothing: fresh ones, sooner."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, heard)
    return context


def _work(
    cell: BenchmarkCase, device: torch.device, batch: int | None, memory_gib: float | None,
    answer: Connection,
) -> None:  # fmt: skip
    """Send the batch and what was found, None where memory was out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    else:
        _warm_up(cell)
        _limit(memory_gib or _field("/proc/meminfo", "MemAvailable") / 2**20)
    try:
        batch = batch or _largest_batch(cell)
        found = _measure(cell, device, batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        found = None
    answer.send((batch, found))


def _measure(cell: BenchmarkCase, device: torch.device, batch: int) -> tuple[float, float, float]:
    """Mean and deviation of seconds, MiB at the peak."""
    torch.manual_seed(0)
    on_cpu = device.type == "cpu"
    before = _forget_peak() if on_cpu else 0.0
    if on_cpu and cell.mode == "training":
        keep_buffers()  # as training does
    run = _runner(cell, cell.build().to(device), batch)
    run()
    memory = _peak() - before if on_cpu else torch.cuda.max_memory_allocated() / _MIB
    seconds = [_seconds(run, on_cpu) for _ in range(cell.runs)]
    return statistics.mean(seconds), statistics.pstdev(seconds), memory


def _runner(cell: BenchmarkCase, model: nn.Module, batch: int) -> Callable[[], None]:
    """A pass over random input, forward, or in training forward and back."""
    is_training = cell.mode == "training"
    model.train(is_training)
    if not is_training:
        prepare_for_inference(model)  # as a recogniser does
    device = next(model.parameters()).device
    d_model = next(m for m in model.modules() if isinstance(m, nn.LayerNorm)).normalized_shape[0]
    x_BSD = torch.randn(batch, cell.length, d_model, device=device)
    mask_BS = torch.ones(batch, cell.length, dtype=torch.bool, device=device)

    def run() -> None:
        matrix = sdpa_kernel(SDPBackend.MATH) if cell.model == "matrix" else nullcontext()
        with matrix, torch.set_grad_enabled(is_training):
            y_BSD: Tensor = model(x_BSD, mask_BS)
            if is_training:
                y_BSD.sum().backward()
                model.zero_grad()

    return run


def _seconds(run: Callable[[], None], on_cpu: bool) -> float:
    """Of one run: the processor's own, so that other work counts little, or the GPU's."""
    if on_cpu:
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _largest_batch(cell: BenchmarkCase) -> int:
    """The largest power of two with which the Transformer trains at this length (thesis 3.2)."""
    baseline = cell.model_copy(update={"model": BASELINE, "rank": None, "mode": "training"})
    model, batch = baseline.build().cuda(), 1
    try:
        while batch < _LARGEST_BATCH:
            _runner(baseline, model, 2 * batch)()
            batch *= 2
    except torch.OutOfMemoryError:
        pass
    del model
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return batch


# --- a CPU's memory, as Linux tells it -------------------------------------------------------


def _warm_up(cell: BenchmarkCase) -> None:
    """Let the libraries take what they keep: it is no part of a model."""
    tiny = ModelConfig(d_model=24, d_inner=48, n_heads=12, projection=DenseConfig())
    _runner(cell.model_copy(update={"length": 16}), Encoder(tiny), 1)()


def _limit(gib: float) -> None:
    """Let this process have so much more memory than it has."""
    most = _field("/proc/self/status", "VmData") * 1024 + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _forget_peak() -> float:
    """Let the peak be what is resident now, in MiB, and return it."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return _peak()


def _peak() -> float:
    return _field("/proc/self/status", "VmHWM") / 1024


def _field(path: str, name: str) -> int:
    """A number of kB."""
    return int(Path(path).read_text("utf-8").split(f"{name}:")[1].split()[0])
