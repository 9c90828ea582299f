"""The model card, README.md of a bundle; `train.run` and `compression.compress` give its facts."""

from typing import Any

from tabulate import tabulate

from asr.config import Config


def model_card(config: Config, parameters: int, facts: dict[str, Any]) -> str:
    """Return the text of a bundle's README.md; `facts` are the rows of its table."""
    cells = [(name, str(value)) for name, value in facts.items()]
    rows = tabulate(cells, ["fact", "value"], tablefmt="pipe", disable_numparse=True)
    kind: str = config.model.projection.kind
    places = (f"{place} {each.kind}" for place, each in config.model.projections.items())
    kind += f" ({', '.join(places)})" if config.model.projections else ""
    if config.model.ranks:
        kind += f" (of {len(config.model.ranks)} modules compressed)"
    text = {
        "upper": "upper case", "lower": "lower case", "lower_tr": "lower case of Turkish",
        "keep": "case kept",
    }[config.tokenizer.case]  # fmt: skip
    if config.tokenizer.punctuation == "remove":
        text += ", no punctuation"
    return f"""# A speech recognizer trained by lrt-asr

{parameters / 1e6:.2f} M parameters, {kind} projections, {config.features.kind} features at
{config.features.sample_rate} Hz, {config.tokenizer.vocab_size} {config.tokenizer.kind} tokens.

{rows}

Text is normalized by `asr.normalization.normalize_text` (NFKC, {text}, no spaces beside Chinese
characters) before training and before scoring.

```python
import asr
print(asr.load("this folder").transcribe("a.wav").text)
```
"""
