"""Let PyPI's torchaudio import beside a CPU build of torch.

Its compiled libraries are linked against CUDA and fail to load there; nothing here needs them
(transforms and resampling are Python). They are removed only where loading them is what fails.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Try the import; on the known failure remove the libraries, say so, and try again."""
    attempt = [sys.executable, "-c", "import torch, torchaudio; print(torch.version.cuda)"]
    first = subprocess.run(attempt, capture_output=True, text=True, check=False)
    if first.returncode == 0:
        return
    if "Could not load this library" not in first.stderr and "libcud" not in first.stderr:
        sys.exit(f"torchaudio does not import, and this script cannot fix it:\n{first.stderr}")
    spec = importlib.util.find_spec("torchaudio")
    assert spec is not None
    assert spec.origin is not None
    for library in sorted((Path(spec.origin).parent / "lib").glob("*.so")):
        library.unlink()
        print(f"removed {library.name}: linked against CUDA, which this torch is not")
    subprocess.run(attempt, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
