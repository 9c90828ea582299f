"""Which extra brings a package that a verb needs; inference needs none (pyproject.toml)."""

from importlib.util import find_spec

from asr.errors import ConfigError

MODULES = {
    "train": (
        "lightning", "lhotse", "scipy", "sklearn", "jiwer", "tensorboard", "espeakng_loader",
        "charset_normalizer",
    ),
    "serve": (
        "fastapi", "starlette", "uvicorn", "httptools", "python_multipart", "pydantic_settings",
        "prometheus_client", "websockets",
    ),
    "cloud": ("fsspec",),  # and by name the package of a URL's kind
    "ray": ("ray",),
}  # fmt: skip


def require(extra: str, verb: str) -> None:
    """Raise ConfigError where a package of an extra is missing."""
    if not all(map(find_spec, MODULES[extra])):
        raise ConfigError(_sentence(extra, verb))


def require_ray(engine: str, verb: str) -> None:
    """Raise ConfigError where an engine is none, or Ray is missing."""
    if engine != "ray" and not engine.startswith("ray://"):
        raise ConfigError(f"--engine {engine}: give ray, or ray://HOST:PORT")
    require("ray", f"{verb} --engine ray")


def missing_extra(error: Exception, verb: str) -> str | None:
    """Return the sentence for an import that an extra would satisfy, None for other errors."""
    module = (getattr(error, "name", None) or "").partition(".")[0]
    for extra, modules in MODULES.items():
        if isinstance(error, ModuleNotFoundError) and module in modules:
            return _sentence(extra, verb)
    return None


def _sentence(extra: str, verb: str) -> str:
    return f"asr {verb} needs the extra '{extra}': pip install 'lrt-asr[{extra}]'"
