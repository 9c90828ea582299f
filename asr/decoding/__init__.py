"""Decode encoder outputs into hypotheses: beam search, CTC, rescoring, and their options."""
