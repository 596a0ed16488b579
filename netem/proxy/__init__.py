"""The shaping proxy: a link in real time, in user space, between any TCP client and its server."""
