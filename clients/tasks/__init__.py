"""Tasks: one file, one model with its data, loss and metric."""
