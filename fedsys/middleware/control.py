"""The few words that server and client exchange beside the payload, and how both travel.

A message carries one Array with our own ``stype`` in place of the model's tensors, and one small
ConfigRecord. Both are read as coming from a stranger.
"""

from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsys.errors import WireError

RECORD = "fedsys"
"""Name of the control record, and of the metrics that the client mod adds to a reply."""
STYPE = "fedsys.packet"
"""Serialization type of an Array whose data is a packet, or frames of packets."""
_KEY = "packet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the server tells the client mod with a model."""

    seed: int
    uplink: str
    """Codec spec that the update must be sent in."""
    acked_version: int
    """Base version of the last update that the server accepted from this node; 0 is none."""
    oldest_version: int
    """Models older than this are of no further use; 0 says that none need be kept at all."""
    checksum: int
    """CRC-32 of the model that the message leads to, as ``HeldModel.checksum`` has it."""
    feedback: bool
    decay: float
    """Factor on the residual, in [0, 1], for each version that the node missed."""

    def to_record(self) -> ConfigRecord:
        """As a ConfigRecord; keys are short because they are sent in every message."""
        return ConfigRecord(
            {
                "s": self.seed,
                "u": self.uplink,
                "a": self.acked_version,
                "o": self.oldest_version,
                "c": self.checksum,
                "f": self.feedback,
                "d": self.decay,
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict) -> "Control":
        """Read the record; WireError when it or a key is missing, or a value cannot be."""
        record = content.config_records.get(RECORD)
        if record is None:
            raise WireError(f"a packet came without the record '{RECORD}' that says how to read it")
        expected = {"s": int, "u": str, "a": int, "o": int, "c": int, "f": bool, "d": float}
        for key, kind in expected.items():
            if not isinstance(record.get(key), kind):
                raise WireError(f"control record: '{key}' is missing or not a {kind.__name__}")
        decay = float(record["d"])  # type: ignore[arg-type]
        if not 0 <= decay <= 1:
            raise WireError(f"control record: decay must be in [0, 1], got {decay}")
        return cls(
            seed=int(record["s"]),  # type: ignore[arg-type]
            uplink=str(record["u"]),
            acked_version=int(record["a"]),  # type: ignore[arg-type]
            oldest_version=int(record["o"]),  # type: ignore[arg-type]
            checksum=int(record["c"]),  # type: ignore[arg-type]
            feedback=bool(record["f"]),
            decay=decay,
        )


def wrap(packet: bytes) -> ArrayRecord:
    """A packet as an ArrayRecord with one Array, which Flower moves without looking inside."""
    return ArrayRecord({_KEY: Array("uint8", (len(packet),), STYPE, packet)})


def unwrap(content: RecordDict) -> tuple[str, bytes] | None:
    """The name of the record that holds a packet, and the packet; None when there is none."""
    for name, record in content.array_records.items():
        array = record.get(_KEY)
        if array is not None and array.stype == STYPE:
            return name, array.data
    return None
