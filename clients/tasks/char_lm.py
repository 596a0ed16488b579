"""Predicting the next character of a text that the user names, with a small GRU."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from clients.tasks import _classify
from clients.tasks._base import Examples
from fedsys.errors import ConfigError
from fedsys.types import I64

_TEST_FRACTION = 0.1
_EMBEDDING = 32


@dataclass(frozen=True, slots=True)
class CharLm:
    """The next character of a text file; the accuracy is that of single characters.

    The text at ``path`` (UTF-8, best absolute) is cut into windows of ``length`` characters; the
    last tenth is the test set. ``users`` contiguous parts stand for people (partition
    kind = "user"). The vocabulary is every character that occurs in the file.
    """

    path: str
    length: int = 32
    users: int = 100
    hidden: int = 128

    metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        for name, value in (
            ("length", self.length),
            ("users", self.users),
            ("hidden", self.hidden),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")

    def train_data(self) -> Examples:
        """Windows int64 [n, length] of the first 90 %, each with its successor characters."""
        x, y, first_test = self._windows()
        user: I64 = np.arange(first_test, dtype=np.int64) * self.users // first_test
        return Examples(x[:first_test], y[:first_test], user)

    def test_data(self) -> Examples:
        """Windows of the last tenth."""
        x, y, first_test = self._windows()
        return Examples(x[first_test:], y[first_test:])

    def build_model(self) -> nn.Module:
        """Embedding, one GRU layer, and a linear layer over the vocabulary."""
        return NextCharacter(len(_encoded(self.path)[1]), self.hidden)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a character, in nats."""
        return _classify.mean_loss(model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, int]:
        """Sums of cross-entropy and of right characters, and the number of characters."""
        return _classify.sums(model, x, y)

    def _windows(self) -> tuple[Tensor, Tensor, int]:
        codes, _ = _encoded(self.path)
        n = (len(codes) - 1) // self.length
        first_test = n - max(1, round(_TEST_FRACTION * n))
        if first_test < self.users:
            raise ConfigError(
                f"{self.path}: {len(codes)} characters are {max(0, first_test)} training windows "
                f"of {self.length}, too few for users = {self.users}; take a longer text"
            )
        used = n * self.length
        x, y = codes[:used].view(n, -1), codes[1 : used + 1].view(n, -1)
        return x, y, first_test


class NextCharacter(nn.Module):
    """Logits of the next character at every position, from those up to it."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _EMBEDDING)
        self.gru = nn.GRU(_EMBEDDING, hidden, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [b, length] to float32 [b, length, vocabulary]."""
        states, _ = self.gru(self.embedding(codes))
        logits: Tensor = self.output(states)
        return logits


@lru_cache(maxsize=2)
def _encoded(path: str) -> tuple[Tensor, list[str]]:
    """The text as int64 [n] indices into its sorted vocabulary, and the vocabulary."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"task.options.path: {path} cannot be read as text: {error}") from error
    vocabulary = sorted(set(text))
    code = {character: index for index, character in enumerate(vocabulary)}
    return torch.tensor([code[character] for character in text], dtype=torch.int64), vocabulary


Impl = CharLm
