"""What can go wrong, as a tree that callers can catch at the depth they care about.

    FedsysError
      ConfigError(ValueError)   the user's file, option or folder; nothing has started; exit code 2
      WireError                 bytes from the network that are not a payload we can trust
      LinkError                 a link description or trace that cannot be enforced
      DeployError               a real server, device or process that did not do its part

A message says where, what, which value, what is allowed, and, where known, how to mend it.
"""


class FedsysError(Exception):
    """Any error that fedsys raises on purpose."""


class ConfigError(FedsysError, ValueError):
    """The user's input is wrong; raised before any work starts."""


class WireError(FedsysError):
    """Bytes that came from the network are not a payload this receiver can trust."""


class LinkError(FedsysError):
    """A link description or a trace cannot be used."""


class DeployError(FedsysError):
    """A real process, port, key or device did not do its part."""
