"""Links enforced in this machine's kernel: network namespaces, queues, and a box between TUNs."""
