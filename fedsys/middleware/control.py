"""The few words that server and client exchange beside the payload, and how both travel.

A message carries one Array with our own ``stype`` in place of the model's tensors, and one small
ConfigRecord. Both are read as coming from a stranger.
"""

import math
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsys.codecs._feedback import ResidualRule
from fedsys.errors import WireError

RECORD = "fedsys"
"""Name of the control record, and of the metrics that the client mod adds to a reply."""
STYPE = "fedsys.packet"
"""Serialization type of an Array whose data is a packet, or frames of packets."""
PACKET = "packet"
MAX_TRIALS = 16
"""Codecs that a server may have tried on one update."""
MIN_PIECE_BYTES = 1024
"""A server may not ask for more requests than its bytes are worth."""
MAX_NORM = 1e15
"""No training moves a model this far; sums over a cohort stay finite below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the server tells the client mod with a model."""

    seed: int
    uplink: str
    """Codec spec that the update must be sent in."""
    acked_version: int
    """Base version of the last update that the server accepted from this node, or its turn where
    requests have one; 0 is none."""
    oldest_version: int
    """Models older than this are of no further use; 0 says that none need be kept at all."""
    checksum: int
    """CRC-32 of the model that the message leads to, as ``HeldModel.checksum`` has it."""
    feedback: bool
    rule: ResidualRule
    trials: tuple[str, ...] = ()
    """Codec specs to try on a sample of the update."""
    piece_bytes: int = 0
    """Largest piece that the reply is to be sealed in; 0 leaves it open. See ``envelope``."""
    turn: int = 0
    """Which of the server's requests to this node it is, where one model may be asked about more
    than once; 0 where none is."""

    def to_record(self) -> ConfigRecord:
        """As a ConfigRecord; keys are short because they are sent in every message."""
        record = ConfigRecord(
            {
                "s": self.seed,
                "u": self.uplink,
                "a": self.acked_version,
                "o": self.oldest_version,
                "c": self.checksum,
                "f": self.feedback,
                "d": self.rule.decay,
                "b": self.rule.decay_per_round,
            }
        )
        if self.rule.max_age_versions is not None:
            record["m"] = self.rule.max_age_versions
        if self.rule.clip is not None:
            record["k"] = self.rule.clip
        if self.trials:
            record["t"] = list(self.trials)
        if self.piece_bytes:
            record["e"] = self.piece_bytes
        if self.turn:
            record["n"] = self.turn
        return record

    @classmethod
    def from_content(cls, content: RecordDict) -> "Control":
        """Read the record; WireError when it or a key is missing, or a value cannot be."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            raise WireError(f"a packet came without the record '{RECORD}' that says how to read it")
        expected = {
            "s": int,
            "u": str,
            "a": int,
            "o": int,
            "c": int,
            "f": bool,
            "d": float,
            "b": float,
        }
        for key, kind in expected.items():
            if not isinstance(record.get(key), kind):
                raise WireError(f"control record: '{key}' is missing or not a {kind.__name__}")
        return cls(
            seed=int(record["s"]),  # type: ignore[arg-type]
            uplink=str(record["u"]),
            acked_version=int(record["a"]),  # type: ignore[arg-type]
            oldest_version=int(record["o"]),  # type: ignore[arg-type]
            checksum=int(record["c"]),  # type: ignore[arg-type]
            feedback=bool(record["f"]),
            rule=_rule(record),
            trials=_trials(record),
            piece_bytes=_piece_bytes(record),
            turn=_turn(record),
        )


def _rule(record: ConfigRecord) -> ResidualRule:
    factors = [record["d"], record["b"]]
    if not all(isinstance(factor, float) and 0 <= factor <= 1 for factor in factors):
        raise WireError(f"control record: decay must be in [0, 1], got {factors}")
    age, clip = record.get("m"), record.get("k")
    if age is not None and (not isinstance(age, int) or age < 1):
        raise WireError(f"control record: age must be 1 or more, got {age!r}")
    if clip is not None and (not isinstance(clip, float) or not 0 < clip < math.inf):
        raise WireError(f"control record: clip must be a number above 0, got {clip!r}")
    decay, per_round = (float(factor) for factor in factors)  # type: ignore[arg-type]
    return ResidualRule(decay=decay, decay_per_round=per_round, max_age_versions=age, clip=clip)


def _piece_bytes(record: ConfigRecord) -> int:
    found = record.get("e", 0)
    if not isinstance(found, int) or (found != 0 and found < MIN_PIECE_BYTES):
        raise WireError(f"control record: pieces of {found!r} bytes, at least {MIN_PIECE_BYTES}")
    return found


def _turn(record: ConfigRecord) -> int:
    found = record.get("n", 0)
    if not isinstance(found, int) or found < 0:
        raise WireError(f"control record: turn must be a count, got {found!r}")
    return found


def _trials(record: ConfigRecord) -> tuple[str, ...]:
    found = record.get("t", [])
    if not isinstance(found, list) or len(found) > MAX_TRIALS:
        raise WireError(f"control record: trials must be a list of at most {MAX_TRIALS} codecs")
    return tuple(str(spec) for spec in found)


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """The array records of ``content`` by name.

    Flower's view of the same name refers to itself: what it has seen stays in memory, model and
    all, until Python next looks for cycles.
    """
    return {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}


def wrap(packet: bytes) -> ArrayRecord:
    """A packet as an ArrayRecord with one Array, which Flower moves without looking inside."""
    return ArrayRecord({PACKET: Array("uint8", (len(packet),), STYPE, packet)})


def unwrap(content: RecordDict) -> tuple[str, bytes] | None:
    """The name of the record that holds a packet, and the packet; None when there is none."""
    for name, record in array_records(content).items():
        array = record.get(PACKET)
        if array is not None and array.stype == STYPE:
            return name, array.data
    return None
