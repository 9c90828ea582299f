"""The measurement of one case, in a process of its own, so that only its memory is counted."""

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
from asr.model.encoder import Encoder
from asr.model.inference.sparse import prepare_for_inference
from asr.model.projection import DenseConfig
from asr.model.transformer import ModelConfig
from asr.runtime.memory import keep_buffers
from asr.runtime.processes import end_with_parent

_LARGEST_BATCH = 1024
_MIB = 2**20
# Out of memory, the kernel sends SIGKILL and C++ aborts.
_OUT_OF_MEMORY = (-signal.SIGKILL, -signal.SIGABRT)


def measure(
    case: BenchmarkCase, device: torch.device, batch: int | None, memory_gib: float | None
) -> Measurement:
    """Measure a case with `batch` sequences.

    Without `batch`, it takes the largest batch with which the Transformer trains on the GPU. On a
    CPU it uses one thread, and at most `memory_gib` (default: all that is free). Raises AsrError
    where the process dies for another reason than memory.
    """
    context = _fresh_processes()
    ours, theirs = context.Pipe()
    args = (case, device, batch, memory_gib, theirs)
    process = context.Process(target=_work, args=args, daemon=True)
    process.start()
    theirs.close()
    try:
        batch, found = ours.recv()
    except EOFError:
        found = None
    process.join()
    if process.exitcode and process.exitcode not in _OUT_OF_MEMORY:
        raise AsrError(f"{case}: its process died with {process.exitcode}: see its traceback")
    seconds, deviation, memory = found or (None, None, None)
    return Measurement(
        **case.model_dump(), batch=batch or 1, seconds=seconds, deviation=deviation,
        memory_mib=memory, parameters=case.count_parameters(),
        outcome="measured" if found else "out of memory",
    )  # fmt: skip


def _fresh_processes() -> ForkServerContext:
    """Return a context whose processes are forked from one that has only imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent alone
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, handler)
    return context


def _work(
    case: BenchmarkCase, device: torch.device, batch: int | None, memory_gib: float | None,
    answer: Connection,
) -> None:  # fmt: skip
    """Measure the case and send the batch and the measurement, None if out of memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    else:
        _warm_up(case)
        _limit(memory_gib or _field("/proc/meminfo", "MemAvailable") / 2**20)
    try:
        batch = batch or _largest_batch(case)
        found = _measure(case, device, batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        found = None
    answer.send((batch, found))


def _measure(case: BenchmarkCase, device: torch.device, batch: int) -> tuple[float, float, float]:
    """Return the mean and standard deviation of the seconds, and the peak of memory in MiB."""
    torch.manual_seed(0)
    on_cpu = device.type == "cpu"
    before = _reset_peak() if on_cpu else 0.0
    if on_cpu and case.mode == "training":
        keep_buffers()  # as training does
    run = _runner(case, case.build().to(device), batch)
    run()
    memory = _peak() - before if on_cpu else torch.cuda.max_memory_allocated() / _MIB
    seconds = [_seconds(run, on_cpu) for _ in range(case.runs)]
    return statistics.mean(seconds), statistics.pstdev(seconds), memory


def _runner(case: BenchmarkCase, model: nn.Module, batch: int) -> Callable[[], None]:
    """Return a function that runs a pass on random input, in training with the backward pass."""
    is_training = case.mode == "training"
    model.train(is_training)
    if not is_training:
        prepare_for_inference(model)  # as a recognizer does
    device = next(model.parameters()).device
    d_model = next(m for m in model.modules() if isinstance(m, nn.LayerNorm)).normalized_shape[0]
    x_BSD = torch.randn(batch, case.length, d_model, device=device)
    mask_BS = torch.ones(batch, case.length, dtype=torch.bool, device=device)

    def run() -> None:
        kernel = sdpa_kernel(SDPBackend.MATH) if case.forms_matrix else nullcontext()
        with kernel, torch.set_grad_enabled(is_training):
            y_BSD: Tensor = model(x_BSD, mask_BS)
            if is_training:
                torch.autograd.backward(y_BSD.sum())
                model.zero_grad()

    return run


def _seconds(run: Callable[[], None], on_cpu: bool) -> float:
    """Return the seconds of one run.

    On a CPU they are process time, which other programs change little, else wall time.
    """
    clock = time.process_time if on_cpu else time.perf_counter
    if not on_cpu:
        torch.cuda.synchronize()
    start = clock()
    run()
    if not on_cpu:
        torch.cuda.synchronize()
    return clock() - start


def _largest_batch(case: BenchmarkCase) -> int:
    """Return the largest power of two with which the Transformer trains at this length (3.2)."""
    baseline = case.model_copy(update={"model": BASELINE, "rank": None, "mode": "training"})
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


# --- memory on a CPU, from Linux's /proc -----------------------------------------------------


def _warm_up(case: BenchmarkCase) -> None:
    """Let the libraries allocate the memory that they keep, which is not the model's."""
    tiny = ModelConfig(d_model=24, d_inner=48, n_heads=12, projection=DenseConfig())
    _runner(case.model_copy(update={"length": 16}), Encoder(tiny), 1)()


def _limit(gib: float) -> None:
    """Let this process allocate at most so many GiB more than it has now."""
    most = _field("/proc/self/status", "VmData") * 1024 + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _reset_peak() -> float:
    """Set the peak to the memory that is resident now, and return it, in MiB."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return _peak()


def _peak() -> float:
    return _field("/proc/self/status", "VmHWM") / 1024


def _field(path: str, name: str) -> int:
    """Return the number of kB in a field of a file of /proc."""
    return int(Path(path).read_text("utf-8").split(f"{name}:")[1].split()[0])
