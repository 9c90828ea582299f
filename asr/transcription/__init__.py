"""Recordings to transcripts: by a model on this machine, or by a service."""
