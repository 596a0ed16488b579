"""Running many clients on one machine."""
