"""A number for each of very many nodes, in a few bytes each."""

from collections.abc import Iterator, Mapping

from fedsys.types import I64


class NodeCounts(Mapping[int, int]):
    """Maps each id of the run ``nodes`` to its entry of ``counts`` int64 [n], like a dict would.

    A dict of a million entries takes 100 MB and a tenth of a second to walk through.
    """

    def __init__(self, nodes: range, counts: I64) -> None:
        if len(nodes) != len(counts):
            raise ValueError(f"{len(nodes)} nodes but {len(counts)} counts")
        self.nodes = nodes
        self._counts = counts

    def __getitem__(self, node_id: int) -> int:
        """The node's number, as a Python int; KeyError for a node that is not one of these."""
        try:
            return int(self._counts[self.nodes.index(node_id)])
        except ValueError:
            raise KeyError(node_id) from None

    def __iter__(self) -> Iterator[int]:
        """The ids in ascending order."""
        return iter(self.nodes)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    def __contains__(self, node_id: object) -> bool:
        """Whether the node is one of these."""
        return node_id in self.nodes
