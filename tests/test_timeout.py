"""A test that hangs ends, instead of all of CI with it."""

import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"


def test_a_test_that_hangs_fails_with_its_stack(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert 0 < float(pytestconfig.getini("faulthandler_timeout")) < 1800
    path = tmp_path / "test_it.py"
    path.write_text("import threading\ndef test_it():\n    threading.Event().wait()\n")
    command = [sys.executable, "-m", "pytest", "-c", SETTINGS, path, "-o", "faulthandler_timeout=1"]
    result = subprocess.run(
        [*command, "--rootdir", tmp_path], check=False, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert "Timeout" in result.stderr and "line 3 in test_it" in result.stderr
