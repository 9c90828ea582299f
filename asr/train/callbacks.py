"""A check, before the first step, that the memory is sufficient."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from asr.train.datamodule import SpeechDataModule
from asr.train.module import SpeechModule


class MemoryProbe(Callback):
    """Runs the largest batches before the first step, so that too little memory shows at once.

    It does not include features and kernels that are kept for later epochs, nor voices that speak
    more slowly.
    """

    def __init__(self, datamodule: SpeechDataModule) -> None:
        self.datamodule = datamodule
        self.is_done = False

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Run the largest training and dev batches once in a session, and change nothing.

        The training batch is of the last epoch: if cuts get pauses, it has the longest ones.
        """
        if self.is_done:
            return
        self.is_done = True  # in this hook, not an earlier one: signals are handled by now
        assert isinstance(pl_module, SpeechModule)
        device = pl_module.device
        # Adam's two moments and the message between processes do not exist before a first step.
        held = [torch.zeros_like(p) for p in pl_module.trained for _ in range(3)]
        precision = trainer.precision_plugin
        pl_module.train()
        ones = torch.ones(len(pl_module.loss_weights), device=device)
        # Features are read outside of the contexts, which compute in bfloat16.
        largest = self.datamodule.largest(self.datamodule.config.training.epochs - 1)
        with precision.train_step_context():
            for part in largest.batches:
                pl_module.backward_batch(part.to(device), ones)
        pl_module.zero_grad()
        pl_module.eval()
        largest = self.datamodule.largest(None)
        with precision.val_step_context(), torch.no_grad():
            for part in largest.batches:
                pl_module.validate(part.to(device))
        pl_module.train()
        del held
