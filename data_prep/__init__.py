"""Corpora on disk to lhotse cuts, one module a corpus."""
