"""Error rates of a recognizer, and the search of its decoding weights."""
