"""The seed tree: every random draw comes from a generator named by its path.

``rng_for(seed, "client", node_id, round)`` gives the same stream whatever ran before it, in
whichever process, so results do not depend on the number of workers or on the order of events.
"""

import hashlib

import numpy as np


def seed_for(seed: int, *path: str | int) -> int:
    """A 64-bit seed for the branch ``path`` of the tree rooted at ``seed``.

    BLAKE2b of the path, so that neighbouring rounds or clients share no state.
    """
    text = "/".join([str(seed), *(f"{type(part).__name__}:{part}" for part in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def rng_for(seed: int, *path: str | int) -> np.random.Generator:
    """A fresh generator for the branch ``path``; equal arguments give equal streams."""
    return np.random.Generator(np.random.PCG64(seed_for(seed, *path)))
