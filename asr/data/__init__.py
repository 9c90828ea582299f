"""Manifests of utterances to training batches."""
