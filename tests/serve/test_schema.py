"""Schemathesis against the service's own OpenAPI document."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 413, 415]
"""  # a recording made at random is no recording, a name made at random names no model


@pytest.mark.costly
@pytest.mark.parametrize("seconds", [20, pytest.param(120, marks=pytest.mark.slow)])
def test_schemathesis_finds_nothing(service, tmp_path: Path, seconds: int) -> None:
    """The systematic requests take some of the time, and random ones all the rest."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = Path(sys.executable).with_name("schemathesis")
    result = subprocess.run(
        [command, "--config-file", "schemathesis.toml", "run",
         f"{service.client.base_url}/openapi.json", "--max-examples", "20", "--max-time",
         str(seconds), "--phases", "examples,coverage,fuzzing", "--seed", "1", "--no-color",
         "--request-timeout", "20"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " ✅ Coverage" in result.stdout
    assert service.client.get("/health/ready").status_code == 200
