"""Run the joint search of commit aa6b0bc (the first plan) for `decoding_speed --before`.

It runs with a checkout of that commit as PYTHONPATH, so modules have the names of that commit. The
decoder and the CTC head know the text, as in `benchmarks.our_decoders` with `sure`.
"""

import sys
from importlib import import_module

import torch

STEPS, BEAM, TOKENS, VOCAB, D, CTC_WEIGHT = 112, 8, 24, 4364, 512, 0.3


def serve(threads: int) -> None:
    """Search one utterance's text as often as each input line says; print `done` after it."""
    decoding, tokenizer = import_module("asr.decoding"), import_module("asr.tokenizer")
    score, search = import_module("asr.score"), import_module("asr.search")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rank = import_module("asr.model.projection").LowRankConfig(rank=50)
    config = import_module("asr.model.transformer").ModelConfig
    model = config(projection=rank, ctc_weight=CTC_WEIGHT).build(161, VOCAB).eval()
    decoder = model.decoder = import_module("asr.model.inference").FastDecoder(model.decoder)
    n_special = len(tokenizer.SPECIAL)
    text = torch.randperm(VOCAB - n_special)[:TOKENS] + n_special
    likely_UV = torch.zeros(STEPS + 2, VOCAB)
    likely_UV[:TOKENS].scatter_(1, text[:, None], 16.0)
    likely_UV[TOKENS:, tokenizer.EOS] = 16.0
    step = decoder.step
    decoder.step = lambda tokens, state: (
        step(tokens, state) + likely_UV[state.position - 1]
    ).log_softmax(-1)
    logits_SV = torch.randn(STEPS, VOCAB)
    logits_SV[:, 0] = 15.0
    at = torch.arange(TOKENS) * (STEPS // TOKENS)
    logits_SV[at] = torch.randn(TOKENS, VOCAB).scatter(1, text[:, None], 16.0)
    mask_1S = torch.ones(1, STEPS, dtype=torch.bool)
    encoded = decoding.Encoded(torch.randn(1, STEPS, D), mask_1S, logits_SV.log_softmax(-1)[None])
    options = score.SearchConfig(beam_size=BEAM, ctc_weight=CTC_WEIGHT, n_best=1)
    find = search.BeamSearch(options, torch.ones(VOCAB))
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line.split()[1])):
            found = decoding.find_texts(model, encoded, find)
            assert found[0][0].tokens == tuple(text.tolist())
        print("done", flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[-1]))
