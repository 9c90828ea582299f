"""Decode greedily by the CTC head: the most likely path, collapsed (Graves et al. 2006, sec. 3.2).

Legend: B utterances, S encoder steps, U tokens, V vocabulary.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss, pad
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.ctc_prefix import BLANK
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.tokenizer import EOS, SOS, UNK

_NEVER_SAID = (SOS, EOS, UNK)


def greedy_texts(
    logp_BSV: Tensor, steps_B: Tensor, options: DecodingOptions, num_words_V: Tensor
) -> list[Hypothesis]:
    """Return the text of each utterance's most likely path.

    Its log-probability is summed over all paths to the text. A token's confidence is its highest
    probability in the steps that emit it.
    """
    never = torch.tensor(_NEVER_SAID, device=logp_BSV.device)
    best_BS = logp_BSV.index_fill(2, never, -torch.inf).argmax(-1)
    starts_BS = (best_BS != BLANK) & (best_BS != pad(best_BS, (1, 0), value=BLANK)[:, :-1])
    texts, peaks = [], []
    for b, n in enumerate(steps_B.tolist()):
        path_S, starts_S = best_BS[b, :n], starts_BS[b, :n]
        p_S = logp_BSV[b, :n].gather(1, path_S[:, None]).squeeze(1).exp()
        p_S = p_S.masked_fill(path_S == BLANK, 0.0)
        texts.append(path_S[starts_S])
        zeros = p_S.new_zeros(len(texts[b]) + 1)
        peaks.append(zeros.scatter_reduce(0, starts_S.cumsum(0), p_S, "amax")[1:].tolist())
    lengths_B = torch.tensor([len(text) for text in texts], device=steps_B.device)
    labels_BU, logp_SBV = pad_sequence(texts, batch_first=True), logp_BSV.double().transpose(0, 1)
    log_p_B = -ctc_loss(logp_SBV, labels_BU, steps_B, lengths_B, BLANK, "none")
    length_B = options.gamma * torch.stack([num_words_V[text].sum() for text in texts]).sqrt()
    columns = zip(texts, log_p_B.tolist(), length_B.tolist(), peaks, strict=True)
    return [
        Hypothesis(
            tuple(text.tolist()), options.alpha * log_p + length, None, log_p, "eos",
            length_score=length, confidences=tuple(peak),
        )
        for text, log_p, length, peak in columns
    ]  # fmt: skip


class GreedyPath:
    """The most likely path of one utterance, whose steps may come in blocks of any size.

    `tokens`, their `confidences` and their `spans` (first step, step after the last) are those of
    the collapsed path; `log_prob` is that of the path itself.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.confidences: list[float] = []
        self.spans: list[list[int]] = []
        self.log_prob, self.n_steps, self._last = 0.0, 0, BLANK

    @property
    def trailing_blanks(self) -> int:
        """Return the number of steps since the last token."""
        return self.n_steps - (self.spans[-1][1] if self.spans else 0)

    def extend(self, logp_SV: Tensor) -> None:
        """Take the log-probabilities of the next steps."""
        never = torch.tensor(_NEVER_SAID, device=logp_SV.device)
        best = logp_SV.index_fill(1, never, -torch.inf).max(1)
        for logp, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            self.log_prob += logp
            if token not in (BLANK, self._last):
                self.tokens.append(token)
                self.confidences.append(0.0)
                self.spans.append([self.n_steps, 0])
            self.n_steps += 1
            if token != BLANK:
                self.confidences[-1] = max(self.confidences[-1], math.exp(logp))
                self.spans[-1][1] = self.n_steps
            self._last = token
