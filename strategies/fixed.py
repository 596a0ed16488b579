"""The same plan in every round: FedAvg (McMahan et al. 2017) with the experiment's codecs."""

from dataclasses import dataclass

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._options import require_whole


@dataclass(frozen=True, slots=True)
class Fixed:
    """Train ``local_epochs`` epochs, or ``local_steps`` steps, with the codecs of the file.

    With one epoch and codec ``none`` this is plain FedAvg. With ``fednova`` updates are divided by
    their local steps before they are averaged.
    """

    local_epochs: int = 1
    local_steps: int | None = None
    """Steps for every client alike, in place of epochs."""
    fednova: bool = False
    quorum: bool = False
    """Close a round when half have answered, and use what comes late in a later one."""

    def __post_init__(self) -> None:
        require_whole(self, "local_epochs", "local_steps")

    @property
    def chooses_codecs(self) -> bool:
        """No: it sends what the experiment file says."""
        return False

    def start(self, scene: Scene) -> None:
        """Nothing to remember."""

    def plan(self, scene: Scene, state: None, round_number: int) -> RoundPlan:
        """The same for every round; only the cohort is drawn anew."""
        nodes = scene.sample(round_number)
        steps = scene.work(nodes, self.local_epochs)
        if self.local_steps:
            steps = dict.fromkeys(nodes, self.local_steps)
        work = f"{self.local_steps} steps" if self.local_steps else f"{self.local_epochs} epochs"
        return scene.plan(
            round_number,
            steps,
            reason=f"fixed: {work}",
            quorum=scene.quorum() if self.quorum else None,
        )

    def observe(self, scene: Scene, state: None, record: RoundRecord) -> None:
        """Nothing to learn."""


Impl = Fixed
