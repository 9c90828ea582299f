"""What a training step is: the losses, the schedule, the validation CER.

Legend: B utterances, S encoder steps, U tokens, V vocabulary.
"""

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, ctc_loss
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from asr.bundle import Bundle
from asr.config import LinearSchedule, NoamSchedule, TrainingConfig
from asr.ctc import BLANK
from asr.data import Batch
from asr.errors import AsrError
from asr.features import spec_augment
from asr.metrics import ErrorCounts, character_errors
from asr.recognizer import decode
from asr.search import BeamSearch
from asr.tokenizer import PAD


class RecognizerTask(L.LightningModule):
    """A bundle under training; `total_steps` is what a schedule with an end counts to."""

    def __init__(self, bundle: Bundle, total_steps: int) -> None:
        super().__init__()
        self.config = bundle.config
        self.tokenizer = bundle.tokenizer
        self.total_steps = total_steps
        self.model = bundle.model
        self.errors = ErrorCounts()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """All chance in a step follows from the seed and the step: a resumed run draws the same."""
        torch.manual_seed(self.config.seed * 1_000_003 + self.global_step)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch, a token's share of it."""
        if self.config.augment:
            generator = torch.Generator().manual_seed(torch.initial_seed())
            feats = spec_augment(batch.feats_BTF, batch.frames_B, self.config.augment, generator)
            batch.feats_BTF = feats
        losses = self.losses(batch)
        if not losses["loss"].isfinite():
            raise AsrError(
                f"step {self.global_step}: the loss is {losses['loss'].item()} (utterances "
                f"{', '.join(batch.ids):.200}): lower the learning rate; last.ckpt is sound"
            )
        for name, value in losses.items():
            self.log(f"train/{name}", value, batch_size=len(batch.ids))
        self.log("train/rate", self.trainer.optimizers[0].param_groups[0]["lr"])
        return losses["loss"]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """`attention`: cross-entropy with label smoothing; `ctc` where there is a head; `loss`."""
        logits_BUV, ctc_BSV, keep_BS = self.model(
            batch.feats_BTF, batch.frames_B, batch.tokens_BU[:, :-1]
        )
        attention = cross_entropy(
            logits_BUV.flatten(0, 1),
            batch.tokens_BU[:, 1:].flatten(),
            ignore_index=PAD,
            label_smoothing=self.config.training.label_smoothing,
        )
        if ctc_BSV is None:
            return {"loss": attention}
        n_labels = batch.lengths_B - 2
        ctc = ctc_loss(
            ctc_BSV.log_softmax(-1).transpose(0, 1),
            batch.tokens_BU[:, 1:],
            keep_BS.sum(1),
            n_labels,
            blank=BLANK,
            reduction="sum",
            zero_infinity=True,
        )
        ctc = ctc / n_labels.sum().clamp(min=1)
        share = self.config.model.ctc_weight
        return {
            "loss": (1 - share) * attention + share * ctc,
            "attention": attention.detach(),
            "ctc": ctc.detach(),
        }

    def on_validation_epoch_start(self) -> None:
        """Count errors afresh."""
        self.errors = ErrorCounts()

    def validation_step(self, batch: Batch | None, batch_idx: int) -> None:
        """The loss, and the errors of texts decoded greedily, never with the reference as input."""
        if batch is None:
            return
        loss = self.losses(batch)["loss"]
        self.log("val/loss", loss, batch_size=len(batch.ids))
        counts = torch.tensor(self.tokenizer.word_counts(), dtype=torch.float32, device=self.device)
        greedy = self.config.search.model_copy(update={"beam_size": 1})
        found = decode(self.model, batch.feats_BTF, batch.frames_B, BeamSearch(greedy, counts))
        for text, nbest in zip(batch.texts, found, strict=True):
            self.errors += character_errors(text, self.tokenizer.decode(nbest[0].tokens))

    def on_validation_epoch_end(self) -> None:
        """The corpus CER of the epoch."""
        self.log("val/cer", self.errors.rate, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Adam as the papers have it (thesis 4.2.4), its rate set anew at every step."""
        training, d_model = self.config.training, self.config.model.d_model
        # Lightning cannot clip gradients for a fused Adam in mixed precision, which GPUs use.
        on_cpu = self.device.type == "cpu"
        adam = Adam(self.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=on_cpu)
        schedule = LambdaLR(adam, lambda step: rate(step + 1, training, d_model, self.total_steps))
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rate(step: int, training: TrainingConfig, d_model: int, total_steps: int) -> float:
    """The learning rate of a step, the first being 1."""
    schedule = training.schedule
    if isinstance(schedule, NoamSchedule):
        warm = schedule.warmup_steps
        return schedule.factor * d_model**-0.5 * min(step**-0.5, step * warm**-1.5)
    if isinstance(schedule, LinearSchedule):
        left = (total_steps - step + 1) / max(1, total_steps - schedule.warmup_steps)
        return schedule.lr * max(0.0, min(step / schedule.warmup_steps, left))
    return schedule.lr
