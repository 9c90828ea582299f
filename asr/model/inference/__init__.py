"""Compute the same results as the network's own modules, but faster, for inference on a CPU."""
