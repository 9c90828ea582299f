"""Put the recipes into the wheel, as asr/recipes; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Copy the packages of pyproject.toml, and recipes/."""

    def run(self) -> None:
        """Copy them; an editable installation finds recipes/ beside asr/."""
        super().run()
        if not self.editable_mode:
            inside = Path(self.build_lib, "asr", "recipes")
            shutil.rmtree(inside, ignore_errors=True)  # of an earlier build
            shutil.copytree("recipes", inside, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithRecipes})
