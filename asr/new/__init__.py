"""From recordings of one's own to a model: what a corpus is like, and the recipe for it."""
