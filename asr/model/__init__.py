"""Build the network: projection, attention, front end, layers, transformer."""
