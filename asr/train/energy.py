"""Measure what a run costs, over all its sessions."""

import logging
import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from asr.bundle import Bundle
from asr.model.flops import operations_of_step
from asr.reporting.cost import Cost

_UNKNOWN = {"energy_kwh": None, "metered_kwh": None, "co2_kg": None}
# codecarbon's name of processors whose energy it reads from a counter; it estimates others.
_METERED = "CPU(Intel Rapl)"


class CostMeter(Callback):
    """Adds up a run's cost; `total` is in the run's state, so that a resumed session continues it.

    What a killed session spent after its last saved state is not counted.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.operations_of = operations_of_step(bundle.model, bundle.config.features.n_freqs)
        self.before = Cost(core_seconds=0.0)
        self.start: float | None = None
        self.core_start: float | None = None
        self.operations = 0.0
        self.energy: Energy | None = None

    @property
    def total(self) -> Cost:
        """Return the cost of all sessions so far."""
        if self.start is None:
            return self.before
        seconds = time.monotonic() - self.start
        cores = None if self.core_start is None else _core_seconds() - self.core_start
        energy = self.energy.read() if self.energy else _UNKNOWN
        now = Cost(seconds=seconds, core_seconds=cores, operations=self.operations, **energy)
        return self.before + now

    def setup(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Begin a session. On a single machine, the first process measures the energy for all."""
        if trainer.is_global_zero and trainer.num_nodes == 1:
            self.energy = Energy.of("process" if trainer.world_size == 1 else "machine")
        self.start = time.monotonic()
        self.core_start = _core_seconds() if trainer.world_size == 1 else None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step's operations, assumed to be similar in all processes."""
        for part in batch.batches:
            utterances, frames, _ = part.feats_BTF.shape
            tokens = part.tokens_BU.shape[1] - 1
            self.operations += trainer.world_size * self.operations_of(utterances, frames, tokens)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """End the session."""
        self.before, self.start = self.total, None
        if self.energy:
            self.energy.stop()

    on_exception = teardown

    def state_dict(self) -> dict[str, Any]:
        """Return the cost so far."""
        return self.total.model_dump()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the cost of earlier sessions."""
        self.before = Cost.model_validate(state_dict)


def _core_seconds() -> float:
    """Return the processor time of this process and of its children, such as readers of data."""
    return sum(map(_seconds_of, multiprocessing.active_children())) + sum(os.times()[:4])


def _seconds_of(process: BaseProcess) -> float:
    """Return the processor time of a running process; 0 on a system that does not show it."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # proc(5): utime to cstime


class Energy:
    """codecarbon's offline tracker. It uses no network and no files, and prints nothing.

    A country or a known processor power can be set in codecarbon's own way, such as
    CODECARBON_COUNTRY_ISO_CODE=CHN; without a country the world's mean electricity is assumed.
    """

    def __init__(self, mode: str) -> None:
        from codecarbon import OfflineEmissionsTracker
        from codecarbon.output_methods.base_output import BaseOutput

        logging.getLogger("codecarbon").setLevel(logging.CRITICAL)

        class LastReading(BaseOutput):
            total: Any = None

            def out(self, total: Any, delta: Any) -> None:
                self.total = total

        self.reading = LastReading()
        self.tracker = OfflineEmissionsTracker(
            output_methods=[],
            output_handlers=[self.reading],
            emissions_endpoint=None,
            electricitymaps_api_token=None,
            allow_multiple_runs=True,  # else it takes over SIGINT and SIGTERM
            tracking_mode=mode,
            log_level=logging.CRITICAL,
        )
        self.tracker.start()

    @classmethod
    def of(cls, mode: str) -> "Energy | None":
        """Return a running tracker of this `process` or of the `machine`, None where it fails."""
        try:
            return cls(mode)
        except Exception:  # not installed, or an unknown machine: train without it
            return None

    def read(self) -> dict[str, Any]:
        """Return the energy (kWh) and CO2 (kg) since the start, as fields of a Cost."""
        self.tracker.flush()
        total = self.reading.total
        if total is None:
            return _UNKNOWN
        metered = total.gpu_energy
        if _METERED in map(repr, self.tracker._hardware):
            metered += total.cpu_energy
        return {
            "energy_kwh": total.energy_consumed,
            "metered_kwh": metered,
            "co2_kg": total.emissions,
            "grid": total.country_iso_code or "the world's mean",
        }

    def stop(self) -> None:
        """End the tracker's threads."""
        self.tracker.stop()
