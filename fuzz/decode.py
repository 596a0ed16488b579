"""Look for bytes that decoding cannot bear: ``python -m fuzz.decode --seconds 60``.

Coverage-guided (atheris, ``pip install -e .[fuzz]``). Every input must decode to what the
receiver's own model allows or raise WireError, in memory bounded by that model. The first input
that does otherwise ends the run with its traceback and is left in ``crash-*``; give its name as
an argument to see it again. Inputs are random: a clean run proves nothing, a longer one more.
"""

import argparse
import contextlib
import math
import resource
import sys
import tempfile
import zlib
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["fedsys"]):
    from fedsys.codecs._chain import parse, parse_received
    from fedsys.codecs._feedback import ResidualRule
    from fedsys.errors import WireError
    from fedsys.middleware.control import Control
    from fedsys.middleware.exchange import receive
    from fedsys.middleware.store import ClientStore, HeldModel, NodeState
    from fedsys.registry import available, load
    from fedsys.rng import rng_for
    from fedsys.wire.packet import Kind, Packet, pack, pack_frames, unpack, unpack_frames
    from fedsys.wire.schema import Schema, TensorSpec

    # Loaded by name when first used, which would be too late to be instrumented.
    for name in available("fedsys.codecs"):
        load("fedsys.codecs", name)

SPECS = [
    *available("fedsys.codecs"),
    *("topk(0.1)|int8", "topk(0.2,chunk=16)|fp16", "ecq(0.1)", "ecq(6)", "lowrank(1)|int4"),
    *("eden(2.5)", "threshold(1)|ecq(2)", "randk(0.3)|ternary(block=7)"),
]
LAYOUTS = [(), ((1,),), ((7, 5), (9,)), ((70, 66), (40,)), ((5000,),)]
SCHEMA = Schema((TensorSpec("w", (7, 5), "float32"), TensorSpec("n", (), "int64")))
MAX_BYTES = 1 << 14
HEADROOM_BYTES = 1 << 30
"""Address space beyond what is mapped at the start; the models here have 5000 values."""


def decode_body(data: bytes) -> None:
    """A codec's body, for one of a few models."""
    codec = parse(SPECS[data[0] % len(SPECS)])
    layout = LAYOUTS[data[1] % len(LAYOUTS)]
    n = _count(layout)
    update = codec.decode(data[2:], n, layout)
    if update.dense().shape != (n,) or update.norm2() < 0:
        raise AssertionError(f"{codec.spec}: {update.dense().shape} for {n} values")


def decode_packet(data: bytes) -> None:
    """A packet whose checksum is right, without and with a schema of the receiver's own."""
    sealed = _sealed(data)
    packet = unpack(sealed, schema=None, max_bytes=MAX_BYTES)
    schema = Schema.from_bytes(packet.schema, max_elements=1 << 16)
    unpack(sealed, schema=schema, max_bytes=MAX_BYTES)
    if schema.n < 1 << 16:
        parse_received(packet.spec).decode(packet.body, schema.n, schema.layout)


def decode_message(data: bytes) -> None:
    """What a client gets: a difference to the model that it holds, or a whole model."""
    receive(pack_frames([_sealed(data)]), STATE, CONTROL, STORE, {})


def decode_frames(data: bytes) -> None:
    """Frames, which must come out as they went in."""
    frames = unpack_frames(data, 16)
    if pack_frames([bytes(frame) for frame in frames]) != data:
        raise AssertionError("frames differ from the bytes they were read from")


TARGETS = [decode_body, decode_body, decode_packet, decode_message, decode_frames]
STORE = ClientStore(Path(tempfile.mkdtemp(prefix="fuzz-")), shared=True)
HELD = HeldModel.of(SCHEMA, {"w": np.ones((7, 5), np.float32), "n": np.array(3)})
STORE.save_model(1, HELD, oldest_version=1)
STATE = NodeState(held_version=1, held_checksum=HELD.checksum())
CONTROL = Control(
    seed=0,
    uplink="none",
    acked_version=0,
    oldest_version=1,
    checksum=HELD.checksum(),
    feedback=False,
    rule=ResidualRule(),
)


def one_input(data: bytes) -> None:
    """What atheris calls; anything but WireError ends the run."""
    if len(data) < 3:
        return
    with contextlib.suppress(WireError):
        TARGETS[data[0] % len(TARGETS)](data[1:])


def write_seeds(folder: Path) -> None:
    """Good bodies of every codec and a good packet, for the fuzzer to start from."""
    for at, spec in enumerate(SPECS):
        for number, layout in enumerate(LAYOUTS):
            x = rng_for(at, "seed", number).standard_normal(_count(layout))
            body = parse(spec).encode(x, layout, rng_for(at))
            (folder / f"{at}-{number}").write_bytes(bytes([0, at, number]) + body)
    for kind in Kind:
        step = parse("int8").encode(np.ones(SCHEMA.n), SCHEMA.layout, rng_for(0))
        packet = Packet(
            kind=kind,
            spec="none" if kind is Kind.MODEL else "int8",
            schema_digest=SCHEMA.digest,
            base_version=1,
            version=2,
            n=SCHEMA.n,
            body=HELD.exact if kind is Kind.MODEL else step,
            raw=HELD.raw,
            schema=SCHEMA.to_bytes(),
        )
        for target in (2, 3):
            (folder / f"{target}-{kind.name}").write_bytes(bytes([target]) + pack(packet)[3:-4])


def main() -> None:
    """Fuzz for a bounded time; exit status 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="keep what was found interesting here")
    parser.add_argument("inputs", nargs="*", help="run these files only")
    options = parser.parse_args()
    corpus = options.corpus or Path(tempfile.mkdtemp(prefix="corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    write_seeds(corpus)
    _limit_memory()
    limits = [f"-max_total_time={options.seconds}", f"-max_len={MAX_BYTES}", "-timeout=5"]
    where = options.inputs or [str(corpus)]
    atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", *where], one_input)
    atheris.Fuzz()


def _count(layout: tuple[tuple[int, ...], ...]) -> int:
    return sum(math.prod(shape) for shape in layout)


def _sealed(data: bytes) -> bytes:
    """A packet's start and checksum around ``data``, so that the fuzzer gets past both."""
    content = b"FS\x01" + data
    return content + zlib.crc32(content).to_bytes(4, "little")


def _limit_memory() -> None:
    """Make an allocation out of proportion a MemoryError, which is a finding."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
