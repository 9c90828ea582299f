"""Numbers of parameters."""

from torch import nn

from asr.model.transformer import SpeechTransformer


def count_parameters(module: nn.Module) -> int:
    """Return the number of weights, frozen ones too, tied ones once."""
    return sum(p.numel() for p in module.parameters())


def parameters_by_part(model: SpeechTransformer) -> dict[str, int]:
    """Return the parameters of each part of the network, from the input to the output."""
    decoder = model.decoder
    parts: dict[str, nn.Module] = {
        **{f"front end, {name}": part for name, part in model.frontend.parts().items()},
        "encoder": model.encoder,
        "embedding": decoder.embed,
        "decoder": decoder.layers,
        "output projection": nn.ModuleList([decoder.norm, decoder.output]),
    }
    if model.ctc_head is not None:
        parts["CTC head"] = model.ctc_head
    if model.sounds_head is not None:
        parts["CTC head of sounds"] = model.sounds_head
    return {name: count_parameters(module) for name, module in parts.items()}
