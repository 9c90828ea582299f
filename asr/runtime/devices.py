"""Choose a device by name, and tell what it computes fast."""

import torch

from asr.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device for auto, cpu, cuda or cuda:N. Raises ConfigError if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name}: write auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: this machine has no such GPU, use cpu or auto")
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Tell whether a device computes in bfloat16 faster than in float32."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    can: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # of torch 2.11 and later
    return bool(can.get("avx512_bf16") or can.get("amx_bf16"))


def is_avx2() -> bool:
    """Tell whether the processor computes with AVX2, without AVX-512."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"
