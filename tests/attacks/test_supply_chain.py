"""What is installed is what was tried: pins with hashes, and a container that may do little."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# Their builds (for CPUs, for each version of CUDA) have hashes of their own; see SECURITY.md.
BUILT_BY_MACHINE = {"torch"}


def pins(name: str) -> dict[str, str]:
    """Return the versions of a file of requirements by package."""
    text = (ROOT / name).read_text("utf-8")
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


LOCKS = ["requirements.lock", "requirements-train.lock", "requirements-dev.lock"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_a_lock_has_hashes_and_is_that_of_the_constraints(name: str) -> None:
    """M18: what a package index serves is compared with a hash."""
    locked, wanted = pins(name), pins("constraints.txt")
    assert locked and locked == {package: wanted[package] for package in locked}
    entries = re.split(r"^(?=\S+==)", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)


def test_the_locks_leave_nothing_out_but_torch() -> None:
    """M18: no package that an installation needs comes without a hash."""
    assert pins("constraints.txt").keys() - pins("requirements-dev.lock").keys() == {"torch"}
    assert pins("requirements.lock").keys() < pins("requirements-dev.lock").keys()
    assert pins("requirements-train.lock").keys() < pins("requirements-dev.lock").keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extra, lock in (("serve", "requirements.lock"), ("train", "requirements-train.lock")):
        needed = project["dependencies"] + project["optional-dependencies"][extra]
        direct = {canonicalize_name(re.split(r"[\[>=]", one)[0]) for one in needed}
        assert direct - pins(lock).keys() == BUILT_BY_MACHINE
    assert not pins("requirements.lock").keys() & {"lightning", "lhotse", "tensorboard", "numba"}


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile"])
def test_installing_checks_the_hashes(name: str) -> None:
    """M18: pip resolves nothing by itself where it installs for users."""
    text = (ROOT / name).read_text("utf-8").replace("\\\n", " ")
    commands = re.findall(r"(?:pip install|\$\(PIP\)) ([^\n&]*)", text)
    commands = [c for c in commands if not c.startswith("--quiet --no-compile")]  # PIP itself
    locked = [c for c in commands if "--require-hashes" in c]
    assert len(locked) == 1 and ("requirements" in locked[0] or locked[0].endswith("$(1)"))
    others = [c for c in commands if c not in locked]
    assert all("--no-deps" in c or set(c.split()[-1:]) <= BUILT_BY_MACHINE for c in others), others


def test_the_container_has_no_rights_that_it_does_not_need() -> None:
    """M18: Kubernetes drops capabilities, filters system calls and gives no account's token."""
    deployment = next(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text("utf-8")))
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False


def test_the_rules_of_bandit_are_part_of_linting() -> None:
    """M18: `make test` refuses code that starts shells, unpickles or makes weak names."""
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert not [rule for rule in lint["ignore"] if rule in ("S", "S3", "S6")]
