"""Codecs for any Flower app: a client mod, a server grid, and the state they keep."""
