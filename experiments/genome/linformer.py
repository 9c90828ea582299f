"""The Linformer of Cahyawijaya 2021, section 5.3, made small: its shape, start and training."""

from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy, one_hot

from asr.bundle import load_weights
from asr.runtime.files import write_atomically
from experiments.classifier import ClassifierConfig, SequenceClassifier, sample_mask
from experiments.runner import Examples, err, predict, train

_MASKED_SHARE = 0.15  # Devlin 2019, section 3.1; here [MASK] replaces all of them
_RANK, _LR, _PATIENCE = 32, 3e-3, 5


def configure(max_length: int, vocab_size: int) -> ClassifierConfig:
    """Return the shape: 1 layer for the thesis's 12, d_model 32 for 768, rank 32 for 256."""
    attention = {"kind": "linformer", "rank": _RANK, "length": max_length, "projection": "random"}
    model = {
        "d_model": 32, "d_inner": 128, "n_heads": 2, "dropout": 0.0, "norm": "pre",
        "projection": {"kind": "dense"}, "encoder": {"n_layers": 1, "attention": attention},
    }  # fmt: skip
    values = {"n_classes": 2, "vocab_size": vocab_size, "model": model}
    return ClassifierConfig.model_validate(values)


def initialize(config: ClassifierConfig, seed: int) -> SequenceClassifier:
    """Return the network with the initial weights of a seed.

    E and F (Wang 2020, equation 7) are fixed windows over neighboring tokens, means for the keys
    and sums for the values: learned ones memorize the subjects of so small a cohort. Embeddings
    are scaled by √d_model (Vaswani 2017, section 3.4): an additional token at one site shifts the
    positions of all that follow, and that must weigh less than the tokens themselves.
    """
    torch.manual_seed(seed)
    model, max_length = SequenceClassifier(config), config.model.encoder.longest
    assert max_length is not None
    window_S = torch.arange(max_length) * _RANK // max_length
    sums_RS = one_hot(window_S, _RANK).T.float()
    means_RS = sums_RS / sums_RS.sum(1, keepdim=True).clamp(min=1)
    for name, weight in model.state_dict().items():
        if name.endswith(".EF"):
            weight.copy_(torch.stack((means_RS, sums_RS))[:, None])
        elif name == "embed.weight":
            weight.mul_(config.model.d_model**0.5)
    return model


def masked_loss(
    model: SequenceClassifier, tokens_BS: Tensor, mask_BS: Tensor, _labels_B: Tensor
) -> Tensor:
    """Return the cross-entropy of masked tokens."""
    masked_BS = sample_mask(mask_BS, _MASKED_SHARE)
    logits_MV = model.reconstruct(tokens_BS, mask_BS, masked_BS)
    return cross_entropy(logits_MV, tokens_BS[masked_BS])


def fine_tune(
    model: SequenceClassifier, examples: Examples, validation: Examples, epochs: int, seed: int
) -> SequenceClassifier:
    """Train on the labels; return the model of the epoch with the highest AUC on `validation`.

    Training ends after 5 epochs without a higher one.
    """
    torch.manual_seed(seed)  # the order depends on nothing that ran before
    labels = [label for _, label in validation]
    best, best_auc, best_epoch = model, -1.0, 0
    for epoch, _ in enumerate(train(model, examples, epochs, 8, _LR)):
        auc = float(roc_auc_score(labels, predict(model, validation, 8)[:, 1]))
        if auc > best_auc:
            best, best_auc, best_epoch = deepcopy(model), auc, epoch
        if epoch - best_epoch == _PATIENCE:
            break
    return best


def pretrain(
    config: ClassifierConfig, panel: list[Tensor], epochs: int, seed: int, folder: Path
) -> SequenceClassifier:
    """Return the model after masked pre-training, from `folder` if it has been done before."""
    model = initialize(config, seed)
    key = repr((config, epochs, seed, [tokens.tolist() for tokens in panel]))
    path = folder / f"pretrained-{sha256(key.encode()).hexdigest()[:16]}.safetensors"
    if not path.is_file():
        entropy = Categorical(torch.bincount(torch.cat(panel)).float()).entropy()
        torch.manual_seed(seed)
        examples = [(tokens, 0) for tokens in panel]
        *_, loss = train(model, examples, epochs, 4, _LR, masked_loss)
        err.print(f"pre-training: {loss:.2f} nats a token; entropy of the tokens {entropy:.2f}")
        write_atomically(path, lambda temporary: save_file(model.state_dict(), temporary))
    load_weights(model, path)
    return model
