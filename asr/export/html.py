"""Export a recognizer as one HTML file that needs no server and no network.

The file holds the weights in 14 bits, the recognizer in JavaScript (`asr/export/page/`) with a
small kernel for products of matrices (`gemm.wat`), and the page of the service (`serve/page/`). A
worker of the page answers the requests that the service would answer. The recognizer consists of
features, encoder and CTC prefix beam search, with an n-gram where the bundle decodes with one. The
decoder is left out. Where the encoder streams, the microphone has live text.
"""

import base64
import hashlib
import json
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.audio.features import FbankConfig
from asr.bundle import Bundle
from asr.decoding.endpoint import Endpoint
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError
from asr.export.page_weights import Table, pack_weights
from asr.export.wasm import assemble
from asr.lm.loading import load_language_model
from asr.lm.ngram import NGram
from asr.runtime.files import write_text

MOST_BYTES = 32_000_000  # a page of 22 MB was tried (docs/results.md)
# The recognizer's modules, and those of the page, in the order of their imports.
RECOGNIZER = (
    "memory", "layers", "frontend", "network", "features", "fbank", "prefix_beam", "ngram", "ctc",
    "audio", "subtitles", "weights", "recognizer", "stream",
)  # fmt: skip
_PAGE = ("i18n", "files", "microphone", "player", "transcript", "dictation", "main")
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)
_LONGEST_CHUNK = 20.0  # seconds, where the bundle names none

_OWN, _SERVED = files("asr.export") / "page", files("serve") / "page"


def export_html(bundle: Bundle, name: str, out: Path) -> int:
    """Write the page of a recognizer of this name; return the size of the file in bytes.

    Raises ConfigError if `out` exists or is no .html file, or if the page cannot run the model.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: --format html writes one file: give a name with .html")
    if out.exists():
        raise ConfigError(f"{out}: already exists: give --out a new file, or remove it")
    check(bundle)
    page = build_page(bundle, name)
    n_bytes = len(page.encode())
    if n_bytes > MOST_BYTES:
        raise ConfigError(
            f"--format html: the page would have {n_bytes / 1e6:.1f} MB, more than the "
            f"{MOST_BYTES / 1e6:g} MB that a page may have: train or compress a smaller model, or "
            "export it as onnx"
        )
    write_text(out, page)
    return n_bytes


def check(bundle: Bundle) -> None:
    """Raise ConfigError that names the part of a model that a page cannot run."""
    model = bundle.config.model
    names = [n for n in model.ranks if n.startswith("frontend.block") or "depthwise" in n]
    sparse = next((n for n in weights_of(bundle) if n.endswith(".places")), "").rpartition(".")[0]
    attention = model.encoder.attention.kind
    problems = {
        "model.ctc_weight: the model has no CTC head, by which alone a page recognizes: train it "
        "with a weight above 0": bundle.model.ctc_head is None,
        f"model.encoder.attention.kind: {attention} is not computed in a page, only full is": (
            attention != "full"
        ),
        "model.ranks: a page does not compute factorized convolutions, such as "
        f"{''.join(names[:1])}: compress linear maps alone": bool(names),
        f"model: {sparse} is sparse, and a page computes only dense and low_rank maps": bool(
            sparse
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise ConfigError(f"--format html: {problem}")


def options_of(bundle: Bundle) -> DecodingOptions:
    """Return the options of the page: those of `asr transcribe --method ctc_beam`."""
    return bundle.config.decoding.changed({"method": "ctc_beam"})


def language_model(bundle: Bundle) -> NGram | None:
    """Return the n-gram that the bundle decodes with, if any. Raises ConfigError for no n-gram."""
    options = options_of(bundle)
    if options.lm is None or not options.lm_weight:
        return None
    lm = load_language_model(options.lm, bundle.tokenizer, torch.device("cpu"))
    if not isinstance(lm, NGram):
        raise ConfigError(
            "--format html: decoding.lm: a page can hold an n-gram, not a Transformer: give one of "
            "`asr train-lm --order`, or set decoding.lm_weight to 0"
        )
    return lm


def build_page(bundle: Bundle, name: str) -> str:
    """Return the whole HTML file."""
    lm = language_model(bundle)
    tables = {f"lm.{k}": v for k, v in lm.state_dict().items()} if lm else {}
    blob, table = pack_weights(weights_of(bundle) | tables)
    data = {
        "config": json.dumps(facts(bundle, name, table, lm), ensure_ascii=False).replace(
            "<", "\\u003c"
        ),
        "weights": base64.b64encode(blob).decode(),
        "recognizer": recognizer_script() + _module(_read(_OWN, "worker.js")),
        "capture": _read(_SERVED, "capture.js"),
    }
    blocks = [f'<script type="text/plain" id="{key}">{text}</script>' for key, text in data.items()]
    script, style = _page_script(), _read(_SERVED, "style.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}' 'wasm-unsafe-eval' data:; "
        f"worker-src blob:; style-src '{_digest(style)}'; img-src data:; media-src blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(_read(_SERVED, "icon.svg").encode()).decode()
    changes = {
        '<meta charset="utf-8">': '<meta charset="utf-8">\n  <meta http-equiv="Content-Security-'
        f'Policy" content="{policy}">\n  <meta name="referrer" content="no-referrer">',
        'href="page/icon.svg"': f'href="data:image/svg+xml;base64,{icon}"',
        '<link rel="stylesheet" href="page/style.css">': f"<style>{style}</style>",
        '  <script type="module" src="page/main.js"></script>\n': "",
        ' The service itself does not: see <a href="docs">its API</a>.': "",
        '    <a href="docs">API</a>\n': "",
        "The service stores no recordings.": "Recordings do not leave this page.",
        "</body>": "\n".join([*blocks, f'<script type="module">{script}</script>', "</body>"]),
    }
    page = _read(_SERVED, "index.html")
    for old, new in changes.items():
        assert page.count(old) == 1, f"index.html has no {old}"
        page = page.replace(old, new)
    return page


def facts(bundle: Bundle, name: str, table: Table, lm: NGram | None = None) -> dict[str, Any]:
    """Return all that a page knows of a model but the weights; `table` tells where these are."""
    config, options = bundle.config, options_of(bundle)
    features, model = config.features, config.model
    frame: dict[str, float] = {"n_fft": features.n_fft, "hop": features.hop_length}
    if isinstance(features, FbankConfig):
        frame |= {"high_hz": features.high_hz, "floor": features.floor}
    kept = {
        "beam_size", "alpha", "gamma", "lm_weight", "lm_bonus", "n_best", "speech_threshold",
        "confidence_threshold",
    }  # fmt: skip
    return {
        "name": name,
        "features": {**features.model_dump(), **frame},
        "model": {
            "norm": model.norm,
            "n_heads": model.n_heads,
            "frontend": {"kind": model.frontend.kind},
            "encoder": model.encoder.model_dump(
                include={"n_layers", "convolution", "conditioning", "sounds", "streaming"}
            ),
        },
        "decoding": options.model_dump(include=kept),
        "lm": lm and {"order": lm.order, "first": lm.first, "vocab_size": lm.vocab_size},
        "endpoint": Endpoint.within(options.chunk_seconds).model_dump(),
        "chunk_seconds": min(options.chunk_seconds or _LONGEST_CHUNK, _LONGEST_CHUNK),
        "tokens": bundle.tokenizer.tokens(),
        "punctuation": config.tokenizer.punctuation,
        "word_counts": bundle.tokenizer.word_counts(),
        "weights": table,
        "kernel": base64.b64encode(kernel()).decode(),
    }


def weights_of(bundle: Bundle) -> dict[str, Tensor]:
    """Return the tensors that the page needs by name; the features' begin with `features.`."""
    found = {k: v for k, v in bundle.model.state_dict().items() if not k.startswith("decoder.")}
    return found | {f"features.{k}": v for k, v in bundle.features.state_dict().items()}


def kernel() -> bytes:
    """Return the WebAssembly module that multiplies matrices."""
    return assemble(_read(_OWN, "gemm.wat"))


def recognizer_script() -> str:
    """Return the recognizer as one script: each module's exports are constants of the script."""
    return "".join(_module(_read(_OWN, f"{name}.js")) for name in RECOGNIZER)


def _page_script() -> str:
    modules = {name: _read(_SERVED, f"{name}.js") for name in _PAGE}
    capture = 'new URL("capture.js", import.meta.url)'
    assert modules["microphone"].count(capture) == 1
    modules["microphone"] = modules["microphone"].replace(capture, "captureUrl()")
    own = [_read(_OWN, "audio.js"), _read(_OWN, "service.js")]
    first = modules.pop("i18n")
    return "".join(map(_module, [first, *own, *modules.values()]))


def _module(source: str) -> str:
    """Return a module as a statement that declares its exports; its imports are declared before."""
    names = [match[1] for match in _EXPORT.findall(source)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub("", source))
    exports = ", ".join(names)
    return f"const {{ {exports} }} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n"


def _read(folder: Traversable, name: str) -> str:
    return (folder / name).read_text("utf-8")


def _digest(content: str) -> str:
    """Return the source of a Content-Security-Policy that allows this content alone."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
