"""Handwritten digits, learned by a federation: knows nothing of fedsys but for two lines."""
