"""Corpora on disk to lhotse cuts: a file each, and a verb in `asr/cli/prepare.py`."""
