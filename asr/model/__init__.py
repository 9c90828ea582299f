"""The network: projection, attention, front end, layers, transformer."""
