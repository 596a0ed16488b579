"""Several messages of one round, to clients that this process plays, answered in one go.

What each would have got from the ClientApp, without Flower's records in between: the simulation
engine serves whole blocks of clients by it. Where the server needs only the sum of the updates,
packets are measured and not made.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Context, Message

from clients.cohort import Job, Trained, train_cohort
from clients.device import autocast, choose_device
from clients.server_side import server_task_for
from clients.session import METRICS, client_of, figures_of, job_for, workplace_of
from clients.train import Diverged
from clients.weights import Weights
from clients.workplace import Workplace, workplace_for
from fedsys.config.load import parse_experiment
from fedsys.middleware.brief import Brief, Briefs
from fedsys.middleware.control import RECORD
from fedsys.middleware.exchange import Opened, code_update, open_packet
from fedsys.middleware.server import would_accept
from fedsys.middleware.store import HeldModel
from fedsys.partial import Partial
from fedsys.types import RunConfig


def warm_up(run_config: RunConfig) -> None:
    """Load the experiment's data, the server's test set too, and build its model.

    From here on torch uses one thread in this process: whether clients can be trained as a stack
    is found out by trying, and must be found out alike everywhere. A GPU is left alone, because
    processes forked from one that has used it could not. Raises ConfigError for data or a device
    that cannot be used.
    """
    torch.set_num_threads(1)
    text = str(run_config["experiment"])
    training = parse_experiment(text, where="run config").training
    server_task_for(text)
    device = choose_device(training.device)
    if device.type == "cpu":
        autocast(training.precision, device)
        workplace_for(text)


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
    known: dict[int, _Asked] = {}
    for number, (message, context) in enumerate(zip(messages, contexts, strict=True)):
        try:
            one = _asked(place, number, message, context, known.get(id(message.content)))
        except Exception:
            briefs[number] = Brief(error=traceback.format_exc())
            continue
        if one is None:
            return None
        known[id(message.content)] = one
        asked.append(one)
    partial = None
    if sums is not None and asked and not asked[0].opened.model.schema.raw_n_bytes:
        partial = Partial(asked[0].opened.model.schema.n, normalise=sums)
    trained = train_cohort(place, [one.job for one in asked])
    for one, outcome in zip(asked, trained, strict=True):
        briefs[one.number] = _brief(place, one, outcome, partial)
    return Briefs([briefs[number] for number in range(len(messages))], partial)


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    """Place of its message."""
    opened: Opened
    job: Job
    is_flat: bool
    """Whether the coded values are the model's flat vector, tensor by tensor."""


def _asked(
    place: Workplace, number: int, message: Message, context: Context, same: _Asked | None
) -> _Asked | None:
    """What the message asks for; ``same`` is what one with the same content did, if any has.

    None if it is for the ClientApp alone.
    """
    if same is not None and not same.opened.control.oldest_version:
        opened = replace(same.opened, node=context.node_id)
        job = replace(same.job, client=client_of(context))
        return _Asked(number, opened, job, same.is_flat)
    found = open_packet(message.content, context)
    if found is None or found.control.piece_bytes:
        return None
    is_flat = _is_flat(place, found.model)
    model = found.model
    start = Weights(model.flat()) if is_flat else place.layout.weights(model.arrays())
    return _Asked(number, found, job_for(place, message, context, start), is_flat)


def _brief(
    place: Workplace, asked: _Asked, trained: Trained | Diverged, partial: Partial | None
) -> Brief:
    opened = asked.opened
    try:
        if isinstance(trained, Diverged):
            raise trained
        flat, raw, exact = trained.weights.flat, b"", None
        if not asked.is_flat:
            arrays = place.layout.arrays(trained.weights)
            flat, raw = opened.model.schema.split(arrays)
            exact = opened.model.schema.split_exact(arrays)[0]
        coded = code_update(opened, flat, raw, exact)
        metrics = {METRICS: figures_of(trained, place.experiment.training), RECORD: coded.figures}
        size_bytes = coded.packet_bytes(opened, raw)
        is_fit = would_accept(opened.model.schema, size_bytes, coded.norm2)
        if partial is None or not is_fit or not trained.examples:
            # The server is to say itself why it refuses an update.
            return Brief(coded.packet(opened, raw), opened.record, metrics)
        steps = trained.result.local_steps
        partial.add(
            coded.update, {}, examples=trained.examples, local_steps=steps, norm2=coded.norm2
        )
        return Brief(size_bytes, opened.record, metrics)
    except Exception:
        return Brief(error=traceback.format_exc())


def _is_flat(place: Workplace, model: HeldModel) -> bool:
    schema, layout = model.schema, place.layout
    shapes = tuple((tensor.name, tensor.shape) for tensor in schema.tensors)
    return (
        not layout.exact
        and schema.n == layout.n
        and shapes == tuple(layout.shapes.items())
        and all(tensor.dtype == "float32" for tensor in schema.tensors)
    )
