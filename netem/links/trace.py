"""A link that replays recorded rates from the user's own files."""

from dataclasses import dataclass
from typing import Literal

from fedsys.errors import ConfigError
from fedsys.rng import rng_for
from netem.link import Layer, Link
from netem.links._options import LinkOptions, require
from netem.rate import RateCurve
from netem.traces import guess_format, read_csv, read_mahimahi, read_two_columns

Format = Literal["auto", "mahimahi", "mbps", "csv"]


@dataclass(frozen=True, kw_only=True)
class Trace(LinkOptions):
    """Recorded rates, looping: Mahimahi stamps, two columns (s, Mbit/s), or CSV with a header.

    Give ``up_file`` and ``down_file``; a direction without a file has the constant ``up_bps`` or
    ``down_bps``. ``format = "auto"`` tells them apart by their first line. A CSV file needs
    ``up_column`` or ``down_column``, its ``unit_bps`` (1000 for kbit/s), and either a
    ``time_column`` in seconds or rows ``row_s`` apart; ``keep = "State=D"`` drops other rows.
    With ``random_start`` each node enters the recording at a point of its own. Mahimahi counts
    packets on the link, the others what an application got.
    """

    up_file: str = ""
    down_file: str = ""
    up_bps: float = 0.0
    down_bps: float = 0.0
    format: Format = "auto"
    up_column: str = ""
    down_column: str = ""
    unit_bps: float = 1000.0
    time_column: str = ""
    row_s: float = 1.0
    keep: str = ""
    step_s: float = 0.1
    """Width of the bins into which Mahimahi's packets are counted."""
    scale: float = 1.0
    """Factor on the recorded rates."""
    random_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for way in ("up", "down"):
            if bool(getattr(self, f"{way}_file")) == (getattr(self, f"{way}_bps") > 0):
                raise ConfigError(f"needs either {way}_file or {way}_bps above 0")
        if not (self.up_file or self.down_file):
            raise ConfigError("needs up_file or down_file; or use the model 'constant'")
        formats = ("auto", "mahimahi", "mbps", "csv")
        require(self, "format", self.format in formats, f"one of {', '.join(formats)}")
        for name in ("unit_bps", "row_s", "step_s", "scale"):
            require(self, name, getattr(self, name) > 0, "above 0")

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``; raises LinkError when a file cannot be read."""
        start = rng_for(seed, "link-trace", node).random() if self.random_start else 0.0
        up, up_layer = self._curve(self.up_file, self.up_column, self.up_bps, start)
        down, down_layer = self._curve(self.down_file, self.down_column, self.down_bps, start)
        return self.link(up, down, seed=seed, node=node, layer=up_layer, down_layer=down_layer)

    def _curve(self, path: str, column: str, bps: float, start: float) -> tuple[RateCurve, Layer]:
        if not path:
            return RateCurve.constant(bps), "ip"
        form = guess_format(path) if self.format == "auto" else self.format
        if form == "mahimahi":
            curve = read_mahimahi(path, self.step_s)
        elif form == "mbps":
            curve = read_two_columns(path)
        else:
            curve = read_csv(
                path,
                column,
                unit_bps=self.unit_bps,
                time_column=self.time_column,
                row_s=self.row_s,
                keep=self.keep,
            )
        if self.scale != 1:
            curve = curve.limited(self.scale)
        if start and curve.period_s is not None:
            curve = curve.shifted(start * curve.period_s)
        return curve, "ip" if form == "mahimahi" else "goodput"


Impl = Trace
