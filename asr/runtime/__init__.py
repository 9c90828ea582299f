"""The machine: files, devices, processes, memory; no model code."""
