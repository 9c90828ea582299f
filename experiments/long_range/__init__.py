"""Tasks of long sequences from the source documents: ListOps, Pathfinder and duplication."""
