"""The device of a name."""

import torch

from asr.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device auto, cpu, cuda or cuda:N. Raises ConfigError where it does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: write auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: this machine has no such GPU, use cpu or auto")
    return device
