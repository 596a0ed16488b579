"""How many rounds a way of working needs, relative to another.

    rounds ~ (1 + S / steps + D (1 / clients - 1 / all) steps / S + late(up) + late(down))
             * (1 + D / clients)

Local steps beyond S bring less and less. D is the variance of updates between clients over the
square of their mean: who takes part draws the model to its own data, the further the more steps it
takes. Under error feedback a codec that keeps the share d of an update brings the rest 1/d - 1
rounds late, and a client that is asked in one of g rounds g times as many; without it rounds grow
as a power of d, and never by more with it than without.
"""

import math

REACH_STEPS = 75.0
"""S of a task of which nothing is known."""
DISAGREEMENT = 6.0
"""D of such a task."""
DELAY = 0.5
"""Rounds by which a codec is late count so much of the rounds that the shortest run needs."""
PLAIN_EXPONENT = 0.9
"""Without error feedback rounds grow as d to this negative power. All four are fits to our own
measurements on small models."""
_LEAST_KEPT = 1e-3


def rounds_needed(
    local_steps: float,
    *,
    up_nmse: float = 0.0,
    down_nmse: float = 0.0,
    clients: float,
    gap: float = 1.0,
    drawn: float = 1.0,
    feedback: bool = True,
    reach_steps: float = REACH_STEPS,
    disagreement: float = DISAGREEMENT,
) -> float:
    """Rounds needed, in units of what nothing but exact, endless work of everyone would take.

    ``clients`` answer in a round, each in one of ``gap`` rounds, and only then sends what it still
    owes; ``drawn`` is the part of all that chance lets answer, 1 where all do. ``up_nmse`` and
    ``down_nmse`` are squared errors of the codecs over the squares of what they code.
    """
    noise = disagreement / clients * (1 - drawn)
    work = 1 + reach_steps / local_steps + noise * local_steps / reach_steps
    lost = max(_LEAST_KEPT, 1 - up_nmse) ** -PLAIN_EXPONENT - 1
    late = DELAY * gap * _late_rounds(up_nmse) / work
    up_factor = min(late, lost) if feedback else lost
    down_late = DELAY * _late_rounds(down_nmse)
    return float((work * (1 + up_factor) + down_late) * (1 + disagreement / clients))


def stale_weight(staleness: int, exponent: float = 0.5) -> float:
    """What an update of that many server steps ago counts for beside a new one (FedBuff, 2022)."""
    return math.pow(1 + staleness, -exponent)


def _late_rounds(nmse: float) -> float:
    return 1 / max(_LEAST_KEPT, 1 - nmse) - 1
