"""Corpora on disk to lhotse cuts: a file like `aishell1.py`, and a verb in `asr/cli/prepare.py`, each."""
