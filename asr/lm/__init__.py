"""Language models for decoding: n-grams and Transformers."""
