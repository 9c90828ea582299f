"""The models that the engine serves, by their names."""

import asr
from asr.transcription.recognizer import Recognizer
from serve.settings import Settings


def load(settings: Settings) -> dict[str, Recognizer]:
    """Load the bundles with their language models. Raises BundleError or ConfigError."""
    recognizers = {
        name: asr.load(folder, settings.device, settings.int8)
        for name, folder in settings.models.items()
    }
    for recognizer in recognizers.values():  # load now: later no progress would be reported
        recognizer.language_model(recognizer.config.decoding)
        recognizer.decoder.check(recognizer.config.decoding)
    return recognizers


def streaming_names(recognizers: dict[str, Recognizer]) -> frozenset[str]:
    """Return the names of the models with a streaming encoder."""
    found = (n for n, r in recognizers.items() if r.config.model.encoder.streaming is not None)
    return frozenset(found)
