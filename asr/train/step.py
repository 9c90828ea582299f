"""One optimizer step, the same for every kind of training and for any number of processes.

Legend: L losses of a model, which are added up with weights.
"""

import logging
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from asr.config import Config
from asr.data.dataset import Batch, MicroBatches
from asr.errors import AsrError, ConfigError, DataError
from asr.model.attention import end_step, follow_step, stepped_kernels
from asr.runtime.load import FastestThreads, adapt
from asr.train.distributed import all_reduce_gradients, all_reduce_sum, rank, world_size
from asr.train.optimizer import build_optimizer, decay
from asr.train.schedule import rate

log = logging.getLogger(__name__)

# A run ends after this many skipped steps in a row.
MOST_SKIPPED = 10


@dataclass
class TrainingCounters:
    """Numbers that a run keeps beside its weights, summed over all processes.

    The fields up to `too_short` cover the current epoch. `too_short` counts utterances whose text
    needs more CTC steps than they have encoder steps: they train the decoder alone. `rewired` is
    the last epoch, from 0, before which sparse projections were rewired. `confidence_threshold` is
    that of the last validation, None where none is chosen.
    """

    loss: float = 0.0
    steps: int = 0
    unreadable: int = 0
    too_short: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    rewired: int = 0
    confidence_threshold: float | None = None

    @property
    def mean_loss(self) -> float:
        """Return the mean loss over the epoch's steps, NaN without any."""
        return self.loss / self.steps if self.steps else math.nan

    def next_epoch(self) -> None:
        """Reset the numbers of an epoch."""
        self.loss, self.steps, self.unreadable, self.too_short = 0.0, 0, 0, 0


class TrainingModule(L.LightningModule):
    """A model in training; subclasses define its losses and the number of labels of each.

    The micro-batches of all processes make one step. The losses of each are sums, divided by the
    number of labels of all micro-batches. So the summed gradients equal those of one large batch.
    `identity` must be the same when a run resumes.
    """

    loss_names: tuple[str, ...] = ()
    loss_weights: tuple[float, ...] = (1.0,)
    dev_metrics: tuple[str, ...] = ("val_loss",)  # lower is better; the last one ranks the epochs

    def __init__(self, model: nn.Module, config: Config, total_steps: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.config, self.total_steps = model, config, total_steps
        self.frozen: list[nn.Module] = []
        self.identity: dict[str, str] = {}
        self.counters, self.threads = TrainingCounters(), FastestThreads()
        self.dev_sums = torch.zeros(2, 0, dtype=torch.float64)
        self.signal = 0  # the signal that asked this process to stop
        self.stopping = False  # whether any process was asked to stop, known to all

    def losses(self, batch: Batch, feats_BTF: Tensor) -> Tensor:
        """Return the losses (L,), each summed over the batch."""
        raise NotImplementedError

    def labels(self, batch: Batch) -> Tensor:
        """Return (L + 1,) on the CPU: the labels of each loss, and utterances too short for CTC."""
        raise NotImplementedError

    def augment(self, batch: Batch) -> Tensor:
        """Return the features (batch, time, freq) to train on."""
        return batch.feats_BTF

    def validate(self, batch: Batch) -> Tensor:
        """Return the losses (L,) of a dev batch, each summed over it."""
        return self.losses(batch, batch.feats_BTF)

    def on_train_epoch_start(self) -> None:
        """Reset an epoch's counters; Lightning skips this where a run resumes within an epoch."""
        self.counters.next_epoch()

    def on_train_batch_start(self, batch: MicroBatches, batch_idx: int) -> None:
        """Seed the random generator from the seed, the step and the process.

        A resumed run draws the same numbers; another number of processes draws others.
        """
        step = self.global_step + self.counters.skipped
        torch.manual_seed((self.config.seed * 1_000_003 + step) * world_size() + rank())
        follow_step(self._kernels, step)

    @cached_property
    def _kernels(self) -> list[nn.Module]:
        """Return the attention kernels that follow the steps; a training replaces none of them."""
        return stepped_kernels(self.model, self.frozen)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the model by name, as a bundle has them."""
        return self.model.state_dict()

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return the weights that are not frozen."""
        return [weight for weight in self.parameters() if weight.requires_grad]

    def training_step(self, batch: MicroBatches, batch_idx: int) -> dict[str, Tensor] | None:
        """Make one step of the optimizer, unless the loss or the gradient is not finite."""
        with self.threads.step(batch.size if self.device.type == "cpu" else 0):
            return self._step(batch)

    def _step(self, batch: MicroBatches) -> dict[str, Tensor] | None:
        batch.check()
        adam, schedule = self.optimizers(), self.lr_schedulers()
        assert isinstance(adam, LightningOptimizer) and isinstance(schedule, LRScheduler)
        adam.zero_grad()
        counts = self._count(batch)
        if not counts[0]:
            return None  # no process could read any of its recordings
        weights = self._weights(counts)
        sums = [self.backward_batch(part, weights) for part in batch.batches]
        total = torch.stack(sums).sum(0) if sums else torch.zeros_like(weights)
        total = all_reduce_gradients(self.trained, total)
        norm = clip_grad_norm_(self.trained, self.config.training.clip_norm)
        loss = (total * weights).sum()
        if not (loss + norm).isfinite():
            self._skip(batch, sums, float(loss), float(norm))
            return None
        adam.step()
        end_step(self._kernels, all_reduce_sum)
        if self.config.training.weight_decay:
            decay(self.model, adam.param_groups[0]["lr"] * self.config.training.weight_decay)
        schedule.step()
        self.counters.skipped_in_a_row = 0
        self.counters.loss += float(loss)
        self.counters.steps += 1
        per_label = total / counts.clamp(min=1).to(total.device)
        self.log_dict({f"train/{k}": v for k, v in zip(self.loss_names, per_label, strict=False)})
        values = {
            "loss": loss,
            "rate": adam.param_groups[0]["lr"],
            "skipped": self.counters.skipped,
        }
        self.log_dict({f"train/{name}": float(value) for name, value in values.items()})
        return {"loss": loss}

    def backward_batch(self, batch: Batch, weights: Tensor) -> Tensor:
        """Add the gradient of a batch; return its losses (L,)."""
        sums = self.losses(batch, self.augment(batch))
        self.manual_backward((sums * weights).sum())
        return sums.detach()

    def _count(self, step: MicroBatches) -> Tensor:
        """Return the label counts (L,) of all processes; update the counters and `stopping`."""
        none = torch.zeros(len(self.loss_weights) + 1).long()
        parts = torch.stack([none, *map(self.labels, step.batches)]).sum(0)
        own = torch.tensor([len(step.unreadable), self.signal])
        *labels, too_short, unreadable, signal = all_reduce_sum(torch.cat((parts, own))).tolist()
        self.counters.too_short += too_short
        self.counters.unreadable += unreadable
        self.stopping = bool(signal)
        return torch.tensor(labels)

    def _weights(self, counts: Tensor) -> Tensor:
        """Return the factors (L,) with which the summed losses enter the loss."""
        return (torch.tensor(self.loss_weights) / counts.clamp(min=1)).to(self.device)

    def _skip(self, step: MicroBatches, sums: list[Tensor], loss: float, norm: float) -> None:
        """Leave weights and optimizer unchanged. Raises AsrError after MOST_SKIPPED in a row."""
        self.counters.skipped += 1
        self.counters.skipped_in_a_row += 1
        parts = zip(step.batches, sums, strict=True)
        bad = [part for part, found in parts if math.isfinite(loss) or not found.isfinite().all()]
        ids = ", ".join(name for part in bad for name in part.ids)
        what = f"loss {loss:g}, gradient norm {norm:g} (utterances {ids:.500})"
        if self.counters.skipped_in_a_row >= MOST_SKIPPED:
            raise AsrError(
                f"step {self.global_step}: {what}, {MOST_SKIPPED} steps in a row: lower the "
                "learning rate; last.ckpt is sound"
            )
        if ids:
            log.warning("step %d skipped, not finite: %s", self.global_step, what)

    def on_validation_epoch_start(self) -> None:
        """Reset the sums over the dev set."""
        self.dev_sums = torch.zeros(2, len(self.loss_weights), dtype=torch.float64)

    def validation_step(self, batch: MicroBatches, batch_idx: int) -> None:
        """Add up losses and labels."""
        batch.check()
        adapt(self.threads.limit)
        for part in batch.batches:
            sums = self.validate(part).double().cpu()
            self.dev_sums += torch.stack((sums, self.labels(part)[:-1].double()))

    def on_validation_epoch_end(self) -> None:
        """Log the loss over the dev sets of all processes. Raises DataError without any label."""
        sums, counts = all_reduce_sum(self.dev_sums)
        if not counts[0]:
            raise DataError(f"{self.config.data.dev}: not one recording could be read")
        self.stopping = bool(all_reduce_sum(torch.tensor(self.signal)))
        self.log("val/loss", (sums * self._weights(counts).cpu()).sum())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counters and the identity to a state, as plain values."""
        checkpoint |= {"counters": asdict(self.counters), "identity": self.identity}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counters. Raises ConfigError where the state has another identity."""
        before = checkpoint["identity"]
        other = [name for name, value in self.identity.items() if before.get(name, value) != value]
        if other:
            raise ConfigError(
                f"this run was begun with other {' and '.join(other)}: continue with the same, or "
                "give another folder"
            )
        self.counters = TrainingCounters(**checkpoint["counters"])

    def configure_optimizers(self) -> Any:
        """Return Adam or Muon with a learning rate for every step."""
        training, d_model = self.config.training, self.config.model.d_model
        adam = build_optimizer(training.optimizer, self.model, self.trained)
        schedule = LambdaLR(adam, lambda step: rate(step + 1, training, d_model, self.total_steps))
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
