"""What a training step is: the losses, the gradient of all processes, the schedule, the CER.

Legend: B utterances, S encoder steps, U tokens, V vocabulary.
"""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn.functional import cross_entropy, ctc_loss
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from asr.audio.augmentation import spec_augment
from asr.bundle import Bundle
from asr.data.dataset import Batch, MicroBatches
from asr.decoding.ctc_prefix import BLANK, steps_needed
from asr.decoding.decode import SpeechDecoder
from asr.errors import AsrError, DataError
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.model.attention import follow_step
from asr.model.projection import SetSparse
from asr.tokenizer import PAD
from asr.train.distributed import all_reduce_gradients, all_reduce_sum, rank, world_size
from asr.train.schedule import rate

log = logging.getLogger(__name__)


# A run ends when so many steps in a row had to be skipped.
MOST_SKIPPED = 10


@dataclass
class TrainingCounters:
    """What a run remembers beside weights: an epoch's loss so far and what was left out.

    All is of all processes together. `too_short` are utterances whose text needs more CTC steps
    than they have encoder steps: they train the decoder alone. `rewired` is the last epoch, from
    0, before which sparse maps were rewired.
    """

    loss: float = 0.0
    steps: int = 0
    unreadable: int = 0
    too_short: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    rewired: int = 0

    @property
    def mean_loss(self) -> float:
        """The mean over the epoch's steps."""
        return self.loss / self.steps if self.steps else math.nan

    def next_epoch(self) -> None:
        """Forget what is the epoch's own."""
        self.loss, self.steps, self.unreadable, self.too_short = 0.0, 0, 0, 0


class SpeechModule(L.LightningModule):
    """A bundle under training; `total_steps` is what a schedule with an end counts to.

    A step is that of all batches of all processes as if they were one: each batch's sums are
    divided by the tokens of all, so that their gradients add up to the whole's.
    """

    def __init__(self, bundle: Bundle, total_steps: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config = bundle.config
        self.tokenizer = bundle.tokenizer
        self.total_steps = total_steps
        self.model = bundle.model
        self.decoder = SpeechDecoder(bundle.model, bundle.tokenizer)
        self.counters = TrainingCounters()
        self.errors = ErrorCounts()
        self.dev_sums = torch.zeros(4, dtype=torch.float64)
        self.asked = 0  # the signal that asked this process for the run's end
        self.stopping = False  # whether any process was asked, as all know

    def on_train_epoch_start(self) -> None:
        """Count afresh; an epoch that goes on after a cut counts on."""
        self.counters.next_epoch()
        if self.current_epoch > self.counters.rewired:
            self._rewire()
            self.counters.rewired = self.current_epoch

    def _rewire(self) -> None:
        """Let sparse maps evolve between two epochs, the same in all processes."""
        seed = self.config.seed * 1_000_003 + self.current_epoch
        generator = torch.Generator().manual_seed(seed)
        adam = self.optimizers()
        assert isinstance(adam, LightningOptimizer)
        for module in self.model.modules():
            if isinstance(module, SetSparse):
                moved = module.rewire(generator)
                state = adam.state[module.values]
                for moment in ("exp_avg", "exp_avg_sq"):
                    if moment in state:  # no step was made yet where all were skipped
                        state[moment][moved] = 0

    def on_train_batch_start(self, batch: MicroBatches, batch_idx: int) -> None:
        """All chance in a step follows from the seed, the step and the process.

        So a resumed run draws the same. How many processes share a step changes what is drawn.
        """
        step = self.global_step + self.counters.skipped
        torch.manual_seed((self.config.seed * 1_000_003 + step) * world_size() + rank())
        follow_step(self.model.modules(), step)

    def training_step(self, batch: MicroBatches, batch_idx: int) -> dict[str, Tensor] | None:
        """One step of the optimiser, unless its loss or gradient is not finite."""
        adam = self.optimizers()
        assert isinstance(adam, LightningOptimizer)
        adam.zero_grad()
        counts = self._count(batch)
        if not counts[0]:
            return None  # of all processes' recordings not one could be read
        weights = self._weights(counts)
        sums = [self._backward(part, weights) for part in batch.batches]
        total = torch.stack(sums).sum(0) if sums else torch.zeros(2, device=self.device)
        total = all_reduce_gradients(self.parameters(), total)
        norm = clip_grad_norm_(self.parameters(), self.config.training.clip_norm)
        loss = (total * weights).sum()
        if not (loss + norm).isfinite():
            self._skip(batch, sums, float(loss), float(norm))
            return None
        adam.step()
        schedule = self.lr_schedulers()
        assert isinstance(schedule, LRScheduler)
        schedule.step()
        self.counters.skipped_in_a_row = 0
        self.counters.loss += float(loss)
        self.counters.steps += 1
        self._log_step(loss, total, counts, adam.param_groups[0]["lr"])
        return {"loss": loss}

    def probe_memory(self, train: MicroBatches, dev: MicroBatches) -> None:
        """Use all the memory that the largest batches take, and change nothing."""
        # Adam's two moments, and what the processes exchange, do not exist before a first step.
        held = [torch.zeros_like(p) for p in self.parameters() for _ in range(3)]
        precision = self.trainer.precision_plugin
        self.train()
        with precision.train_step_context():
            for part in train.batches:
                self._backward(part.to(self.device), torch.ones(2, device=self.device))
        self.zero_grad()
        self.eval()
        with precision.val_step_context(), torch.no_grad():
            for part in dev.batches:
                self._validate(part.to(self.device))
        self.train()
        del held

    def _backward(self, batch: Batch, weights: Tensor) -> Tensor:
        """Add the gradient of a batch; returns its sums (2,) of the decoder's and the CTC loss."""
        feats_BTF = batch.feats_BTF
        if self.config.augment:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
            feats_BTF = spec_augment(feats_BTF, batch.frames_B, self.config.augment, generator)
        sums = self.losses(batch, feats_BTF)
        self.manual_backward((sums * weights).sum())
        return sums.detach()

    def losses(self, batch: Batch, feats_BTF: Tensor) -> Tensor:
        """(2,): cross-entropy with label smoothing and CTC loss, both summed over the batch."""
        logits_BUV, ctc_BSV, mask_BS = self.model(
            feats_BTF, batch.frames_B, batch.tokens_BU[:, :-1]
        )
        attention = cross_entropy(
            logits_BUV.flatten(0, 1),
            batch.tokens_BU[:, 1:].flatten(),
            ignore_index=PAD,
            label_smoothing=self.config.training.label_smoothing,
            reduction="sum",
        )
        if ctc_BSV is None:
            return torch.stack((attention, torch.zeros_like(attention)))
        ctc = ctc_loss(
            ctc_BSV.log_softmax(-1).transpose(0, 1),
            batch.tokens_BU[:, 1:],
            mask_BS.sum(1),
            batch.lengths_B - 2,
            blank=BLANK,
            reduction="sum",
            zero_infinity=True,
        )
        return torch.stack((attention, ctc))

    def _count(self, step: MicroBatches) -> Tensor:
        """(2,): the decoder's and the CTC labels of all processes' batches; what else is summed."""
        parts = [self._labels(batch) for batch in step.batches]
        mine = torch.tensor([len(step.unreadable), self.asked])
        total = all_reduce_sum(
            torch.cat((torch.stack([torch.zeros(3).long(), *parts]).sum(0), mine))
        )
        tokens, labels, too_short, unreadable, asked = total.tolist()
        self.counters.too_short += too_short
        self.counters.unreadable += unreadable
        self.stopping = bool(asked)
        return torch.tensor([tokens, labels])

    def _labels(self, batch: Batch) -> Tensor:
        """(3,) on the CPU: the decoder's labels, CTC's, and the utterances too short for CTC."""
        lengths_B = batch.lengths_B.cpu() - 2
        if self.model.ctc_head is None:
            return torch.tensor([int(lengths_B.sum()) + len(lengths_B), 0, 0])
        steps = self.config.model.frontend.steps
        steps_B = torch.tensor([steps(n) for n in batch.frames_B.tolist()])
        fits_B = steps_needed(batch.tokens_BU[:, 1:-1].cpu(), lengths_B) <= steps_B
        return torch.stack((lengths_B.sum() + len(lengths_B), lengths_B[fits_B].sum(),
                            (~fits_B).sum()))  # fmt: skip

    def _weights(self, counts: Tensor) -> Tensor:
        """(2,): what the sums of the losses are worth in the loss, a label's share of each."""
        share = self.config.model.ctc_weight
        return (torch.tensor([1 - share, share]) / counts.clamp(min=1)).to(self.device)

    def _skip(self, step: MicroBatches, sums: list[Tensor], loss: float, norm: float) -> None:
        """Leave weights and optimiser as they are; raises AsrError when it goes on and on."""
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

    def _log_step(self, loss: Tensor, total: Tensor, counts: Tensor, lr: float) -> None:
        attention, ctc = (total / counts.clamp(min=1).to(total.device)).unbind()
        values: dict[str, Tensor | float] = {
            "loss": loss,
            "rate": lr,
            "skipped": float(self.counters.skipped),
        }
        if self.model.ctc_head is not None:
            values |= {"attention": attention, "ctc": ctc}
        for name, value in values.items():
            self.log(f"train/{name}", value)

    def on_validation_epoch_start(self) -> None:
        """Count errors afresh."""
        self.errors = ErrorCounts()
        self.dev_sums.zero_()

    def validation_step(self, batch: MicroBatches, batch_idx: int) -> None:
        """The loss, and the errors of texts decoded greedily, never with the reference as input."""
        for part in batch.batches:
            sums = self._validate(part)
            self.dev_sums += torch.cat((sums.double().cpu(), self._labels(part)[:2].double()))

    def _validate(self, batch: Batch) -> Tensor:
        """Count the errors of a batch; returns the sums (2,) of its losses."""
        sums = self.losses(batch, batch.feats_BTF)
        # An untrained CTC head finds no speech, and the language model is not used in training.
        plain = {
            "beam_size": 1, "lm_weight": 0.0, "speech_threshold": 0.0, "confidence_threshold": 0.0,
        }  # fmt: skip
        greedy = self.config.decoding.model_copy(update=plain)
        # As `asr evaluate` does: sums of log-probabilities are no matter for 8 bits.
        with torch.autocast(self.device.type, enabled=False):
            encoded = self.decoder.encode(batch.feats_BTF, batch.frames_B)
            found = self.decoder.decode(encoded, greedy)
        for text, nbest in zip(batch.texts, found, strict=True):
            self.errors += character_errors(text, nbest[0].text)
        return sums

    def on_validation_epoch_end(self) -> None:
        """The loss and the CER over the dev cuts of all processes."""
        errors = torch.tensor([*asdict(self.errors).values(), self.asked], dtype=torch.float64)
        total = all_reduce_sum(torch.cat((self.dev_sums, errors)))
        sums, counts, errors = total[:2], total[2:4], total[4:].long()
        if not counts[0]:
            raise DataError(f"{self.config.data.dev}: not one recording could be read")
        self.stopping = bool(errors[-1])
        self.log("val/loss", (sums * self._weights(counts).cpu()).sum())
        self.log("val/cer", ErrorCounts(*errors[:-1].tolist()).rate)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Plain numbers."""
        checkpoint["counters"] = asdict(self.counters)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Count on."""
        self.counters = TrainingCounters(**checkpoint["counters"])

    def configure_optimizers(self) -> Any:
        """Adam as the papers have it (thesis 4.2.4), its rate set anew at every step."""
        training, d_model = self.config.training, self.config.model.d_model
        adam = Adam(self.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
        schedule = LambdaLR(adam, lambda step: rate(step + 1, training, d_model, self.total_steps))
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
