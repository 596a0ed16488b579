"""Several messages of one round, to clients that this process plays, answered in one go.

What each would have got from the ClientApp, without Flower's records in between: the simulation
engine serves whole blocks of clients by it. Where the server needs only the sum of the updates,
packets are measured and not made.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Context, Message

from clients.cohort import Job, Trained, train_cohort
from clients.session import METRICS, figures_of, job_for, workplace_of
from clients.train import Diverged
from clients.weights import Weights
from clients.workplace import Workplace, workplace_for
from fedsys.middleware.brief import Brief, Briefs
from fedsys.middleware.control import RECORD
from fedsys.middleware.exchange import Coded, Opened, code_update, open_packet
from fedsys.middleware.server import would_accept
from fedsys.middleware.store import HeldModel
from fedsys.partial import Partial
from fedsys.types import RunConfig


def warm_up(run_config: RunConfig) -> None:
    """Load the experiment's data and build its model."""
    workplace_for(str(run_config["experiment"]))


def serve(
    messages: Sequence[Message], contexts: Sequence[Context], sums: bool | None
) -> Briefs | None:
    """What the ClientApp would reply to each message; None for anything but training.

    With ``sums`` the updates are added up, divided by their local steps first where it is True,
    unless the model has tensors that travel raw.
    """
    if any(m.metadata.message_type != "train" or not m.has_content() for m in messages):
        return None
    place = workplace_of(contexts[0])
    asked: list[_Asked] = []
    briefs: dict[int, Brief] = {}
    for number, (message, context) in enumerate(zip(messages, contexts, strict=True)):
        try:
            opened = open_packet(message.content, context)
            if opened is None or opened.control.seals:
                return None
            start = _start(place, opened.model)
            asked.append(_Asked(number, opened, job_for(place, message, context, start)))
        except Exception:
            briefs[number] = Brief(error=traceback.format_exc())
    partial = None
    if sums is not None and asked and not asked[0].opened.model.schema.raw_n_bytes:
        partial = Partial(asked[0].opened.model.schema.n, normalise=sums)
    trained = train_cohort(place, [one.job for one in asked])
    for one, outcome in zip(asked, trained, strict=True):
        briefs[one.number] = _brief(place, one.opened, outcome, partial)
    return Briefs([briefs[number] for number in range(len(messages))], partial)


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    """Place of its message."""
    opened: Opened
    job: Job


def _brief(
    place: Workplace, opened: Opened, trained: Trained | Diverged, partial: Partial | None
) -> Brief:
    try:
        if isinstance(trained, Diverged):
            raise trained
        flat, raw, exact = _split(place, opened.model, trained.weights)
        coded = code_update(opened, flat, raw, exact)
        metrics = {METRICS: figures_of(trained), RECORD: coded.figures}
        if partial is not None and _is_summed(opened, trained, coded, raw):
            partial.add(
                coded.update,
                {},
                examples=trained.examples,
                local_steps=trained.result.local_steps,
                norm2=coded.norm2,
            )
            return Brief(coded.packet_bytes(opened, raw), opened.record, metrics)
        return Brief(coded.packet(opened, raw), opened.record, metrics)
    except Exception:
        return Brief(error=traceback.format_exc())


def _is_summed(opened: Opened, trained: Trained, coded: Coded, raw: bytes) -> bool:
    """Whether the server would use the update; if not, it gets the packet, and says why."""
    size_bytes = coded.packet_bytes(opened, raw)
    return trained.examples > 0 and would_accept(opened.model.schema, size_bytes, coded.norm2)


def _start(place: Workplace, model: HeldModel) -> Weights:
    """The received model as training takes it."""
    if _is_flat(place, model):
        return Weights(model.flat())
    return place.layout.weights(model.arrays())


def _split(
    place: Workplace, model: HeldModel, weights: Weights
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], bytes, bytes | None]:
    """Coded values, raw bytes and, unless all are float32, the coded tensors' own bytes."""
    if _is_flat(place, model):
        return weights.flat, b"", None
    arrays = place.layout.arrays(weights)
    flat, raw = model.schema.split(arrays)
    return flat, raw, model.schema.split_exact(arrays)[0]


def _is_flat(place: Workplace, model: HeldModel) -> bool:
    """Whether the coded values are the model's flat vector, tensor by tensor."""
    schema, layout = model.schema, place.layout
    shapes = tuple((tensor.name, tensor.shape) for tensor in schema.tensors)
    return (
        not layout.exact
        and schema.n == layout.n
        and shapes == tuple(layout.shapes.items())
        and all(tensor.dtype == "float32" for tensor in schema.tensors)
    )
