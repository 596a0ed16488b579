"""The command line: the composition root, the only code that may import all four packages."""
