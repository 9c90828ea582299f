"""Processes that look at recordings run no file of the working folder."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os
from data_prep import cuts
before = dict(os.environ)
if __name__ == "__main__":
    with cuts._pool(2, True) as pool:
        assert pool.submit(len, "abc").result() == 3
    assert dict(os.environ) == before
    print("done")
"""


@pytest.mark.costly
def test_they_run_no_module_of_the_working_folder_and_leave_the_environment(tmp_path: Path) -> None:
    script, folder = tmp_path / "script" / "run.py", tmp_path / "folder"
    script.parent.mkdir()
    folder.mkdir()
    script.write_text(f"import sys\nsys.path.append({str(ROOT)!r})\n{SCRIPT}")
    (folder / "soundfile.py").write_text("open('ran', 'w').close()\n")
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert [path.name for path in folder.iterdir()] == ["soundfile.py"]
