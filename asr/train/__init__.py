"""Training on Lightning: the only folder that knows it."""
