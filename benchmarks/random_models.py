"""Make models of recipes with random weights and batches of noise; run training and search."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from asr.bundle import Bundle
from asr.config import load_config
from asr.data.dataset import Batch
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.scorers import JointScorer
from asr.tokenizer import EOS, SOS, SPECIAL, Tokenizer
from asr.train.module import SpeechModule
from asr.transcription.recognizer import Recognizer

RECIPES = Path(__file__).parent.parent / "recipes"
_FIRST = 0x4E00  # Chinese characters from here are the vocabulary


def random_bundle(recipe: str, changes: Sequence[str] = (), seed: int = 0) -> Bundle:
    """Return the untrained model of a recipe, such as demo/lrt, with as many tokens as it says."""
    config = load_config(RECIPES / f"{recipe}.yaml", list(changes))
    n_tokens = (config.tokenizer.vocab_size or 100) - len(SPECIAL)
    texts = [chr(_FIRST + n) for n in range(n_tokens)]
    torch.manual_seed(seed)
    return Bundle.create(config, Tokenizer.train(texts, config.tokenizer))


def best_frontend() -> list[str]:
    """Return the changes that give a recipe the features and the front end of best.yaml."""
    best = load_config(RECIPES / "aishell1/best.yaml", [])
    parts = {"features": best.features, "model.frontend": best.model.frontend}
    return [f"{key}={part.model_dump_json()}" for key, part in parts.items()]


def noise_batch(bundle: Bundle, n: int, seconds: float, n_tokens: int, seed: int = 0) -> Batch:
    """Return utterances of noise with random texts, all of one length."""
    generator = torch.Generator().manual_seed(seed)
    config, size = bundle.config, bundle.tokenizer.vocab_size - len(SPECIAL)
    waves = torch.randn(n, round(seconds * config.features.sample_rate), generator=generator)
    with torch.inference_mode():
        feats = torch.stack([bundle.features(wave * 0.1) for wave in waves])
    drawn = torch.randint(size, (n, n_tokens), generator=generator)
    texts = ["".join(chr(_FIRST + token) for token in row) for row in drawn.tolist()]
    tokens_BU = torch.tensor([[SOS, *bundle.tokenizer.encode(text), EOS] for text in texts])
    return Batch(
        ids=[str(i) for i in range(n)],
        texts=texts,
        feats_BTF=feats.clone(),
        frames_B=torch.full((n,), feats.shape[1]),
        tokens_BU=tokens_BU,
        lengths_B=torch.full((n,), tokens_BU.shape[1]),
    )


def training_step(
    bundle: Bundle, device: torch.device, bfloat16: bool = False, compiler: str | None = None
) -> Callable[[Batch], Tensor]:
    """Return a function that takes an optimizer step on a batch and returns its loss, a scalar.

    `compiler` is a backend of torch.compile for the network.
    """
    module = SpeechModule(bundle, total_steps=1).to(device).train()
    adam = Adam(module.parameters(), 3e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if compiler:
        module.model.compile(backend=compiler)

    def step(batch: Batch) -> Tensor:
        adam.zero_grad()
        labels_L = module.labels(batch)[:-1].clamp(min=1)
        weights_L = (torch.tensor(module.loss_weights) / labels_L).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            sums_L = module.losses(batch, module.augment(batch))
        loss = (sums_L * weights_L).sum()
        torch.autograd.backward(loss)
        clip_grad_norm_(module.parameters(), bundle.config.training.clip_norm)
        adam.step()
        return loss.detach()

    return step


def beam_search(
    bundle: Bundle, device: torch.device, n_tokens: int
) -> Callable[[Batch], list[tuple[int, ...]]]:
    """Return a function from a batch's features to each best text, of exactly so many tokens."""
    with torch.no_grad():
        bundle.model.decoder.output.bias[EOS] = -1e4
    recognizer = Recognizer(bundle, str(device))
    model, options = recognizer.model, bundle.config.decoding
    search = BeamSearch(options, torch.ones(bundle.tokenizer.vocab_size, device=device))

    @torch.inference_mode()
    def run(batch: Batch) -> list[tuple[int, ...]]:
        encoded = recognizer.decoder.encode(batch.feats_BTF, batch.frames_B)
        steps_B = encoded.mask_BS.sum(1)
        ctc = None
        if options.ctc_weight and encoded.logp_BSV is not None:
            ctc = CtcPrefixScorer(encoded.logp_BSV, steps_B, options.beam_size)
        state = model.decoder.start(encoded.memory_BSD, encoded.mask_BS)
        scorer = JointScorer(model.decoder.step, state, ctc)
        found = search(scorer, torch.full_like(steps_B, n_tokens))
        return [tuple(nbest[0].tokens) for nbest in found]

    return run
