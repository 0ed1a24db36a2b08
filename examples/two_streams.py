"""
A block of two streams, images and texts, that meet in attention (as in Esser et al., 2024).

Each stream has its own norms, projections and feed-forward; attention is over the rows of both.
The block is built with the flow API, compiled, and compared with the same computation in numpy:

    python examples/two_streams.py
"""

from __future__ import annotations

import numpy as np

import rlx
from rlx.flow.feed_forward import GeluFfn
from rlx.flow.model import BuiltModel, ModelFlow
from rlx.flow.source import MapWeights
from rlx.flow.stages import LayerNorm, Linear, Named, ResidualAdd, ResidualSave, Sequence
from rlx.flow.streams import DualStream, JointAttention, LoadStream, StoreStream, StreamAttention

D, HEAD_DIM, FFN = 64, 16, 128
ROWS = {"img": 24, "txt": 9}
EPS = 1e-6


def random_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {}
    for s in ROWS:
        shapes |= {f"{s}.{name}": (D, D) for name in ("query", "key", "value", "output")}
        shapes |= {f"{s}.up": (FFN, D), f"{s}.down": (D, FFN)}
        shapes |= {f"{s}.norm1": (D,), f"{s}.norm2": (D,)}
    return {
        key: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for key, shape in shapes.items()
    }


def build(weights: dict[str, np.ndarray]) -> BuiltModel:
    """Return the block in HIR; its outputs are the streams by their names."""

    def projections(stream: str) -> StreamAttention:
        names = ("query", "key", "value", "output")
        return StreamAttention(*(Linear(f"{stream}.{name}") for name in names))

    def begun(stream: str) -> Sequence:
        """Normalise a stream for attention; what it was stays beside it."""
        kept = StoreStream(f"{stream}.before")
        return Sequence((kept, LayerNorm(f"{stream}.norm1", eps=EPS)))

    def ended(stream: str) -> Sequence:
        """Add what attention gave to what the stream was, and the feed-forward to that."""
        return Sequence(
            (
                ResidualSave(),
                LoadStream(f"{stream}.before"),
                ResidualAdd(),
                ResidualSave(),
                LayerNorm(f"{stream}.norm2", eps=EPS),
                GeluFfn(f"{stream}.up", f"{stream}.down"),
                ResidualAdd(),
            )
        )

    flow = ModelFlow("two_streams")
    for stream, rows in ROWS.items():
        flow.input(stream, (rows, D))
    flow.stage(DualStream("img", "txt", begun("img"), begun("txt")))
    flow.stage(JointAttention("img", "txt", projections("img"), projections("txt"), HEAD_DIM))
    flow.stage(DualStream("img", "txt", ended("img"), ended("txt")))
    for stream in ROWS:
        flow.stage(Named(stream, LoadStream(stream))).output(stream)
    return flow.build(MapWeights(weights))


def expected(weights: dict[str, np.ndarray], streams: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what the block computes, in float64."""
    w = {key: array.astype(np.float64) for key, array in weights.items()}

    def norm(x: np.ndarray, key: str) -> np.ndarray:
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPS) * w[key]

    def project(name: str) -> np.ndarray:
        rows = [norm(x, f"{s}.norm1") @ w[f"{s}.{name}"].T for s, x in streams.items()]
        return np.concatenate(rows).reshape(-1, D // HEAD_DIM, HEAD_DIM).swapaxes(0, 1)

    q, k, v = (project(name) for name in ("query", "key", "value"))
    scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(HEAD_DIM))
    joint = (scores / scores.sum(2, keepdims=True) @ v).swapaxes(0, 1).reshape(-1, D)
    results: list[np.ndarray] = []
    for s, y in zip(streams, np.split(joint, [ROWS["img"]]), strict=True):
        x = streams[s] + y @ w[f"{s}.output"].T
        wide = norm(x, f"{s}.norm2") @ w[f"{s}.up"].T
        results.append(x + gelu(wide) @ w[f"{s}.down"].T)
    return results


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf, sqrt

    return x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2


def main() -> float:
    """Run the block; return the largest normalised squared error of a stream."""
    weights = random_weights()
    rng = np.random.default_rng(1)
    streams = {s: rng.standard_normal((rows, D)) for s, rows in ROWS.items()}
    model = build(weights)
    block = rlx.compile(model.module, model.weights)
    results = block(*(x.astype(np.float32) for x in streams.values()))
    worst = 0.0
    for s, result, wanted in zip(ROWS, results, expected(weights, streams), strict=True):
        error = float(((result - wanted) ** 2).sum() / (wanted**2).sum())
        print(f"{s}: {list(result.shape)}, normalised squared error {error:.1e}")
        worst = max(worst, error)
    return worst


if __name__ == "__main__":
    main()
