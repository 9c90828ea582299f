"""ASGI middleware: access log, keys, limits."""
