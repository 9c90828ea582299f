"""Corpora on disk to lhotse cuts: one file per corpus, `corpus_writer` for all."""
