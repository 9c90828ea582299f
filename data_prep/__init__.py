"""Corpora on disk to lhotse cuts: each a file like `aishell1.py` and a verb in `asr/cli/prepare.py`."""
