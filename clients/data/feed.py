"""Examples of one client after another, where the training takes place."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clients.data.federated import FederatedData

Batch = tuple[Tensor, Tensor]


def examples_of(
    data: FederatedData, clients: Sequence[int], device: torch.device, *, prefetch: bool
) -> Iterator[Batch]:
    """Inputs and targets of each of ``clients``, on ``device``.

    With ``prefetch`` and a GPU, the next client's travel while the current one's are trained on:
    from pinned memory, on a stream of their own.
    """
    if device.type != "cuda" or not prefetch:
        for client in clients:
            x, y = data.of_client(client)
            yield x.to(device), y.to(device)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    coming = _sent(data, clients[0], device, stream) if clients else None
    for following in [*clients[1:], None]:
        torch.cuda.current_stream(device).wait_stream(stream)
        current = coming
        if current is None:
            return
        coming = None if following is None else _sent(data, following, device, stream)
        for tensor in current:
            # Their memory is not to be used again before the training's stream is through.
            tensor.record_stream(torch.cuda.current_stream(device))
        yield current


def _sent(
    data: FederatedData, client: int, device: torch.device, stream: torch.cuda.Stream
) -> Batch:
    x, y = (tensor.pin_memory() for tensor in data.of_client(client))
    with torch.cuda.stream(stream):
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)
