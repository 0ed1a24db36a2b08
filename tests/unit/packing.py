"""Packs random bytes in place of weights, for tests and the processes that they start."""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlx.lowering.checksum import CHUNK
from rlx.runtime.cache import ObjectCache
from rlx.runtime.memory import Block
from rlx.runtime.packed import stored

KEY = ObjectCache.key("weights")
NBYTES = 3 * CHUNK + 4000


def checksums(address: int, nbytes: int) -> bytes:
    """Stands for the native ones, in tests without a compiled program."""
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    sums = [zlib.crc32(memory[at : at + CHUNK]) for at in range(0, nbytes, CHUNK)]
    return np.array(sums, np.int64).tobytes()


def bytes_of(block: Block) -> np.ndarray:
    return block.view(0, np.uint8, [block.nbytes])


def wanted(nbytes: int = NBYTES) -> np.ndarray:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


class Packing:
    """Fills blocks, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, block: Block) -> None:
        self.count += 1
        bytes_of(block)[:] = wanted(block.nbytes)


class Slow(Packing):
    """Takes some seconds to fill a block, and writes a line to a file, and to stdout, before."""

    def __init__(self, seconds: float, log: str) -> None:
        super().__init__()
        self.seconds, self.log = seconds, Path(log)

    def __call__(self, block: Block) -> None:
        with self.log.open("a") as f:
            f.write("packs\n")
        print("packs", flush=True)
        data = wanted(block.nbytes)
        for part in np.array_split(np.arange(block.nbytes), 20):
            bytes_of(block)[part] = data[part]
            time.sleep(self.seconds / 20)


def get(pack: Callable[[Block], None], nbytes: int = NBYTES) -> Block:
    block = stored(KEY, nbytes, checksums, pack)
    np.testing.assert_array_equal(bytes_of(block), wanted(nbytes))
    return block
