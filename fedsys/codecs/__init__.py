"""Codecs: one file, one way to write a float32 vector in fewer bytes."""
