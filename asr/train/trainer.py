"""Lightning's trainer runs the epochs, in one process or in many; its errors are explained."""

import io
import logging
import os
import signal
import warnings
import zipfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment  # type: ignore[attr-defined]
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from asr.errors import AsrError, ConfigError, is_out_of_memory
from asr.runtime.devices import has_bfloat16
from asr.train.checkpoints import Checkpoints, states
from asr.train.datamodule import TrainingData
from asr.train.distributed import from_rank_zero, is_lost_peer, rank, world_size
from asr.train.progress import TrainingProgress
from asr.train.step import TrainingModule

log = logging.getLogger(__name__)


class SummedGradients(DDPStrategy):
    """Lightning's processes without torch's DDP wrapper: `TrainingModule` sums the gradients.

    The wrapper would take the mean over processes, which differs where they have different
    numbers of tokens, and it waits forever where a process has no batch.
    """

    def configure_ddp(self) -> None:
        """Leave the module as it is."""

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> dict[str, Any]:
        """Return the state that rank 0 has; other machines need not have the file."""
        state = from_rank_zero(lambda: Path(checkpoint_path).read_bytes())
        found: dict[str, Any] = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        return found


def fit(
    module: TrainingModule, checkpoints: Checkpoints, device: torch.device, *callbacks: Callback
) -> None:
    """Train for all epochs, from the last state if there is one.

    Raises AsrError where memory is exhausted or another process died. Where a signal stopped the
    run, it raises KeyboardInterrupt with the signal's number, after the state was saved.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning|lhotse|torch")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        if not rank():
            checkpoints.folder.mkdir(parents=True, exist_ok=True)
        trainer = _trainer(checkpoints, device, *callbacks)
        found = from_rank_zero(lambda: _sound_state(states(checkpoints.folder)).encode())
        resumed = checkpoints.folder / found.decode() if found else None
        log.info("learning curves: tensorboard --logdir %s", trainer.log_dir)
        try:
            trainer.fit(module, checkpoints.datamodule, ckpt_path=resumed, weights_only=True)
        except SystemExit:  # Lightning's response to Ctrl-C
            number = module.signal or (signal.SIGTERM if module.stopping else signal.SIGINT)
            raise KeyboardInterrupt(number) from None
        except (RuntimeError, MemoryError, ConnectionError, EOFError) as error:
            if explained := _explain(error, checkpoints.datamodule):
                raise explained from error
            raise


def _is_bfloat16(precision: str, device: torch.device) -> bool:
    """Return whether products are computed in bfloat16, which a device may lack."""
    if precision == "float32" or (precision == "auto" and device.type != "cuda"):
        return False
    if precision == "bfloat16" and not has_bfloat16(device):
        log.warning(
            "training.precision: bfloat16 is for a GPU that computes in it, or a processor with "
            "avx512_bf16 or amx_bf16, which this one lacks: it trains in float32, two to three "
            "times slower"
        )
    return has_bfloat16(device)


def _trainer(checkpoints: Checkpoints, device: torch.device, *callbacks: Callback) -> L.Trainer:
    on_gpu, training = device.type == "cuda", checkpoints.training
    processes: dict[str, Any] = {"devices": [device.index or 0] if on_gpu else 1}
    if world_size() > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
        processes = {"devices": local, "num_nodes": world_size() // local}
        processes |= {"strategy": SummedGradients(), "plugins": [TorchElasticEnvironment()]}
    return L.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        **processes,
        precision="bf16-mixed" if _is_bfloat16(training.precision, device) else "32-true",
        max_epochs=training.epochs,
        callbacks=[*callbacks, checkpoints, TrainingProgress(checkpoints)],
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


def _sound_state(paths: list[Path]) -> str:
    """Return the name of the latest state that is whole; an empty text without states.

    Raises ConfigError where none is whole.
    """
    for i, path in enumerate(paths):
        try:
            _check_state(path)
        except ConfigError as error:
            if path == paths[-1]:
                raise
            log.warning("%s; the run continues from %s", error, paths[i + 1].name)
        else:
            return path.name
    return ""


def _check_state(path: Path) -> None:
    """Raise ConfigError for a file that is not the whole state of a training."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not check the checksums
            damaged = archive.testzip()
        state = torch.load(path, weights_only=True, map_location="cpu")
        is_state = "state_dict" in state
    except Exception as error:  # torch raises many types on a damaged file
        raise ConfigError(
            f"{path}: damaged, it cannot be continued: give another folder"
        ) from error
    if damaged:
        raise ConfigError(f"{path}: damaged, it cannot be continued: give another folder")
    if not is_state:
        raise ConfigError(f"{path}: not the state of a training: give another folder")


def _explain(error: Exception, datamodule: TrainingData) -> AsrError | None:
    """Return an error that says what the user can do; None for a bug."""
    text = " ".join(str(error).split())
    if is_lost_peer(error):
        return AsrError(
            "another process of this run has ended or is out of reach, so all end: see its own "
            "message, then continue with --resume"
        )
    if is_out_of_memory(error):
        return AsrError(f"{datamodule.smaller_batches} ({text:.200})")
    # The pipe may break before torch notices that its worker has died.
    broken_pipe = isinstance(error, (ConnectionError, EOFError)) and datamodule.n_workers
    if ("DataLoader worker (pid" in text or broken_pipe) and datamodule.dataset:
        reading = [note.value.decode(errors="ignore") for note in datamodule.dataset.reading]
        items = ", ".join(item for item in reading if item) or "nothing"
        return AsrError(
            f"a process that reads recordings died ({text:.200}) while {items} was read: try "
            "--set data.num_workers=0 --resume, which reads in the main process"
        )
    return None
