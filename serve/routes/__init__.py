"""The routes, and the bodies of their requests and responses."""
