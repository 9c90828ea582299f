"""The engine: a process that has the models, and the service's end of its pipe."""
