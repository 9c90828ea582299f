"""What happens before the first step: a probe of the memory, and the handling of signals."""

import logging

import lightning as L
from lightning.pytorch.callbacks import Callback

from asr.train.datamodule import SpeechDataModule
from asr.train.distributed import on_stop, rank
from asr.train.module import SpeechModule

log = logging.getLogger(__name__)


class MemoryProbe(Callback):
    """Before the first step: the largest batches are tried, and signals are heard."""

    def __init__(self, corpus: SpeechDataModule) -> None:
        self.corpus = corpus

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Run out of memory now or never."""
        assert isinstance(pl_module, SpeechModule)

        def ask(number: int) -> None:
            if not rank():
                log.warning("the run stops after this step; once more to stop at once")
            pl_module.asked = number

        on_stop(ask)
        # The last epoch has the longest cuts, if any get pauses.
        last = self.corpus.config.training.epochs - 1
        pl_module.probe_memory(self.corpus.largest(last), self.corpus.largest(None))
