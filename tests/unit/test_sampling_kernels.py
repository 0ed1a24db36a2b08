"""The sampler against a numpy oracle of its rule, Philox against its published vectors."""

import math
import struct

import numpy as np
import pytest
from kernels import Buffer, Kernel, compile_kernel, levels, module_of

from rlx.lowering.emitter import Function
from rlx.lowering.philox import emit_philox
from rlx.lowering.sampling import PARAMETERS_BYTES, emit_sample, sample_scratch_bytes
from rlx.runtime import jit

SAMPLE = [("ptr", name) for name in ("logits", "params", "scratch", "out")]
MASK = 0xFFFFFFFF

# Salmon et al.: counter, key, result
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for n in range(10):
        if n:
            k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
    return c


def uniform(seed: int, counter: int) -> float:
    words = philox([counter & MASK, counter >> 32, 0, 0], [seed & MASK, seed >> 32])
    return ((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def acceptable(x: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> set[int]:
    """Return what the rule chooses with sums off by up to 1e-5: one index, near a boundary two."""
    x = x.astype(np.float64)
    if np.isnan(x).all():
        return {-1}
    top = np.nanmax(x)
    if not (temperature > 0 and math.isfinite(top)):
        return {int(np.nanargmax(x))}
    order = [i for i in np.lexsort((np.arange(len(x)), -x)) if x[i] > -math.inf]
    order = np.array(order[:top_k] if top_k > 0 else order)
    running = np.cumsum(np.exp((x[order] - top) / temperature))
    chosen: set[int] = set()
    for slack in (-1e-5, 1e-5):
        kept = order
        if top_p < 1:
            length = np.searchsorted(running, (max(top_p, 1e-30) + slack) * running[-1]) + 1
            kept = order[: max(1, length)]
        kept = np.sort(kept)
        cdf = np.cumsum(np.exp((x[kept] - top) / temperature))
        for shift in (-1e-5, 1e-5):
            n = np.searchsorted(cdf, (u + shift) * cdf[-1], side="right")
            chosen.add(int(kept[min(n, len(kept) - 1)]))
    return chosen


class Sampler:
    """A compiled sampler of n logits."""

    def __init__(self, level: str, n: int):
        self.n = n

        def emit(f: Function) -> None:
            logits, params, scratch, out = f.params
            f.store(emit_sample(f, logits, n, params, scratch), out)

        self._kernel: Kernel = compile_kernel(level, SAMPLE, emit)

    def __call__(
        self,
        logits: np.ndarray,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        counter: int = 0,
    ) -> int:
        params = struct.pack("<fifiQQ", temperature, top_k, top_p, 0, seed, counter)
        assert len(params) == PARAMETERS_BYTES
        logits_buffer, out = Buffer.of(logits.astype(np.float32), offset=4), Buffer(4)
        scratch = Buffer(sample_scratch_bytes(self.n))
        before = logits_buffer.bytes.tobytes()
        self._kernel(logits_buffer, Buffer.of(np.frombuffer(params, np.uint8)), scratch, out)
        assert logits_buffer.bytes.tobytes() == before
        return int(out.array(np.int32, 1)[0])


def test_philox_gives_the_published_vectors():
    def emit(f: Function) -> None:
        a, b = f.params
        counter = [f.load("i32", f.at(a, 4 * i)) for i in range(4)]
        key = [f.load("i32", f.at(a, 16 + 4 * i)) for i in range(2)]
        for i, word in enumerate(emit_philox(f, counter, key)):
            f.store(word, f.at(b, 4 * i))

    kernel = compile_kernel("host", [("ptr", "a"), ("ptr", "b")], emit)
    for counter, key, expected in VECTORS:
        out = Buffer(16)
        kernel(Buffer.of(np.array(counter + key, np.uint32)), out)
        assert out.array(np.uint32, 4).tolist() == expected == philox(counter, key)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 65, 1000, 4099])
def test_rule(n: int, level: str):
    rng = np.random.default_rng(n)
    sampler = Sampler(level, n)
    for trial in range(60):
        x = rng.standard_normal(n) * rng.choice([0.1, 1, 4, 20])
        if trial % 3 == 0:
            x = np.round(x * 2) / 2  # ties, and zeros of both signs
        if trial % 4 == 0:
            x[rng.random(n) < 0.1] = -math.inf
        if trial % 5 == 0:
            x[rng.random(n) < 0.1] = math.nan
        x = x.astype(np.float32)
        temperature, top_p = (
            float(np.float32(rng.choice(choices)))
            for choices in ([0, 0.1, 0.7, 1, 3], [0, 0.1, 0.5, 0.9, 0.99, 1, 2])
        )
        top_k = int(rng.choice([0, 1, 5, 40, 64, 65, 200, n, n + 1]))
        seed, counter = (int(v) for v in rng.integers(0, 2**63, 2))
        chosen = sampler(x, temperature, top_k, top_p, seed, counter)
        wanted = acceptable(x, temperature, top_k, top_p, uniform(seed, counter))
        assert chosen in wanted, (trial, temperature, top_k, top_p)


@pytest.mark.parametrize("level", levels())
def test_greedy_takes_the_first_of_the_largest(level: str):
    sampler = Sampler(level, 70)
    x = np.zeros(70)
    x[[33, 40, 69]] = 2.0
    assert sampler(x) == 33
    x[69] = 3.0
    assert sampler(x) == 69
    x[:5] = math.nan
    assert sampler(x, temperature=-1.0) == 69
    x[:] = math.nan
    assert sampler(x) == -1
    assert sampler(x, temperature=1.0) == -1
    x[[50, 60]] = -math.inf
    assert sampler(x) == 50
    x[60] = math.inf
    assert sampler(x, temperature=1.0) == 60


@pytest.mark.parametrize("level", levels())
def test_argmax_of_a_vocabulary(level: str):
    n = 49152
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    assert Sampler(level, n)(x) == x.argmax()


def test_extreme_temperatures():
    sampler = Sampler("host", 20)
    x = np.linspace(-3, 3, 20)
    assert sampler(x, temperature=1e-42, seed=5) == 19
    draws = {sampler(x, temperature=math.inf, counter=c) for c in range(400)}
    assert draws == set(range(20))
    # top_k is exact even where all weights are equal.
    assert {sampler(x, math.inf, top_k=3, counter=c) for c in range(100)} == {17, 18, 19}


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.7), (5, 0.8)])
def test_distribution(top_k: int, top_p: float):
    sampler = Sampler("host", 8)
    x = np.random.default_rng(4).standard_normal(8).astype(np.float32)
    draws = 4000
    counts = np.bincount(
        [sampler(x, 0.8, top_k, top_p, seed=99, counter=c) for c in range(draws)], minlength=8
    )
    order = np.argsort(-x)[: top_k or 8]
    w = np.zeros(8)
    w[order] = np.exp(x[order].astype(np.float64) / 0.8)
    running = np.cumsum(w[order])
    w[order[np.searchsorted(running, top_p * running[-1]) + 1 :]] = 0
    expected = draws * w / w.sum()
    assert (counts[w == 0] == 0).all()
    live = w > 0
    chi_square = ((counts[live] - expected[live]) ** 2 / expected[live]).sum()
    # Seven degrees of freedom at most: above 24.3 once in a thousand draws of a right sampler.
    assert chi_square < 24.3


def test_compiles_for_arm():
    def emit(f: Function) -> None:
        logits, params, scratch, out = f.params
        f.store(emit_sample(f, logits, 1000, params, scratch), out)

    module = module_of("aarch64", SAMPLE, emit)
    assert "kernel" in jit.assembly(module.text, module.target)
