"""Packing, GEMV and GEMM at every instruction-set level against float64 numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import gguf
import numpy as np
import pytest
from kernels import (
    Buffer,
    Kernel,
    bf16_levels,
    call_on_threads,
    compile_kernel,
    module_of,
    nmse,
    product_levels,
)
from ml_dtypes import bfloat16

from rlx.errors import RlxError
from rlx.frontends.quants import BLOCKS
from rlx.lowering.contract import Group, shares, store_panel
from rlx.lowering.emitter import Function
from rlx.lowering.formats import (
    FORMATS,
    emit_unpack_row,
    format_named,
    packed_bytes,
    panel_bytes,
)
from rlx.lowering.gemm import emit_gemm
from rlx.lowering.gemm_tile_plan import has_tiles
from rlx.lowering.gemv import emit_gemv
from rlx.lowering.in_turn import TURNS_BYTES
from rlx.lowering.pack import emit_pack
from rlx.lowering.target import Target
from rlx.lowering.values import Value
from rlx.runtime import jit

LEVELS = product_levels()
LEVELS_OF_BF16 = [LEVELS[0], *dict.fromkeys([*bf16_levels(), LEVELS[-1]])]
Weight = tuple[np.ndarray, np.ndarray]
"""The bytes [n, row bytes] in GGUF's layout, and the values [n, k] in float64."""


def random_weight(rng: np.random.Generator, name: str, n: int, k: int) -> Weight:
    """Return random valid blocks and what they stand for, as the gguf package has it."""
    if name in BLOCKS:
        raw = rng.integers(0, 256, (n * k // FORMATS[name].block, BLOCKS[name].itemsize), np.uint8)
        blocks = raw.view(BLOCKS[name])
        for field in {"d", "m"} & set(BLOCKS[name].names or ()):
            halves = rng.standard_normal(blocks.shape).astype(np.float16)
            halves[rng.random(halves.shape) < 0.02] = np.float16(3e-7)  # a subnormal
            blocks[field] = halves
    else:
        raw = rng.standard_normal((n, k)).astype(np.float32)
        if name == "bf16":
            raw = (raw.view(np.uint32) >> 16).astype(np.uint16)
        elif name == "f16":
            raw = raw.astype(np.float16)
    raw = raw.reshape(n, -1).view(np.uint8)
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    return raw, values.astype(np.float64)


@cache
def pack_kernel(level: str, name: str) -> Kernel:
    def body(f: Function) -> None:
        src, dst, n, k, tid, nth = f.params
        emit_pack(f, name, src, dst, n, k, tid, nth)

    params = [(t, p) for t, p in zip(["ptr"] * 2 + ["i64"] * 4, "sdnkth", strict=True)]
    return compile_kernel(level, params, body)


def packed(weight: np.ndarray, name: str, n: int, k: int, level: str = "host") -> Buffer:
    buffer = Buffer(packed_bytes(name, n, k))
    for tid in range(2):
        pack_kernel(level, name)(Buffer.of(weight, offset=1), buffer, n, k, tid, 2)
    return buffer


def numbers_of(blocks: np.ndarray, name: str) -> np.ndarray:
    """Return the stored numbers [blocks, elements]: the package dequantises with scales of 1."""
    ones = blocks.copy()
    fields = ones.view(BLOCKS[name])[:, 0]
    fields["d"] = 1
    if FORMATS[name].halves == 2:
        fields["m"] = 0
    if FORMATS[name].part:
        # Scales of 1: in 6 bits, less 32; in nibbles; in bytes.
        one = {"q3_k": [0x11] * 8 + [0xAA] * 4, "q2_k": 1, "q6_k": 1}
        fields["scales"] = one.get(name, [1] * 8 + [0x11] * 4)
    values = gguf.quants.dequantize(ones, gguf.GGMLQuantizationType[name.upper()])
    return values.astype(np.int64).reshape(len(blocks), -1) + FORMATS[name].zero


def expected_panel(weight: np.ndarray, name: str, n: int, k: int) -> np.ndarray:
    """Return the chunks of the first panel, [blocks, chunks, words, 16], by numpy."""
    form = FORMATS[name]
    numbers = numbers_of(weight.reshape(-1, form.block_bytes), name).reshape(n, -1, 8, 4)[:16]
    result, low = [], 0
    for bits in form.bits:
        for word in range(bits):
            fields = [numbers[:, :, g] >> low & ((1 << bits) - 1) for g in range(word, 8, bits)]
            bytes_ = sum(field << bits * i for i, field in enumerate(fields))
            result.append((bytes_ << np.arange(0, 32, 8)).sum(-1))
        low += bits
    words = np.zeros((len(result), numbers.shape[1], 16), np.uint32)
    words[:, :, : len(numbers)] = np.array(result, np.uint32).swapaxes(1, 2)
    return words.swapaxes(0, 1).reshape(-1, form.chunks, form.words, 16)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("given", ["f32", "f16"])
def test_pack_rounds_to_bf16(given: str, level: str):
    """A panel has the pairs of rows beside each other; an odd k leaves a zero at its end."""
    rng = np.random.default_rng(3)

    def body(f: Function) -> None:
        src, dst, n, k, tid, nth = f.params
        emit_pack(f, "bf16", src, dst, n, k, tid, nth, given)

    params = [(t, p) for t, p in zip(["ptr"] * 2 + ["i64"] * 4, "sdnkth", strict=True)]
    kernel = compile_kernel(level, params, body)
    for n, k in ((1, 1), (17, 6), (40, 33)):
        raw, values = random_weight(rng, given, n, k)
        buffer = Buffer(packed_bytes("bf16", n, k))
        for tid in range(2):
            kernel(Buffer.of(raw, offset=1), buffer, n, k, tid, 2)
        wanted = np.zeros((-(-n // 16) * 16, k + k % 2), bfloat16)
        wanted[:n, :k] = values.astype(np.float32).astype(bfloat16)
        panels = buffer.array(bfloat16, -(-n // 16), panel_bytes("bf16", k) // 2)
        got = panels[:, : wanted.shape[1] * 16].reshape(-1, wanted.shape[1] // 2, 16, 2)
        np.testing.assert_array_equal(got.transpose(0, 2, 1, 3).reshape(wanted.shape), wanted)


QUANTISED = [name for name, form in FORMATS.items() if form.quantised]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", QUANTISED)
def test_pack(name: str, level: str):
    rng = np.random.default_rng(1)
    form = FORMATS[name]
    for n in (1, 15, 17, 48):
        for blocks in (1, 2, 3):
            k = form.block * blocks
            weight, _ = random_weight(rng, name, n, k)
            result = packed(weight, name, n, k, level).bytes[: panel_bytes(name, k)]
            starts = np.arange(blocks)[:, None] * form.block_step
            chunks = [result[at : at + form.chunks * form.chunk_step] for at in starts[:, 0]]
            words = np.array(chunks).view(np.uint32).reshape(blocks, form.chunks, form.words, 16)
            np.testing.assert_array_equal(words, expected_panel(weight, name, n, k))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_a_panel_lacks_are_zeros(name: str):
    form = FORMATS[name]
    k = 3 * form.block
    weight, _ = random_weight(np.random.default_rng(1), name, 5, k)
    result = packed(weight, name, 5, k)
    again = packed(np.concatenate([weight, np.zeros_like(weight)]), name, 5, k)
    np.testing.assert_array_equal(result.bytes, again.bytes)
    full = packed(np.tile(weight, (4, 1)), name, 16, k)
    assert not (result.bytes & ~full.bytes).any()
    assert np.count_nonzero(result.bytes) < 0.45 * np.count_nonzero(full.bytes)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
def test_unpack_row(name: str, level: str):
    rng = np.random.default_rng(2)
    n, k = 35, 3 * FORMATS[name].block if FORMATS[name].quantised else 33
    weight, values = random_weight(rng, name, n, k)
    buffer = packed(weight, name, n, k, level)

    def body(f: Function) -> None:
        emit_unpack_row(f, name, f.params[0], f.params[1], k, f.params[2])

    kernel = compile_kernel(level, [("ptr", "p"), ("i64", "row"), ("ptr", "out")], body)
    for row in (0, 15, 16, 34):
        out = Buffer(4 * k, offset=4)
        kernel(buffer, row, out)
        np.testing.assert_array_equal(out.array(np.float32, k), values[row].astype(np.float32))


@pytest.mark.parametrize("level", LEVELS)
def test_half_conversion_is_exact(level: str):
    """Every binary16 number, as a weight of the f16 format, reads back as numpy converts it."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    n, k = 1, len(bits)

    def body(f: Function) -> None:
        emit_unpack_row(f, "f16", f.params[0], f.params[1], k, f.params[2])

    kernel = compile_kernel(level, [("ptr", "p"), ("i64", "row"), ("ptr", "out")], body)
    out = Buffer(4 * k)
    kernel(packed(bits.view(np.uint8), "f16", n, k), 0, out)
    result, expected = out.array(np.float32, k), bits.view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    assert np.isnan(result[nan]).all()
    np.testing.assert_array_equal(result[~nan].view(np.uint32), expected[~nan].view(np.uint32))


# Products


def weights_of(
    rng: np.random.Generator, groups: list[Group], k: int
) -> tuple[list[list[Buffer]], list[list[np.ndarray]]]:
    drawn = [[random_weight(rng, name, g.n, k) for name in g.formats] for g in groups]
    buffers = [
        [packed(raw, name, g.n, k) for name, (raw, _) in zip(g.formats, ws, strict=True)]
        for g, ws in zip(groups, drawn, strict=True)
    ]
    return buffers, [[values for _, values in ws] for ws in drawn]


def pointers(f: Function, groups: list[Group], first: int) -> list[list[Value]]:
    given = iter(f.params[first:])
    return [[next(given) for _ in g.formats] for g in groups]


def flat(buffers: list[list[Buffer]]) -> list[Buffer]:
    return [b for bs in buffers for b in bs]


class Gemv:
    """A GEMV kernel whose outputs are one row of f32 for each weight of each group."""

    def __init__(self, level: str, k: int, groups: list[Group], fast: bool = False):
        self.k, self.groups = k, groups
        count = sum(len(g.formats) for g in groups)

        def body(f: Function) -> None:
            tid, nth, row = f.params[:3]
            weights, outs = pointers(f, groups, 3), pointers(f, groups, 3 + count)

            def store(f: Function, g: int, panel: Value, values: list[Value]) -> None:
                for out, value in zip(outs[g], values, strict=True):
                    store_panel(f, out, groups[g].n, panel, value)

            emit_gemv(f, k, groups, row, weights, tid, nth, store)

        params = [("i64", "tid"), ("i64", "nth"), ("ptr", "row")]
        params += [("ptr", f"p{i}") for i in range(2 * count)]
        self.module = module_of(level, params, body, fast)
        if level in LEVELS:
            self.kernel = Kernel(self.module.text, "kernel", self.module.target)

    def __call__(
        self, row: np.ndarray, weights: list[list[Buffer]], threads: int
    ) -> list[list[np.ndarray]]:
        outs = [[Buffer(4 * g.n, offset=4) for _ in g.formats] for g in self.groups]
        for tid in reversed(range(threads)):
            self.kernel(tid, threads, Buffer.of(row, offset=4), *flat(weights), *flat(outs))
        return [
            [out.array(np.float32, g.n) for out in of_group]
            for g, of_group in zip(self.groups, outs, strict=True)
        ]


def in_lanes(row: np.ndarray, values: np.ndarray, lanes: int) -> np.ndarray:
    """Return dot products in f32: an FMA after the other in each lane, then the lanes by pairs."""
    # Products of two f32 are exact in float64.
    products = (values * row).reshape(len(values), -1, lanes)
    sums = np.zeros((len(values), lanes), np.float32)
    for step in products.swapaxes(0, 1):
        sums = (sums + step).astype(np.float32)
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums[:, 0]


@pytest.mark.sample(26)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("n", "chunks"), [(1, 1), (15, 2), (17, 18), (48, 48), (100, 3), (33, 280)]
)
def test_gemv(name: str, n: int, chunks: int):
    k = -(-32 * chunks // FORMATS[name].block) * FORMATS[name].block
    rng = np.random.default_rng(4)
    groups = [Group((name,), n)]
    weights, values = weights_of(rng, groups, k)
    row = (rng.standard_normal(k) * 10.0 ** rng.uniform(-3, 2, k)).astype(np.float32)
    exact = values[0][0] @ row.astype(np.float64)
    # An activation's last bit is relative to the largest of its block.
    largest = abs(row).reshape(-1, 32).max(1).repeat(32).astype(np.float64)
    results: dict[str, np.ndarray] = {}
    for level in LEVELS:
        gemv = Gemv(level, k, groups)
        one, two = gemv(row, weights, 1)[0][0], gemv(row, weights, 2)[0][0]
        np.testing.assert_array_equal(one, two)
        results[level] = one
        assert (abs(one - exact) <= 2.0**-22 * (abs(values[0][0]) @ largest)).all()
    for level in LEVELS[2:]:
        np.testing.assert_array_equal(results[level], results[LEVELS[1]])


@pytest.mark.sample(26)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("k", [768, 1536, 8960])
def test_gemv_is_as_exact_as_f32_dot_products(name: str, k: int, level: str):
    """The error is at most that of a sequential sum, and 4 times that of one in 16 lanes."""
    rng = np.random.default_rng(8)
    groups = [Group((name,), 200)]
    weights, values = weights_of(rng, groups, k)
    gemv = Gemv(level, k, groups)
    for power in (1, 3):
        row = rng.standard_normal(k).astype(np.float32) ** power
        exact = values[0][0] @ row.astype(np.float64)
        ours = nmse(gemv(row, weights, 2)[0][0], exact)
        sequential, lanes = (nmse(in_lanes(row, values[0][0], n), exact) for n in (1, 16))
        assert ours <= sequential
        assert ours <= 4**2 * lanes


def rounded_to_16_bits(row: np.ndarray) -> np.ndarray:
    """Return activations as a fast product takes them: integers of 32639 over a block's largest."""
    blocks = row.reshape(-1, 32)
    largest = abs(blocks).max(1, keepdims=True)
    up = np.divide(np.float32(32639), largest, where=largest > 0, out=np.zeros_like(largest))
    return (np.rint(blocks * up) * (largest.astype(np.float64) / 32639)).reshape(-1)


@pytest.mark.parametrize("name", QUANTISED)
def test_fast_gemv_rounds_activations_and_nothing_else(name: str):
    rng = np.random.default_rng(11)
    n, k = 33, 3 * FORMATS[name].block
    groups = [Group((name,), n)]
    weights, values = weights_of(rng, groups, k)
    row = (rng.standard_normal(k) * 10.0 ** rng.uniform(-3, 2, k)).astype(np.float32)
    row[:32], row[32] = 0, -0.0
    expected = values[0][0] @ rounded_to_16_bits(row)
    scale = abs(values[0][0]) @ abs(row).astype(np.float64)
    for level in LEVELS:
        gemv = Gemv(level, k, groups, fast=True)
        one, two = gemv(row, weights, 1)[0][0], gemv(row, weights, 2)[0][0]
        np.testing.assert_array_equal(one, two)
        assert (abs(one - expected) <= 2.0**-20 * scale).all()
    for bad in (np.inf, np.nan):
        row[7] = bad
        assert np.isnan(gemv(row, weights, 1)[0][0]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_gemv_groups(level: str):
    rng = np.random.default_rng(5)
    groups = [
        Group(("q4_1", "q8_0"), 50),
        Group(("f16",), 16),
        Group(("q4_0",), 7),
        Group(("bf16", "q4_1", "f32"), 33),
    ]
    k = 160
    weights, values = weights_of(rng, groups, k)
    row = rng.standard_normal(k).astype(np.float32)
    gemv = Gemv(level, k, groups)
    whole = gemv(row, weights, 1)
    for threads in (2, 3, 40):
        for a, b in zip(whole, gemv(row, weights, threads), strict=True):
            np.testing.assert_array_equal(a, b)
    for of_group, expected in zip(whole, values, strict=True):
        for result, w in zip(of_group, expected, strict=True):
            assert nmse(result, w @ row.astype(np.float64)) < 1e-12


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["q4_1", "q4_0", "q8_0"])
def test_gemv_extreme_numbers(name: str, level: str):
    """The largest weights and digits of either sign, zeros, tiny and huge rows, and infinities."""
    rng = np.random.default_rng(6)
    k = 64
    form = FORMATS[name]
    raw, _ = random_weight(rng, name, 3, k)
    blocks = raw.reshape(3, 2, form.block_bytes)
    blocks[:, :, : 2 * form.halves] = np.ones(form.halves, np.float16).view(np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x7F if name == "q8_0" else 0x0F)):
        blocks[row, :, 2 * form.halves :] = byte
    if name == "q8_0":
        blocks[0, :, 2:] = 0x80
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    gemv = Gemv(level, k, [Group((name,), 3)])
    weights = [[packed(raw, name, 3, k)]]
    largest = np.nextafter(np.float32(2), np.float32(0))
    for row in (
        np.full(k, largest),
        np.full(k, -largest),
        np.full(k, 8355711 / 2**22),
        np.full(k, -8355710.5 / 2**22),
        np.where(np.arange(k) % 2, largest, -largest),
        np.zeros(k),
        np.full(k, 1e-30),
        np.full(k, 3e30),
    ):
        row = row.astype(np.float32)
        exact = values.astype(np.float64) @ row.astype(np.float64)
        (result,) = gemv(row, weights, 1)[0]
        np.testing.assert_allclose(result, exact, rtol=2e-7, atol=3e-7 * abs(row).max())
    for bad in (np.inf, -np.inf, np.nan):
        row = np.ones(k, np.float32)
        row[40] = bad
        assert np.isnan(gemv(row, weights, 1)[0][0]).all()


class Gemm:
    """A GEMM kernel: outputs [rows, n] for each weight."""

    def __init__(
        self, level: str, k: int, groups: list[Group], stride: int, element: str = "float"
    ):
        self.k, self.groups, self.stride = k, groups, stride
        self.dtype = np.dtype(np.float32 if element == "float" else bfloat16)
        count = sum(len(g.formats) for g in groups)

        def body(f: Function) -> None:
            tid, nth, a, rows, turns = f.params[:5]
            weights, outs = pointers(f, groups, 5), pointers(f, groups, 5 + count)

            def store(f: Function, g: int, row: Value, panel: Value, values: list[Value]) -> None:
                for out, value in zip(outs[g], values, strict=True):
                    store_panel(f, f.at(out, row, 4 * groups[g].n), groups[g].n, panel, value)

            emit_gemm(f, k, groups, a, stride, rows, weights, tid, nth, store, element, turns=turns)

        params = [("i64", "tid"), ("i64", "nth"), ("ptr", "a"), ("i64", "rows"), ("ptr", "turns")]
        params += [("ptr", f"p{i}") for i in range(2 * count)]
        self.module = module_of(level, params, body)
        if level in LEVELS:
            self.kernel = Kernel(self.module.text, "kernel", self.module.target)

    def __call__(
        self, a: np.ndarray, rows: int, weights: list[list[Buffer]], threads: int
    ) -> list[list[np.ndarray]]:
        strided = np.full((rows, self.stride // self.dtype.itemsize), np.nan, self.dtype)
        strided[:, : self.k] = a[:rows]
        # Nothing past the last row's k numbers may be read into a result, nor written.
        source = Buffer.of(strided.reshape(-1) if rows else np.zeros(1, self.dtype), offset=4)
        outs = [[Buffer(4 * rows * g.n, offset=4) for _ in g.formats] for g in self.groups]
        turns = Buffer.of(np.zeros(TURNS_BYTES, np.uint8))
        buffers = turns, *flat(weights), *flat(outs)
        call_on_threads(threads, lambda tid: self.kernel(tid, threads, source, rows, *buffers))
        assert not turns.bytes.any()
        return [
            [out.array(np.float32, rows, g.n) for out in of_group]
            for g, of_group in zip(self.groups, outs, strict=True)
        ]


ROWS = (0, 1, 2, 3, 5, 7, 11, 12, 13, 14, 29, 64, 100)


def check_gemm(
    level: str,
    groups: list[Group],
    k: int,
    stride: int,
    rows: tuple[int, ...],
    limit: float,
    element: str = "float",
) -> None:
    rng = np.random.default_rng(7)
    weights, values = weights_of(rng, groups, k)
    gemm = Gemm(level, k, groups, stride, element)
    a = rng.standard_normal((max(rows), k)).astype(gemm.dtype)
    if element == "bfloat" and has_tiles(gemm.module.target, k):
        values = [[w.astype(bfloat16).astype(np.float64) for w in ws] for ws in values]
    whole = gemm(a, max(rows), weights, 1)
    for of_group, expected in zip(whole, values, strict=True):
        for result, w in zip(of_group, expected, strict=True):
            assert nmse(result, a.astype(np.float64) @ w.T) < limit
    for count in rows:
        for threads in (1, 2):
            for of_group, first in zip(gemm(a, count, weights, threads), whole, strict=True):
                for result, reference in zip(of_group, first, strict=True):
                    np.testing.assert_array_equal(result, reference[:count])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
def test_gemm_formats(name: str, level: str):
    for n, k in ((1, FORMATS[name].block), (17, 64), (100, 160)):
        k *= 8 if FORMATS[name].block == 256 and k < 256 else 1
        check_gemm(level, [Group((name,), n)], k, 4 * k + 20, ROWS, 1e-12)


BF16_ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 95)


@pytest.mark.sample(14)
@pytest.mark.parametrize("level", LEVELS_OF_BF16)
@pytest.mark.parametrize("name", FORMATS)
def test_gemm_of_bf16_rows(name: str, level: str):
    """Sums are f32; weights are rounded as rows are, where the target multiplies tiles."""
    for n, k in ((1, FORMATS[name].block), (17, 64), (100, 160)):
        k *= 8 if FORMATS[name].block == 256 and k < 256 else 1
        check_gemm(level, [Group((name,), n)], k, 2 * k + 10, BF16_ROWS, 1e-9, "bfloat")


@pytest.mark.parametrize("level", LEVELS_OF_BF16)
def test_gemm_of_bf16_rows_of_any_k(level: str):
    for k in (1, 31, 32, 33, 47, 63, 64, 65, 97, 1281, 2560):
        for name in ("f32", "f16", "bf16"):
            check_gemm(level, [Group((name,), 33)], k, 2 * k, (1, 16, 50), 1e-9, "bfloat")


@pytest.mark.parametrize("level", LEVELS_OF_BF16)
def test_gemm_of_bf16_rows_in_groups_and_blocks(level: str):
    groups = [
        Group(("q4_1", "q8_0"), 48),
        Group(("f16",), 15),
        Group(("q4_0", "bf16", "f32"), 33),
        Group(("q4_1",) * 4, 20),
    ]
    for k in (96, 1536):
        check_gemm(level, groups, k, 2 * k, (0, 1, 13, 30, 70), 1e-9, "bfloat")
    check_gemm(level, [Group(("q6_k",), 17)], 8960, 2 * 8960, (1, 29, 1100), 1e-9, "bfloat")
    check_gemm(level, [Group(("f16", "f16"), 16)], 4111, 2 * 4111, (1, 1030), 1e-9, "bfloat")


@pytest.mark.parametrize("level", LEVELS_OF_BF16)
def test_gemm_of_bf16_rows_with_panels_that_are_tiles(level: str):
    """Panels pass by blocks of rows where they stay in L2; else rows by panels, in blocks of k."""
    for n, k in ((80, 640), (1100, 576), (1060, 608), (70, 672), (48, 1536)):
        check_gemm(level, [Group(("bf16",), n)], k, 2 * k, (1, 40, 129, 300), 1e-9, "bfloat")
    groups = [Group(("bf16", "bf16"), 48), Group(("bf16",) * 3, 33), Group(("bf16",), 17)]
    check_gemm(level, groups, 320, 640, (31, 130), 1e-9, "bfloat")


def test_gemm_of_bf16_rows_asks_for_memory_to_take_turns():
    if not has_tiles(Target.host(), 64):
        pytest.skip("needs products of bf16")

    def body(f: Function) -> None:
        a, w, rows, tid, nth = f.params
        groups = [Group(("bf16",), 16)]
        emit_gemm(f, 64, groups, a, 128, rows, [[w]], tid, nth, lambda *_: None, "bfloat")

    params = [("ptr", "a"), ("ptr", "w"), ("i64", "rows"), ("i64", "tid"), ("i64", "nth")]
    with pytest.raises(RlxError, match="turns"):
        module_of("host", params, body)


@pytest.mark.parametrize("level", LEVELS)
def test_gemm_groups(level: str):
    groups = [
        Group(("q4_1", "q8_0"), 48),
        Group(("f16",), 15),
        Group(("q4_0", "bf16", "f32"), 33),
        Group(("q4_1",) * 4, 20),
    ]
    check_gemm(level, groups, 96, 384, (0, 1, 13, 30), 1e-12)


def test_gemm_is_the_same_at_every_level_with_fma():
    rng = np.random.default_rng(9)
    groups, k = [Group(("q4_1",), 48), Group(("q8_0", "f16"), 17)], 2400
    weights, _ = weights_of(rng, groups, k)
    a = rng.standard_normal((31, k)).astype(np.float32)
    results = [Gemm(level, k, groups, 4 * k)(a, 31, weights, 1) for level in LEVELS[1:]]
    for result in results[1:]:
        for of_group, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(of_group, first)


@pytest.mark.parametrize("level", LEVELS)
def test_gemm_sizes(level: str):
    check_gemm(level, [Group(("q4_1",), 48)], 1536, 6144, (3, 130), 1e-12)
    check_gemm(level, [Group(("f32",), 17)], 33, 132, (5, 300), 1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_gemm_blocks_of_k(level: str):
    """Rows and k beyond the scratch: chunks of rows, blocks of k."""
    check_gemm(level, [Group(("q4_1",), 17)], 8960, 4 * 8960, (1, 29, 140), 1e-11)
    check_gemm(level, [Group(("f16", "f16"), 16)], 4111, 4 * 4111, (1, 1030), 1e-11)
    # Groups of as many weights, whose blocks of k are not of one size.
    groups = [Group(("q6_k",) * 3, 16), Group(("q8_0",) * 3, 16)]
    check_gemm(level, groups, 1536, 4 * 1536, (1, 130), 1e-11)


def test_shares_cover_every_item_once():
    counts, costs = [5, 1, 0, 40], [3, 1, 7, 20]

    def body(f: Function) -> None:
        tid, nth, out = f.params
        for g, (first, last) in enumerate(shares(f, counts, costs, tid, nth)):
            f.store(first, f.at(out, 16 * g), align=8)
            f.store(last, f.at(out, 16 * g + 8), align=8)

    kernel = compile_kernel("host", [("i64", "tid"), ("i64", "nth"), ("ptr", "out")], body)
    for threads in (1, 2, 3, 7, 100):
        seen: list[list[int]] = [[] for _ in counts]
        for tid in range(threads):
            out = Buffer(16 * len(counts))
            kernel(tid, threads, out)
            for g, (first, last) in enumerate(out.array(np.int64, len(counts), 2)):
                seen[g] += range(first, last)
        assert seen == [list(range(n)) for n in counts]


@pytest.mark.parametrize("level", ["aarch64", "neoverse-n1", "skylake-avx512", "znver4"])
def test_other_machines_compile(level: str):
    gemv = Gemv(level, 256, [Group((name,), 17) for name in FORMATS])
    text = jit.assembly(gemv.module.text, Target.named(level))
    gemm = Gemm(level, 256, [Group((name,), 17) for name in FORMATS], 1024)
    assert "gemm.tile" in jit.assembly(gemm.module.text, Target.named(level))
    instruction = "vpdpbusd" if level == "znver4" else "vpmaddubsw"
    assert (instruction in text) == (level in ("znver4", "skylake-avx512"))
    # Bits within bytes are moved by one instruction where there is one.
    assert ("vgf2p8affineqb" in text) == (level == "znver4")


def test_errors():
    with pytest.raises(RlxError, match="unknown weight format 'iq4_nl': expected one of q4_1"):
        format_named("iq4_nl", 32)
    with pytest.raises(RlxError, match="blocks of 32 along its rows, and rows of 40"):
        packed_bytes("q4_1", 16, 40)

    def empty(f: Function) -> None:
        emit: Callable[..., None] = emit_gemv
        zero = Value("i64", "0")
        emit(f, 32, [Group(("f32",), 16)], f.params[0], [[]], zero, zero, None)

    with pytest.raises(RlxError, match=r"the groups have \[1\] weights, and \[0\] pointers"):
        module_of("host", [("ptr", "p")], empty)


SCHEDULES = {
    "x86-64": ("x86-64", "znver1"),
    "haswell": ("haswell", "znver3"),
    "x86-64-v4": ("skylake-avx512", "znver5"),
    "znver4": ("znver4", "znver5"),
}
"""Levels, and CPUs whose models LLVM orders their instructions by."""


@pytest.mark.parametrize("element", ["float", "bfloat"])
@pytest.mark.parametrize(
    ("level", "cpu"), [(n, cpu) for n, cpus in SCHEDULES.items() for cpu in cpus]
)
def test_sums_stay_in_registers(level: str, cpu: str, element: str):
    """LLVM may order loads so early that sums are spilled: half the speed."""
    target = replace(Target.named(level), cpu=cpu)
    text = Gemm(level, 64, [Group(("f16",), 32)], 256, element).module.text
    text = text.replace(f'"target-cpu"="{Target.named(level).cpu}"', f'"target-cpu"="{cpu}"')
    assembly = jit.assembly(text, target)
    functions = re.findall(r"^(gemm\.tile_|bf16\.rows_)(.*?)^\.Lfunc_end", assembly, re.M | re.S)
    assert functions
    for name, code in functions:
        assert not re.search(r"mm\d+, -?\d*\(%rsp\)", code), f"{name}{code[:40]}"
