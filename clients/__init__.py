"""One device, in the order things happen to it: receive, decode, train, encode, send."""
