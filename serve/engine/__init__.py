"""The engine: `process` has the models and decodes; `client` starts, watches and restarts it."""
