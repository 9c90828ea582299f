"""Files of tensors: safetensors, with a checksum; tensors that have a shape but no values."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from asr.errors import BundleError
from asr.runtime.files import open_regular, write_atomically

_DIGEST = "sha256"
_TYPES = {"F16", "BF16", "F32", "F64", "BOOL", "U8", "I8", "I16", "I32", "I64"}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str],
    write_others: Callable[[], object] = lambda: None,
) -> None:
    """Write tensors atomically, with their checksum in the file's metadata.

    `write_others` writes smaller files of the same folder, after the disk has taken the tensors.
    """
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    content = _sorted(save(tensors, metadata | {_DIGEST: _digest(tensors)}))

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)
        write_others()

    write_atomically(path, write)


def _sorted(content: bytes) -> bytes:
    """Return a file with its metadata sorted; safetensors writes them in a random order."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return content[:8] + text.ljust(end - 8) + content[end:]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file. Raises BundleError where it is damaged.

    Files of older versions have no checksum. The file is read and not mapped into memory, because a
    mapped file that is cut meanwhile would kill the process.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
        tensors = load(content)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    expected = (header.get("__metadata__") or {}).get(_DIGEST)  # it may be null
    if expected is not None and expected != _digest(tensors):
        raise _damaged(path, "its checksum does not match")
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """Read a file's metadata. Raises BundleError where it is damaged."""
    try:
        with open_regular(path), safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read only the shapes of the tensors. Raises BundleError where the file is damaged.

    The shapes are true, for the size of the file is checked against them. Raises BundleError also
    for types that no model has.
    """
    try:
        with open_regular(path), safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            types = {name: each.get_dtype() for name, each in slices.items()}
            shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    for name, found in types.items():
        if found not in _TYPES:
            raise BundleError(
                f"{path}: tensor {name} is of type {found}: convert it to float32, which `asr "
                "train` writes"
            )
    return shapes


def _damaged(path: Path, reason: object) -> BundleError:
    return BundleError(f"{path}: truncated or not a safetensors file ({reason}): copy it again")


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Let modules be built without memory and without values: their tensors are on `meta`."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Skip functions for whose values on `meta` torch would import its compiler, for a second.

    Those below are what most models need; other functions have their usual effect.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        if func is torch.hann_window:
            return torch.empty(args[0], device="meta")
        return func(*args, **kwargs)
