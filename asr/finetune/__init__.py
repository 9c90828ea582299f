"""A trained bundle learns from further recordings: do they fit, how, and what is forgotten."""
