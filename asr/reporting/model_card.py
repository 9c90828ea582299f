"""What a bundle says of itself: its size by part, and the model card."""

from typing import Any

from asr.config import Config


def model_card(config: Config, parameters: int, facts: dict[str, Any]) -> str:
    """README.md of a bundle; `facts` become the rows of its table."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    kind: str = config.model.projection.kind
    if config.model.ranks:
        kind += f" (of {len(config.model.ranks)} modules compressed)"
    return f"""# A speech recogniser made by lrt-asr

{parameters / 1e6:.2f} M parameters, {kind} projections, {config.features.kind} features at
{config.features.sample_rate} Hz, {config.tokenizer.vocab_size} {config.tokenizer.kind} tokens.

| fact | value |
|---|---|
{rows}

Text is normalized by `asr.tokenizer.normalize_text` (NFKC, upper case, no spaces beside Chinese
characters) before training and before scoring.

```python
import asr
print(asr.load("this folder").transcribe("a.wav").text)
```
"""
