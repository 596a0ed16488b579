"""Link models: one file each, found by its name; ``Impl`` builds the link of one node."""
