"""The study of thesis 3.2 and 3.3: what low rank saves, by length and rank."""
