"""A speech recognizer in training: losses, dev CER and WER, rewiring of sparse projections.

Legend: B utterances, S encoder steps, U tokens, V vocabulary.
"""

import hashlib
from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from asr.audio.augmentation import spec_augment
from asr.bundle import Bundle
from asr.data.dataset import Batch
from asr.decoding.ctc_prefix import steps_needed
from asr.decoding.decode import SpeechDecoder
from asr.evaluation.calibration import Calibration
from asr.model.conditioning import SOUNDS
from asr.model.projection import SetSparse, sparse_maps
from asr.model.transformer import SpeechTransformer
from asr.normalization import HAN_LETTER
from asr.pinyin import units_of
from asr.tokenizer import PAD
from asr.train.auxiliary import UnitCtc, consistency, ctc_sum, intermediate_ctc
from asr.train.distributed import all_reduce_sum
from asr.train.sounds import SharedSounds, sounds_ctc
from asr.train.step import TrainingModule


class SpeechModule(TrainingModule):
    """A bundle in training, with the decoder's cross-entropy and the CTC loss.

    The losses are weighted and added (Watanabe et al. 2017, multiobjective learning). With
    `has_words`, the dev texts have words, and the WER is logged too.
    """

    model: SpeechTransformer
    dev_metrics: tuple[str, ...] = ("val_loss", "val_cer_percent")

    def __init__(
        self, bundle: Bundle, total_steps: int, texts: Sequence[str] = (), has_words: bool = False
    ) -> None:
        super().__init__(bundle.model, bundle.config, total_steps)
        self.frozen = [self.model.get_submodule(part) for part in self.config.training.freeze]
        for part in self.frozen:
            part.requires_grad_(False)
        share, training = self.config.model.ctc_weight, self.config.training
        layers, d_model = self.model.encoder.layers, self.config.model.d_model
        with torch.random.fork_rng(devices=[]):
            # All processes begin with the same heads, whatever they have drawn before.
            torch.manual_seed(self.config.seed)
            self.heads = [
                intermediate_ctc(each, layers[each.layer - 1], d_model, texts)
                for each in training.intermediate
            ]
        self.intermediate = nn.ModuleList(self.heads)
        self.sounds: SharedSounds | None = None
        if training.shared_sounds and self.model.ctc_head:
            self.sounds = SharedSounds(bundle.tokenizer.tokens(), self.model.ctc_head)
        weights = {f"{each.unit}_{each.layer}": each.weight for each in training.intermediate}
        conditioned = self.config.model.encoder.conditioning
        if conditioned and (own := self.model.encoder.conditioning):
            kind = "initial_final" if any(map(HAN_LETTER.search, texts)) else "letter"
            self.heads.append(UnitCtc(units_of(kind), SOUNDS, own.head, nn.Identity()))
            weights["conditioning"] = conditioned.weight
        below = self.config.model.encoder.sounds
        if below and self.model.sounds_head:
            layer, tokens = layers[below.layer - 1], bundle.tokenizer.tokens()
            self.heads.append(sounds_ctc(self.model.sounds_head, layer, tokens, texts))
            weights["sounds"] = below.weight
        weights |= {"consistency": training.consistency} if training.consistency else {}
        self.loss_weights = (1 - share, share, *(share * weight for weight in weights.values()))
        self.loss_names = ("attention", "ctc", *weights) if share else ("attention",)
        self.decoder = SpeechDecoder(bundle.model, bundle.tokenizer)
        self.has_words = has_words
        if has_words:
            self.dev_metrics = ("val_loss", "val_wer_percent", "val_cer_percent")
        self.calibration = Calibration(bundle.tokenizer.normalize)
        units = [head.units for head in (*self.heads, *([self.sounds] if self.sounds else []))]
        ties = None if self.model.sounds_head is None else self.model.sounds_head.tied_V
        self.identity = {
            "tokens": bundle.tokenizer.digest,
            "units of training.intermediate": _digest(units),
            "sounds of tokens": "" if ties is None else _digest(ties.tolist()),
        }

    def weights(self) -> dict[str, Tensor]:
        """Return the model's weights by name, with shared sounds added and tied rows expanded."""
        found = super().weights()
        if self.sounds:
            found["ctc_head.weight"] = found["ctc_head.weight"] + self.sounds.added().detach()
        if self.model.sounds_head:
            rows = self.model.sounds_head.untied()
            found |= {f"sounds_head.{name}": tensor for name, tensor in rows.items()}
        return found

    def on_train_epoch_start(self) -> None:
        """Rewire sparse projections between two epochs, once."""
        super().on_train_epoch_start()
        if self.current_epoch > self.counters.rewired:
            self._rewire()
            self.counters.rewired = self.current_epoch

    def _rewire(self) -> None:
        """Move the smallest weights of sparse projections, the same in all processes."""
        seed = self.config.seed * 1_000_003 + self.current_epoch
        generator = torch.Generator().manual_seed(seed)
        adam = self.optimizers()
        assert isinstance(adam, LightningOptimizer)
        for module in self._evolving():
            moved = module.rewire(generator)
            state = adam.state[module.values]
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in state:  # absent where all steps so far were skipped
                    state[moment][moved] = 0

    def _evolving(self) -> Iterator[SetSparse]:
        """Yield the sparse projections that are not frozen."""
        return (each for _, each in sparse_maps(self.model) if each.values.requires_grad)

    def augment(self, batch: Batch) -> Tensor:
        """Return the features with random masks (SpecAugment), twice for `consistency`."""
        if not self.config.augment:
            return batch.feats_BTF
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        if self.config.training.consistency:
            batch = batch.repeated(2)
        return spec_augment(batch.feats_BTF, batch.frames_B, self.config.augment, generator)

    def losses(self, batch: Batch, feats_BTF: Tensor) -> Tensor:
        """Return the losses (L,), each summed over the batch; of several views it is the mean.

        In this order they are the decoder's cross-entropy with label smoothing; CTC, in validation
        with the scores of sounds, as in decoding; those of the other heads; and, if the recipe has
        it, consistency, which is 0 for a single view.
        """
        n_views = len(feats_BTF) // len(batch.ids)
        batch = batch.repeated(n_views) if n_views > 1 else batch
        logits_BUV, ctc_BSV, mask_BS = self.model(
            feats_BTF, batch.frames_B, batch.tokens_BU[:, :-1]
        )
        attention = cross_entropy(
            logits_BUV.float().flatten(0, 1),
            batch.tokens_BU[:, 1:].flatten(),
            ignore_index=PAD,
            label_smoothing=self.config.training.label_smoothing,
            reduction="sum",
        )
        if ctc_BSV is None:
            return torch.stack((attention, torch.zeros_like(attention)))
        steps_B = mask_BS.sum(1)
        ctc = ctc_sum(ctc_BSV, batch.tokens_BU[:, 1:], steps_B, batch.lengths_B - 2)
        others = [head(batch.texts, steps_B) for head in self.heads]
        losses = torch.stack((attention, ctc, *others)) / n_views
        if not self.config.training.consistency:
            return losses
        between = consistency(ctc_BSV, mask_BS) if n_views == 2 else torch.zeros_like(attention)
        return torch.cat((losses, between[None]))

    def labels(self, batch: Batch) -> Tensor:
        """Return (L + 1,): the labels of each loss, and the utterances too short for CTC.

        Consistency has as many labels as CTC.
        """
        lengths_B = batch.lengths_B.cpu() - 2
        n_decoder = lengths_B.sum() + len(lengths_B)
        if self.model.ctc_head is None:
            return torch.tensor([int(n_decoder), 0, 0])
        steps = self.config.model.frontend.steps
        steps_B = torch.tensor([steps(n) for n in batch.frames_B.tolist()])
        fits_B = steps_needed(batch.tokens_BU[:, 1:-1].cpu(), lengths_B) <= steps_B
        n_ctc = lengths_B[fits_B].sum()
        n_others = [head.labels(batch.texts, steps_B) for head in self.heads]
        n_others += [int(n_ctc)] if self.config.training.consistency else []
        return torch.tensor([int(n_decoder), int(n_ctc), *n_others, int((~fits_B).sum())])

    def on_validation_epoch_start(self) -> None:
        """Reset the calibration; remove small weights after the last epoch, before its CER."""
        super().on_validation_epoch_start()
        if self.current_epoch + 1 == self.config.training.epochs:
            for module in self._evolving():
                if module.final_removal:
                    module.remove_smallest()
        self.calibration = Calibration(self.decoder.tokenizer.normalize)

    def validate(self, batch: Batch) -> Tensor:
        """Return the losses (L,) of a dev batch; calibrate with the texts of greedy decoding."""
        # An untrained CTC head finds no speech, and the language model is not used in training.
        changes = dict.fromkeys(("lm_weight", "speech_threshold", "confidence_threshold"), 0.0)
        greedy = self.config.decoding.model_copy(update={**changes, "beam_size": 1})
        sums = self.losses(batch, batch.feats_BTF)
        # In float32, as in `asr evaluate`: bfloat16's 8 bits of precision are too few for sums of
        # log-probabilities.
        with torch.autocast(self.device.type, enabled=False):
            encoded = self.decoder.encode(batch.feats_BTF, batch.frames_B)
            found = self.decoder.decode(encoded, greedy)
        for text, nbest in zip(batch.texts, found, strict=True):
            self.calibration.add(text, nbest[0])
        return sums

    def on_validation_epoch_end(self) -> None:
        """Log the loss and the error rates in percent over the dev sets of all processes.

        The rates are those with the recipe's `decoding.confidence_threshold`, or else with the
        threshold that the calibration chooses. The counters keep the threshold.
        """
        super().on_validation_epoch_end()
        self.calibration.counts_CN = all_reduce_sum(self.calibration.counts_CN)
        chosen = self.config.decoding.confidence_threshold
        threshold = self.calibration.threshold if chosen is None else chosen
        self.counters.confidence_threshold = threshold
        self.log("val/cer_percent", 100 * self.calibration.errors(threshold).rate)
        if self.has_words:
            self.log("val/wer_percent", 100 * self.calibration.word_errors(threshold).rate)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
