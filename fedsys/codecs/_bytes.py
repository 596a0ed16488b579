"""Reading bytes that came from the network: every read is checked against what is there."""

from fedsys.errors import WireError

MAX_VARINT_BYTES = 9


def varint(value: int) -> bytes:
    """A non-negative integer below 2**63 as little-endian base 128 (LEB128)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A position in received bytes; each read moves it or raises WireError naming ``what``."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes | bytearray | memoryview, what: str) -> None:
        """Start at the first byte of ``data``; nothing is copied."""
        self._data = memoryview(data)
        self._what = what
        self._at = 0

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes."""
        if count < 0 or count > len(self._data) - self._at:
            left = len(self._data) - self._at
            raise WireError(f"{self._what}: {count} bytes announced, {left} left")
        self._at += count
        return self._data[self._at - count : self._at]

    def varint(self, limit: int) -> int:
        """The next varint, at most ``limit``; a non-shortest form is refused."""
        value = 0
        for position in range(MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if byte == 0 and position:
                    raise WireError(f"{self._what}: a number is padded with zero bytes")
                if value > limit:
                    raise WireError(f"{self._what}: {value} exceeds the allowed {limit}")
                return value
        raise WireError(f"{self._what}: a number is longer than {MAX_VARINT_BYTES} bytes")

    def rest(self) -> memoryview:
        """Everything that is left."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Refuse trailing bytes."""
        left = len(self._data) - self._at
        if left:
            raise WireError(f"{self._what}: {left} bytes too many")
