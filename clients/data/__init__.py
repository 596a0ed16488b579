"""Data of one client: splitting a data set, and cutting it into batches."""
