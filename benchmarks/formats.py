"""How fast products of one row with weights of each format read them, beside a plain sum."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Floors, machine, median, table, today, update_section, write_json

import rlx
from rlx.contract.quant import GGML_TYPES_BY_NAME, WEIGHT_FORMATS
from rlx.flow.source import MapWeights, WeightInfo
from rlx.tools.random_data import random_blocks

HERE = Path(__file__).parent
K, SIZE = 2048, 96 << 20
"""Elements of a row, and about the bytes of a weight, those of a language model of 135M."""


class RandomBlocks(MapWeights):
    """One weight [n, k] of random valid blocks: 256 rows of them, again and again."""

    def __init__(self, format_: str, n: int, k: int = K):
        self._info = WeightInfo((n, k), format_)

    def has(self, key: str) -> bool:
        return key == "w"

    def info(self, key: str) -> WeightInfo:
        return self._info

    def raw(self, key: str) -> np.ndarray:
        rng, (n, k) = np.random.default_rng(0), self._info.shape
        if self._info.format in ("f32", "f16", "bf16"):
            some = rng.standard_normal((256, k)).astype(np.float32)
            if self._info.format == "bf16":
                some = (some.view(np.uint32) >> 16).astype(np.uint16)
            data = some.astype(np.float16) if self._info.format == "f16" else some
        else:
            data = random_blocks(rng, (256, k), self._info.format)
        return np.tile(data.reshape(-1).view(np.uint8), n // 256)


def program(format_: str, n: int, k: int = K) -> str:
    element = format_ if format_ in ("f32", "f16", "bf16") else f"!hir.q<{format_}>"
    x, w, y = f"tensor<1x{k}xf32>", f"tensor<{n}x{k}x{element}>", f"tensor<1x{n}xf32>"
    return f"""
    builtin.module {{
      hir.weight @w "w" : {w}
      func.func @main(%x: {x} {{rlx.name = "x"}}) -> ({y} {{rlx.name = "y"}}) {{
        %w = hir.load_weight @w : {w}
        %y = hir.linear %x, %w : {x}, {w} -> {y}
        func.return %y : {y}
      }}
    }}"""


def rows_of(format_: str) -> int:
    block = GGML_TYPES_BY_NAME[format_]
    return SIZE // (K // block.elements * block.nbytes) // 256 * 256


def contestant(format_: str, precision: str, threads: int) -> tuple[Callable[[], Any], int]:
    """Return a call, and the bytes of weights that it reads."""
    n = rows_of(format_)
    f = rlx.compile(
        program(format_, n), RandomBlocks(format_, n), threads=threads, precision=precision
    )
    x = np.random.default_rng(1).standard_normal((1, K)).astype(np.float32)
    f(x)
    return lambda: f(x), f.manifest.weight_bytes_per_step


def measure(format_: str, threads: int, rounds: int, floors: Floors) -> dict[str, float]:
    """Return GB/s: of exact products, of fast ones, and of the plain sum in the same rounds."""
    quantised = GGML_TYPES_BY_NAME[format_].elements > 1
    calls = {p: contestant(format_, p, threads) for p in ("exact", "fast")[: 1 + quantised]}
    samples: dict[str, list[float]] = {name: [] for name in (*calls, "sum")}
    for _ in range(rounds):
        for name, (call, nbytes) in calls.items():
            started = time.perf_counter()
            call()
            samples[name].append(nbytes / (time.perf_counter() - started) / 1e9)
        samples["sum"].append(floors.read())
    return {name: median(found) for name, found in samples.items()}


def report(result: dict[str, Any]) -> str:
    lines = [f"{result['date']}; {result['machine']}.", ""]
    for threads, formats in result["formats"].items():
        rows = [
            [
                name,
                f"{8 * GGML_TYPES_BY_NAME[name].nbytes / GGML_TYPES_BY_NAME[name].elements:.2f}",
                *(f"{rates[p]:.1f}" if p in rates else "" for p in ("exact", "fast", "sum")),
                *(
                    f"{rates[p] / rates['sum']:.0%}" if p in rates else ""
                    for p in ("exact", "fast")
                ),
            ]
            for name, rates in formats.items()
        ]
        header = [
            "format",
            "bits",
            "exact, GB/s",
            "fast",
            "plain sum",
            "exact of sum",
            "fast of sum",
        ]
        lines += [f"Threads: {threads}.", "", table(header, rows), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=",".join(WEIGHT_FORMATS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--update", action="store_true", help="put the tables into README.md")
    args = parser.parse_args()
    result: dict[str, Any] = {"date": today(), "machine": machine(), "formats": {}}
    for threads in map(int, args.threads.split(",")):
        floors = Floors(threads, SIZE)
        result["formats"][threads] = {
            name: measure(name, threads, args.rounds, floors) for name in args.formats.split(",")
        }
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "formats", text)


if __name__ == "__main__":
    main()
