"""A network with one hidden layer in plain numpy, and the digits that come with scikit-learn."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

HIDDEN = 1024

Weights = dict[str, NDArray[np.float32]]
Examples = tuple[NDArray[np.float32], NDArray[np.int64]]


def initial() -> Weights:
    """Weights before any training, the same for everyone."""
    rng = np.random.Generator(np.random.PCG64(1))
    shapes = {"hidden.weight": (64, HIDDEN), "out.weight": (HIDDEN, 10)}
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }
    biases = {"hidden.bias": np.zeros(HIDDEN), "out.bias": np.zeros(10)}
    return weights | {name: bias.astype(np.float32) for name, bias in biases.items()}


def test_set() -> Examples:
    """Images and labels that no client trains on."""
    images, labels = _digits()
    return images[::5], labels[::5]


def client_set(partition: int, partitions: int) -> Examples:
    """A client's images and labels: sorted by label, so that each client sees few digits."""
    images, labels = _digits()
    train = np.arange(len(labels)) % 5 != 0
    order = np.argsort(labels[train], kind="stable")
    shards = np.array_split(order, 2 * partitions)
    mine = np.concatenate([shards[partition], shards[partition + partitions]])
    return images[train][mine], labels[train][mine]


def train(
    weights: Weights, examples: Examples, *, epochs: int, lr: float, seed: int
) -> tuple[Weights, float]:
    """Gradient descent in batches of 16; the new weights and the mean loss."""
    images, labels = examples
    weights, losses = {name: array.copy() for name, array in weights.items()}, []
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(labels), 16):
            batch = order[start : start + 16]
            loss, gradients = _backward(weights, images[batch], labels[batch])
            losses.append(loss)
            for name, gradient in gradients.items():
                weights[name] -= np.float32(lr) * gradient
    return weights, float(np.mean(losses))


def accuracy(weights: Weights, examples: Examples) -> float:
    """Fraction of the images that get their label."""
    images, labels = examples
    return float(np.mean(_forward(weights, images)[1].argmax(axis=1) == labels))


@cache
def _digits() -> Examples:
    digits = load_digits()
    return (digits.data / 16).astype(np.float32), digits.target


def _forward(
    weights: Weights, images: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    hidden = np.maximum(0, images @ weights["hidden.weight"] + weights["hidden.bias"])
    scores = hidden @ weights["out.weight"] + weights["out.bias"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def _backward(
    weights: Weights, images: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[float, Weights]:
    hidden, chances = _forward(weights, images)
    rows = np.arange(len(labels))
    loss = -np.mean(np.log(chances[rows, labels] + 1e-12))
    error = chances.copy()
    error[rows, labels] -= 1
    error /= len(labels)
    back = (error @ weights["out.weight"].T) * (hidden > 0)
    gradients = {
        "hidden.weight": images.T @ back,
        "out.weight": hidden.T @ error,
        "hidden.bias": back.sum(axis=0),
        "out.bias": error.sum(axis=0),
    }
    return float(loss), gradients
