"""The checksums of packed files: the same on every instruction set, and another for any change."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Buffer, Kernel, levels

from rlx.lowering import checksum
from rlx.lowering.checksum import CHUNK, ROUND, emit_checksums
from rlx.lowering.emitter import Module
from rlx.lowering.target import Target

EACH = CHUNK // ROUND


@pytest.fixture(scope="module", params=levels())
def kernel(request: pytest.FixtureRequest) -> Kernel:
    module = Module(Target.named(request.param))
    emit_checksums(module, "sums")
    return Kernel(module.text, "sums", module.target)


def checksums(kernel: Kernel, data: np.ndarray, threads: int = 1) -> list[int]:
    memory, sums = Buffer.of(data), Buffer(8 * -(-data.nbytes // CHUNK))
    context = Buffer.of(np.array([memory.address, data.nbytes // ROUND, sums.address]))
    for tid in range(threads):
        kernel(context, tid, threads)
    memory.check()
    sums.check()
    return sums.array(np.uint64, sums.size // 8).tolist()


def mixed(a: np.ndarray, b: np.ndarray, turn: int, prime: int) -> np.ndarray:
    x, bits = a ^ b, a.dtype.type(8 * a.dtype.itemsize)
    turn = a.dtype.type(turn)
    return (x << turn | x >> (bits - turn)) * a.dtype.type(prime)


def reference(data: np.ndarray) -> list[int]:
    found: list[int] = []
    for start in range(0, data.nbytes, CHUNK):
        words = data[start : start + CHUNK].view(np.uint32).reshape(-1, 4, 16)
        seeds = [checksum.SPREAD * (i + 1) % 2**32 for i in range(4)]
        lanes = np.repeat(np.array(seeds, np.uint32)[:, None], 16, axis=1)
        for row in words:
            lanes = mixed(lanes, row * np.uint32(checksum.SPREAD), checksum.TURN, checksum.PRIME)
        first = lanes[0]
        for other in lanes[1:]:
            first = mixed(first, other, checksum.TURN, checksum.PRIME)
        total = np.array([len(words)], np.uint64)
        for pair in first.view(np.uint64):
            total = mixed(total, pair, checksum.TURN_64, checksum.PRIME_64)
        found.append(int(total[0]))
    return found


@pytest.mark.parametrize("rounds", [1, 2, EACH - 1, EACH, EACH + 1, 2 * EACH + 3])
def test_checksums_are_those_of_the_definition(kernel: Kernel, rounds: int) -> None:
    data = np.random.default_rng(rounds).integers(0, 256, rounds * ROUND, np.uint8)
    wanted = reference(data)
    assert checksums(kernel, data) == wanted
    assert checksums(kernel, data, threads=3) == wanted


def test_no_data_have_no_checksums(kernel: Kernel) -> None:
    assert checksums(kernel, np.zeros(0, np.uint8), threads=2) == []


@pytest.mark.sample(5)
@pytest.mark.parametrize("content", ["zeros", "random"])
def test_a_change_of_any_bit_shows(kernel: Kernel, content: str) -> None:
    """All changes give different sums: no two of them cancel each other."""
    data = np.random.default_rng(1).integers(0, 256, 3 * ROUND, np.uint8)
    data *= content == "random"
    seen = set(checksums(kernel, data))
    for bit in range(8 * data.nbytes):
        changed = data.copy()
        changed[bit // 8] ^= 1 << bit % 8
        seen.update(checksums(kernel, changed))
    assert len(seen) == 8 * data.nbytes + 1


def test_what_moves_shows(kernel: Kernel) -> None:
    data = np.random.default_rng(2).integers(0, 256, 4 * ROUND, np.uint8)
    moved = [np.roll(data, by) for by in (0, 4, 64, ROUND, 2 * ROUND)]
    lengths = [np.zeros(n * ROUND, np.uint8) for n in range(1, 5)]
    assert len({checksums(kernel, d)[0] for d in (*moved, *lengths)}) == 9
