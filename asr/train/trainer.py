"""Lightning's trainer runs the epochs, in one process or in many; what stops it is explained."""

import logging
import os
import signal
import warnings
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from asr.config import Config
from asr.errors import AsrError, ConfigError, is_out_of_memory
from asr.train.callbacks import MemoryProbe
from asr.train.checkpoints import Checkpoints
from asr.train.datamodule import SpeechDataModule
from asr.train.distributed import is_lost_peer, world_size
from asr.train.energy import CostMeter
from asr.train.module import SpeechModule
from asr.train.progress import EpochLines

log = logging.getLogger(__name__)


class SummedGradients(DDPStrategy):
    """Lightning's processes without torch's wrapper: the task sums the gradients itself.

    The wrapper would take the mean over processes, which is another step where they have unlike
    numbers of tokens, and it waits for ever where one has no work.
    """

    def configure_ddp(self) -> None:
        """Leave the module as it is."""


def fit(
    config: Config,
    task: SpeechModule,
    corpus: SpeechDataModule,
    checkpoints: Checkpoints,
    cost: CostMeter,
    device: torch.device,
) -> None:
    """Run the epochs, from the last state if there is one.

    Raises AsrError where memory, a loader's worker or another process gave out, and
    KeyboardInterrupt with the signal's number, the state saved, where a signal asked for the end.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning|lhotse|torch")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = _trainer(config, corpus, checkpoints, cost, device)
        begun = checkpoints.last if checkpoints.last.is_file() else None
        try:
            trainer.fit(task, corpus, ckpt_path=begun, weights_only=True)
        except SystemExit:  # what Lightning makes of Ctrl-C
            stop = task.asked or (signal.SIGTERM if task.stopping else signal.SIGINT)
            raise KeyboardInterrupt(stop) from None
        except (RuntimeError, MemoryError, ConnectionError, EOFError) as error:
            explained = _explain(error, config, corpus)
            if explained is None:
                raise
            raise explained from error


def check_precision(config: Config, device: torch.device) -> None:
    """Raise ConfigError where the device cannot compute as the recipe asks."""
    if config.training.precision == "bfloat16" and device.type == "cpu":
        raise ConfigError(
            "training.precision: bfloat16 is for a GPU, this run is on the CPU: set it to auto"
        )


def _trainer(
    config: Config,
    corpus: SpeechDataModule,
    checkpoints: Checkpoints,
    cost: CostMeter,
    device: torch.device,
) -> L.Trainer:
    on_gpu, training = device.type == "cuda", config.training
    processes: dict[str, Any] = {"devices": [device.index or 0] if on_gpu else 1}
    if world_size() > 1:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
        processes = {
            "devices": here, "num_nodes": world_size() // here,
            "strategy": SummedGradients(), "plugins": [TorchElasticEnvironment()],
        }  # fmt: skip
    return L.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        **processes,
        precision="bf16-mixed" if on_gpu and training.precision != "float32" else "32-true",
        max_epochs=training.epochs,
        callbacks=[cost, checkpoints, EpochLines(checkpoints), MemoryProbe(corpus)],
        logger=TensorBoardLogger(checkpoints.folder, name="", version="curves"),
        enable_checkpointing=False,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        deterministic=not on_gpu,
        log_every_n_steps=10,
    )


def _explain(error: Exception, config: Config, corpus: SpeechDataModule) -> AsrError | None:
    """The sentence for what a user can mend; None for a bug."""
    text = " ".join(str(error).split())
    if is_lost_peer(error):
        return AsrError(
            "another process of this run has ended or is out of reach, so all end: see its own "
            "message, then go on with --resume"
        )
    if is_out_of_memory(error):
        seconds, turns = config.data.batch_seconds, config.training.accumulate
        return AsrError(
            f"data.batch_seconds {seconds:g} is more than the memory holds ({text:.200}): try "
            f"--set data.batch_seconds={seconds / 2:g} --set training.accumulate={2 * turns}, "
            "the same steps in half the memory"
        )
    # Torch looks whether its reader lives before the kernel has buried it: then the pipe breaks.
    broken_pipe = isinstance(error, (ConnectionError, EOFError)) and config.data.num_workers
    if ("DataLoader worker" in text or broken_pipe) and corpus.dataset:
        reading = [note.value.decode(errors="ignore") for note in corpus.dataset.reading]
        items = ", ".join(item for item in reading if item) or "nothing"
        return AsrError(
            f"a process that reads recordings died ({text:.200}) while {items} was read: try "
            "--set data.num_workers=0 --resume, which reads in the main process"
        )
    return None
