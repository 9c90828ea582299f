"""Duplication: a causal model writes a random text again (Kitaev et al. 2020; Merali 2020, fig. 2).

A sequence is 0 w 0 w with w random; only the second w can be predicted.
Legend: B sequences, U tokens, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.clip_grad import clip_grad_norm_

from asr.lm.transformer import LanguageTransformer
from asr.model.attention import follow_step, stepped_kernels


def sequences(n: int, length: int, n_tokens: int, generator: torch.Generator) -> Tensor:
    """Return (n, 2 · length) tokens, where w has length - 1 of 1 to `n_tokens`."""
    w = torch.randint(1, n_tokens + 1, (n, length - 1), generator=generator)
    half = torch.cat((torch.zeros(n, 1, dtype=torch.long), w), 1)
    return torch.cat((half, half), 1)


def loss_of(model: LanguageTransformer, tokens_BU: Tensor) -> Tensor:
    """Return the mean cross-entropy of the second w, in nats."""
    start = tokens_BU.shape[1] // 2
    logits_BUV = model(tokens_BU[:, :-1])[:, start:]
    return cross_entropy(logits_BUV.flatten(0, 1), tokens_BU[:, start + 1 :].flatten())


def train(
    model: LanguageTransformer, steps: int, batch: int, length: int, n_tokens: int, lr: float
) -> Iterator[float]:
    """Train with Adam on new sequences in each step; yield the loss of each step."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    model.train()
    kernels = stepped_kernels(model)  # no causal kind has anything to do at a step's end
    for step in range(steps):
        follow_step(kernels, step)
        loss = loss_of(model, sequences(batch, length, n_tokens, generator))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        yield loss.item()
