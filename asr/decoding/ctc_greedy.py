"""TODO: ctc_greedy."""

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss, pad
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.ctc_prefix import BLANK
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.tokenizer import EOS, SOS, UNK


def greedy_texts(
    logp_BSV: Tensor, steps_B: Tensor, config: DecodingOptions, word_count_V: Tensor
) -> list[Hypothesis]:
    """The text of each utterance's likeliest path; its log P is that of all paths to the text.

    A token's confidence is its highest probability in the steps where the path has it.
    """
    silent = torch.tensor((SOS, EOS, UNK), device=logp_BSV.device)
    best_BS = logp_BSV.index_fill(2, silent, -torch.inf).argmax(-1)
    starts_BS = (best_BS != BLANK) & (best_BS != pad(best_BS, (1, 0), value=BLANK)[:, :-1])
    texts, peaks = [], []
    for logp_SV, best_S, starts_S, n in zip(
        logp_BSV, best_BS, starts_BS, steps_B.tolist(), strict=True
    ):
        path_S, spans_S = best_S[:n], starts_S[:n].cumsum(0)
        tokens_U = path_S[starts_S[:n]]
        p_S = logp_SV[:n].gather(1, path_S[:, None]).squeeze(1).exp()
        p_S = p_S.masked_fill(path_S == BLANK, 0.0)
        peaks.append(p_S.new_zeros(len(tokens_U) + 1).scatter_reduce(0, spans_S, p_S, "amax")[1:])
        texts.append(tokens_U)
    lengths_B = torch.tensor([len(t) for t in texts], device=steps_B.device)
    labels_BU = pad_sequence(texts, batch_first=True)
    log_p_B = -ctc_loss(
        logp_BSV.double().transpose(0, 1), labels_BU, steps_B, lengths_B, BLANK, "none"
    )
    length_B = config.gamma * torch.stack([word_count_V[t].sum() for t in texts]).sqrt()
    columns = zip(texts, log_p_B.tolist(), length_B.tolist(), peaks, strict=True)
    return [
        Hypothesis(
            tuple(tokens.tolist()), config.alpha * log_p + length, None, log_p, "eos",
            length_score=length, confidences=tuple(peak.tolist()),
        )
        for tokens, log_p, length, peak in columns
    ]  # fmt: skip
