"""A fuzzer of everything that parses what strangers send: see `__main__`."""
