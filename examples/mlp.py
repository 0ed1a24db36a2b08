"""
A small network trained on two spirals with `rlx.jit`: one compiled function is one step.

    python examples/mlp.py

The gradient is written by hand; the step takes and returns the parameters as a nest of arrays.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import rlx
import rlx.numpy as rnp

Array = NDArray[np.float32]
WIDTH, STEPS, RATE = 64, 1500, 0.5


class Layer(NamedTuple):
    weight: Array
    bias: Array


def layers(rng: np.random.Generator, *sizes: int) -> list[Layer]:
    """Random layers between sizes."""
    return [
        Layer(
            (rng.standard_normal((m, n)) / np.sqrt(m)).astype(np.float32), np.zeros(n, np.float32)
        )
        for m, n in pairwise(sizes)
    ]


def spirals(rng: np.random.Generator, count: int) -> tuple[Array, NDArray[np.int64]]:
    """Points on two spirals that wind around each other, and which one each is on."""
    label = rng.integers(0, 2, count)
    turn = np.sqrt(rng.random(count)) * 9
    angle = turn + label * np.pi
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1) * turn[:, None] / 5
    noise = rng.standard_normal((count, 2)) * 0.03
    return (points + noise).astype(np.float32), label


@rlx.jit
def predict(params, x):
    """The logits `[points, classes]` of points `[points, 2]`."""
    *hidden, last = params
    for layer in hidden:
        x = np.tanh(x @ layer.weight + layer.bias)
    return x @ last.weight + last.bias


@rlx.jit
def step(params, x, label, rate):
    """One step of gradient descent on the cross entropy; the new parameters, and the loss."""
    inputs = [x]
    for layer in params[:-1]:
        inputs.append(np.tanh(inputs[-1] @ layer.weight + layer.bias))
    logits = inputs[-1] @ params[-1].weight + params[-1].bias
    wanted = rnp.one_hot(label, 2)
    loss = -(rnp.log_softmax(logits) * wanted).sum() / x.shape[0]

    slope = (rnp.softmax(logits) - wanted) / x.shape[0]
    new = []
    for layer, entering in zip(params[::-1], inputs[::-1], strict=True):
        weight, bias = entering.T @ slope, slope.sum(axis=0)
        slope = (slope @ layer.weight.T) * (1 - entering * entering)
        new.append(Layer(layer.weight - rate * weight, layer.bias - rate * bias))
    return new[::-1], loss


def main(steps: int = STEPS) -> float:
    """Train, and return the share of new points that are told apart."""
    rng = np.random.default_rng(3)
    params = layers(rng, 2, WIDTH, WIDTH, 2)
    x, label = spirals(rng, 1000)
    start = time.perf_counter()
    for i in range(steps):
        params, loss = step(params, x, label, RATE)
        if i % 500 == 0:
            print(f"step {i:5}  loss {loss:.4f}")
    seconds = time.perf_counter() - start
    points, wanted = spirals(rng, 400)
    right = float((predict(params, points).argmax(axis=1) == wanted).mean())
    print(f"{steps} steps in {seconds:.2f} s, {right:.1%} of new points are right")
    print(f"{step.stats.compilations} compilation of the step")
    return right


if __name__ == "__main__":
    main()
