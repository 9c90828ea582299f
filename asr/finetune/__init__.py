"""Fine-tuning of a bundle: whether recordings fit it, the recipe, and what it forgets."""
