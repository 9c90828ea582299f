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
from experiments.genome.tokenizer import UNK
from experiments.runner import Examples, batches, err, predict, train

# A site changes several tokens. If only one is hidden, the others reveal it, and the model learns
# nothing from its neighbors. So runs of tokens are hidden (Joshi et al. 2020), and more than the
# usual 15 %.
_MASKED_SHARE, _RUN = 0.4, 6
_RANK, _LR, _PATIENCE, PANEL_BATCH = 32, 3e-3, 5, 16


def configure(max_length: int, vocab_size: int) -> ClassifierConfig:
    """Return the shape: 2 layers for the thesis's 12, d_model 32 for 768, rank 32 for 256.

    Through E and F, which are windows, a hidden token sees only sums over some 16 neighbors.
    Through the convolution (Gulati et al. 2020) it sees each of the 15 tokens on its left and on
    its right. The thesis's layers have no convolution.
    """
    attention = {"kind": "linformer", "rank": _RANK, "length": max_length, "projection": "random"}
    model = {
        "d_model": 32, "d_inner": 64, "n_heads": 2, "dropout": 0.0, "norm": "pre",
        "projection": {"kind": "dense"},
        "encoder": {"n_layers": 2, "attention": attention, "convolution": 31},
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


def hide(sequences: list[Tensor], share: float, seed: int) -> list[Tensor]:
    """Return the sequences with [UNK] in place of a share of their tokens, in runs of 6.

    [UNK] stands for what shallow sequencing has not read; `fine_tune` starts it as [MASK].
    """
    torch.manual_seed(seed)
    hidden = []
    for tokens_S in sequences:
        unread_1S = sample_mask(torch.ones(1, len(tokens_S), dtype=torch.bool), share, _RUN)
        hidden.append(torch.where(unread_1S[0], UNK, tokens_S) if share else tokens_S)
    return hidden


@torch.inference_mode()
def complete(model: SequenceClassifier, sequences: list[Tensor]) -> list[Tensor]:
    """Return the sequences with the model's most probable token in place of each [UNK]."""
    completed, device = list[Tensor](), next(model.parameters()).device
    for tokens_BS, mask_BS, _ in batches([(tokens, 0) for tokens in sequences], 16):
        unread_BS = tokens_BS == UNK
        inputs = (x.to(device) for x in (tokens_BS, mask_BS, unread_BS))
        best_M = model.eval().reconstruct(*inputs).argmax(1).cpu()
        full_BS = tokens_BS.masked_scatter(unread_BS, best_M)
        completed += [row_S[mask_S] for row_S, mask_S in zip(full_BS, mask_BS, strict=True)]
    return completed


def masked_loss(
    model: SequenceClassifier, tokens_BS: Tensor, mask_BS: Tensor, _labels_B: Tensor
) -> Tensor:
    """Return the cross-entropy of masked tokens."""
    masked_BS = sample_mask(mask_BS, _MASKED_SHARE, _RUN)
    logits_MV = model.reconstruct(tokens_BS, mask_BS, masked_BS)
    return cross_entropy(logits_MV, tokens_BS[masked_BS])


def fine_tune(
    model: SequenceClassifier, examples: Examples, validation: Examples, epochs: int, seed: int
) -> SequenceClassifier:
    """Train on the labels; return the model of the epoch with the highest AUC on `validation`.

    Training ends after 5 epochs without a higher AUC.
    """
    torch.manual_seed(seed)  # the order depends on nothing that ran before
    model.state_dict()["embed.weight"][UNK] = model.special.detach()[1]
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
        *_, loss = train(model, examples, epochs, PANEL_BATCH, _LR, masked_loss)
        err.print(f"pre-training: {loss:.2f} nats a token; entropy of the tokens {entropy:.2f}")
        write_atomically(path, lambda temporary: save_file(model.state_dict(), temporary))
    load_weights(model, path)
    return model
