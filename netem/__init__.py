"""The weak network: one link description, and what it does to a message."""
