"""Whole programs, from HIR text to results, at every instruction-set level against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import fuzz
import numpy as np
import pytest
from fuzz import Case, Step, Weights
from kernels import levels

import rlx
from rlx.dialects.kinds import FLOAT_BINARY, FLOAT_UNARY, UnaryKind
from rlx.errors import RlxError
from rlx.flow.source import MapWeights
from rlx.functions import Built, CompiledFunction, build
from rlx.lowering.abi import Sampling
from rlx.lowering.target import Target

LEVELS = [level for level in levels() if level != "alderlake"]
at_levels = pytest.mark.parametrize("level", LEVELS)
POSITIVE = ("sqrt", "rsqrt", "recip", "log")
"""Kinds of unary operations that get positive numbers."""


def tensor(dims: Sequence[int | str], element: str = "f32") -> str:
    """Return a type's text: `tensor<?x16xf32, #hir.dims<n, _>>`."""
    shape = "".join(f"{d if isinstance(d, int) else '?'}x" for d in dims)
    names = ", ".join(d if isinstance(d, str) else "_" for d in dims)
    named = any(isinstance(d, str) for d in dims)
    return f"tensor<{shape}{element}{f', #hir.dims<{names}>' if named else ''}>"


class Text:
    """A program's text while it is written: `x = t.input(...)`, `y = t.op(...)`, `t.output(y)`."""

    def __init__(self, seed: int, dims: str = ""):
        self.rng = np.random.default_rng(seed)
        self.weights = Weights(self.rng)
        self.types: dict[str, str] = {}
        self._dims = f" attributes {{rlx.dims = #hir.dim_table<{dims}>}}" if dims else ""
        self._top: list[str] = []
        self._params: list[str] = []
        self._body: list[str] = []
        self._results: list[str] = []

    def top(self, text: str) -> None:
        """Add a declaration or a function."""
        self._top.append(text)

    def input(self, name: str, dims: Sequence[int | str], element: str = "f32") -> str:
        self.types[f"%{name}"] = tensor(dims, element)
        self._params.append(f'%{name}: {tensor(dims, element)} {{rlx.name = "{name}"}}')
        return f"%{name}"

    def op(self, text: str, result: str) -> str:
        """Add an operation with one result of a type."""
        name = f"%v{len(self._body)}"
        self._body.append(f"{name} = {text}")
        self.types[name] = result
        return name

    def line(self, text: str) -> None:
        self._body.append(text)

    def weight(self, shape: tuple[int, ...], format: str = "f32") -> str:
        symbol = f"w{len(self._body)}"
        element = f"!hir.q<{format}>" if format in fuzz.BLOCKED else format
        type_ = tensor(shape, element)
        self.top(f'hir.weight @{symbol} "{symbol}" : {type_}')
        self.weights.add(symbol, shape, format)
        return self.op(f"hir.load_weight @{symbol} : {type_}", type_)

    def unary(self, kind: str, x: str) -> str:
        return self.op(f"mir.unary {kind} {x} : {self.types[x]}", self.types[x])

    def binary(self, kind: str, x: str, y: str) -> str:
        return self.op(f"mir.binary {kind} {x}, {y} : {self.types[x]}", self.types[x])

    def linear(self, x: str, w: str, rows: int | str, n: int) -> str:
        type_ = tensor([rows, n])
        return self.op(f"hir.linear {x}, {w} : {self.types[x]}, {self.types[w]} -> {type_}", type_)

    def output(self, *values: str) -> None:
        self._results += values

    def case(self, steps: Sequence[Step]) -> Case:
        types = [self.types[r] for r in self._results]
        results = ", ".join(f'{t} {{rlx.name = "y{i}"}}' for i, t in enumerate(types))
        lines = [
            f"builtin.module{self._dims} {{",
            *self._top,
            f"func.func @main({', '.join(self._params)}) -> ({results}) {{",
            *self._body,
            f"func.return {', '.join(self._results)} : {', '.join(types)}",
            "}",
            "}",
        ]
        return Case("\n".join(lines), self.weights, list(steps))

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)


# Kernel families


@pytest.mark.sample(5)
@at_levels
@pytest.mark.parametrize("dims", [("n",), (3, 5, 17), (16, "n"), ()])
def test_elementwise(dims: tuple[int | str, ...], level: str):
    t = Text(1, "n = 0 to 300")
    x, y, p = (t.input(f"x{i}", dims) for i in range(3))
    kinds = FLOAT_UNARY if dims == ("n",) else (UnaryKind.GELU_TANH, UnaryKind.RSQRT)
    t.output(*(t.unary(k.value, p if k.value in POSITIVE else x) for k in kinds))
    for kind in FLOAT_BINARY:
        left, right = (p if kind == "pow" else x), (p if kind == "div" else y)
        t.output(t.binary(kind.value, left, right))
    chain = t.binary("mul", t.unary("neg", x), t.unary("tanh", y))
    t.output(t.binary("sub", t.binary("max", chain, p), chain))
    steps: list[Step] = []
    for n in (0, 1, 15, 16, 17, 257) if "n" in dims else (1,):
        shape = [n if d == "n" else int(d) for d in dims]
        inputs = {f"x{i}": np.asarray(t.random(*shape)) for i in range(3)}
        inputs["x2"] = np.abs(inputs["x2"]) + np.float32(0.1)
        steps.append(({"n": n}, inputs))
    fuzz.check(t.case(steps), [level], 1e-12)


def test_rms_norm():
    t = Text(2, "n = 0 to 37")
    widths = (1, 15, 17, 576)
    for k in widths:
        for rows in ("n", 1, 2):
            x, w = t.input(f"x{rows}_{k}", (rows, k)), t.weight((k,))
            t.output(t.op(f"hir.rms_norm {x}, {w} eps 1.0e-05 : {t.types[x]}, {t.types[w]}",
                          t.types[x]))  # fmt: skip
    steps = [
        (
            {"n": n},
            {f"x{r}_{k}": t.random(n if r == "n" else r, k) for k in widths for r in ("n", 1, 2)},
        )
        for n in (0, 1, 2, 37)
    ]
    fuzz.check(t.case(steps), LEVELS, 1e-12)


@pytest.mark.sample(14)
@at_levels
@pytest.mark.parametrize("rows", [1, "n"])
@pytest.mark.parametrize(
    ("format", "k"),
    [
        *[("f32", 17), ("f16", 33), ("bf16", 1), ("q4_0", 64), ("q4_1", 96), ("q5_0", 32)],
        *[("q5_1", 96), ("q8_0", 32), ("q2_k", 512), ("q3_k", 256), ("q4_k", 256)],
        *[("q5_k", 256), ("q6_k", 512)],
    ],
)
def test_linear_in_all_formats(format: str, k: int, rows: int | str, level: str):
    t = Text(3, "n = 0 to 37")
    x = t.input("x", (rows, k))
    for n in (1, 17, 48):
        t.output(t.linear(x, t.weight((n, k), format), rows, n))
    counts = (0, 1, 2, 7, 37) if rows == "n" else (1,)
    steps = [({"n": n}, {"x": t.random(n, k)}) for n in counts]
    fuzz.check(t.case(steps), [level])


@pytest.mark.sample(3)
@at_levels
@pytest.mark.parametrize("rows", [1, "n"])
def test_epilogues(rows: int | str, level: str):
    """Residuals, gates, one residual for two products, a chain after a norm, a swiglu."""
    t = Text(4, "n = 1 to 9")
    k, n = 256, 49
    x, r = t.input("x", (rows, k)), t.input("r", (rows, n))
    residual = t.unary("tanh", r)
    a, b, c = (t.linear(x, t.weight((n, k), f), rows, n) for f in ("q4_1", "f32", "q8_0"))
    t.output(t.binary("add", residual, a), t.binary("mul", b, residual))
    t.output(t.binary("mul", t.unary("silu", c), t.unary("neg", b)))
    norm = t.weight((k,))
    h = t.op(f"hir.rms_norm {x}, {norm} eps 1.0e-05 : {t.types[x]}, {t.types[norm]}", t.types[x])
    d = t.linear(h, t.weight((n, k), "f16"), rows, n)
    t.output(t.binary("sub", t.unary("gelu_tanh", d), r))
    for format in fuzz.FORMATS:
        ffn = 256 if format.endswith("k") else 96
        up, gate = t.weight((ffn, k), format), t.weight((ffn, k), format)
        down = t.weight((k, ffn), format)
        types = ", ".join(t.types[v] for v in (x, up, gate, down))
        y = t.op(f"hir.glu silu {h} up {up} gate {gate} down {down} : {types}", t.types[x])
        t.output(t.binary("add", x, y))
    steps = [
        ({"n": m}, {"x": t.random(m, k), "r": t.random(m, n)})
        for m in ((1, 2, 9) if rows == "n" else (int(rows),))
    ]
    fuzz.check(t.case(steps), [level])


def _attention(seed: int, rows: int | str, heads: int, kv: int, head_dim: int, n_rot: int) -> Text:
    """Two layers of attention with states of their own, and one outside of them."""
    t = Text(
        seed, f"seq = {'1 to 9' if rows == 'seq' else rows}, past = 0 to 55, keys = past + seq"
    )
    d, wide = heads * head_dim, kv * head_dim
    x = t.input("x", (rows, d))
    table, view = tensor((64, n_rot)), tensor(("keys", wide))
    full, narrow = tensor((rows, d)), tensor((rows, wide))
    weight = tensor((wide, d))
    for state, role in (("k", "keys"), ("v", "values")):
        t.top(f"hir.state @{state} {role} head_dim {head_dim} : {tensor((64, wide))}")
        t.top(f'hir.weight @w{state} "w{state}.{{layer}}" : {weight}')
        for layer in range(2):
            t.weights.add(f"w{state}.{layer}", (wide, d))

    def attend(q: str, k: str, v: str) -> list[str]:
        return [
            f'%qr = hir.rope {q}, %cos, %sin start "past" head_dim {head_dim} : '
            f"{full}, {table}, {table}",
            f'%kr = hir.rope {k}, %cos, %sin start "past" head_dim {head_dim} : '
            f"{narrow}, {table}, {table}",
            f'%ks = hir.append %kr to @k start "past" : {narrow} -> {view}',
            f'%vs = hir.append {v} to @v start "past" : {narrow} -> {view}',
            f"%a = hir.attention %qr, %ks, %vs head_dim {head_dim} scale 0.25 : {full}, {view}",
        ]

    t.top(
        "\n".join(
            [
                f"func.func private @layer(%x: {full}, %cos: {table}, %sin: {table}) -> {full} {{",
                f"%wk = hir.load_weight @wk : {weight}",
                f"%wv = hir.load_weight @wv : {weight}",
                f"%k = hir.linear %x, %wk : {full}, {weight} -> {narrow}",
                f"%v = hir.linear %x, %wv : {full}, {weight} -> {narrow}",
                *attend("%x", "%k", "%v"),
                f"%y = mir.binary add %x, %a : {full}",
                f"func.return %y : {full}",
                "}",
            ]
        )
    )
    t.line(f"%cos, %sin = hir.rope_table base 1.0e+04 : {table}, {table}")
    # The same symbols outside of the loop are those of layer 0: written anew at every step.
    w = t.weight((wide, d))
    k = t.linear(x, w, rows, wide)
    for line in attend(x, k, k):
        t.line(line)
    t.types["%a"] = full
    y = t.op(f"hir.repeat @layer(%a, %cos, %sin) layers 0 to 2 : ({full}, {table}, {table}) "
             f"-> {full}", full)  # fmt: skip
    t.output(y, "%a")
    return t


@at_levels
@pytest.mark.parametrize(
    ("heads", "kv", "head_dim", "n_rot"), [(3, 1, 16, 16), (4, 2, 32, 16), (2, 2, 64, 64)]
)
def test_attention_over_steps(heads: int, kv: int, head_dim: int, n_rot: int, level: str):
    t = _attention(5, "seq", heads, kv, head_dim, n_rot)
    steps: list[Step] = []
    past = 0
    for seq in (7, 1, 9, 1, 1, 9, 5):
        steps.append(({"seq": seq, "past": past}, {"x": t.random(seq, heads * head_dim)}))
        past += seq
    fuzz.check(t.case(steps), [level])
    t = _attention(6, 1, heads, kv, head_dim, n_rot)
    steps = [({"past": i}, {"x": t.random(1, heads * head_dim)}) for i in range(20)]
    fuzz.check(t.case(steps), [level])


def test_embedding_in_all_formats():
    t = Text(7, "n = 0 to 20")
    ids = t.input("ids", ("n",), "i32")
    for format in fuzz.FORMATS:
        d, vocab = (33, 19) if format in fuzz.PLAIN else (512 if format.endswith("k") else 64, 35)
        w = t.weight((vocab, d), format)
        t.output(t.op(f"hir.embedding {ids}, {w} : {t.types[ids]}, {t.types[w]} -> "
                      f"{tensor(('n', d))}", tensor(("n", d))))  # fmt: skip
    steps = [({"n": n}, {"ids": t.rng.integers(0, 19, n).astype(np.int32)}) for n in (0, 1, 16, 20)]
    fuzz.check(t.case(steps), LEVELS, 1e-13)


def test_last_rows_and_sampling():
    """One of the two draws is returned twice, and the logits are outputs too."""
    t = Text(8, "n = 1 to 9, out = 0 to 9")
    x = t.input("x", ("n", 35))
    t.input("params", (8,), "i32")
    last = t.op(f"hir.last_rows {x} : {t.types[x]} -> {tensor((1, 35))}", tensor((1, 35)))
    some = t.op(f"hir.last_rows {x} : {t.types[x]} -> {tensor(('out', 35))}", tensor(("out", 35)))
    draw = "hir.sample {0}, %params : {1}, tensor<8xi32> -> tensor<1xi32>"
    first = t.op(draw.format(x, t.types[x]), "tensor<1xi32>")
    logits = t.linear(last, t.weight((40, 35)), 1, 40)
    second = t.op(draw.format(logits, t.types[logits]), "tensor<1xi32>")
    t.output(last, some, first, second, logits, first, x)
    greedy = np.frombuffer(Sampling().pack(), np.int32)
    steps = [
        ({"n": n, "out": out}, {"x": t.random(n, 35), "params": greedy})
        for n, out in ((1, 0), (1, 1), (9, 3), (9, 9))
    ]
    fuzz.check(t.case(steps), LEVELS, 1e-12)


# Plans


LAYER = """
builtin.module {{
  func.func private @l({args}) -> ({types}) {{
    {body}
  }}
  func.func @main(%x: tensor<5x7xf32> {{rlx.name = "x"}}) -> ({results}) {{
    %a = mir.unary tanh %x : tensor<5x7xf32>
    %b = mir.unary neg %x : tensor<5x7xf32>
    {main}
  }}
}}
"""
T = "tensor<5x7xf32>"


@pytest.mark.parametrize(
    ("body", "arguments", "returned"),
    [
        # Values that change places, one that stays, one handed on twice.
        ("func.return %q, %p", "%a, %b", "%r, %s"),
        (f"%y = mir.unary abs %p : {T} func.return %q, %y", "%a, %b", "%s, %r"),
        ("func.return %p, %p", "%a, %b", "%r, %s"),
        (f"%y = mir.binary sub %p, %q : {T} func.return %y, %y", "%a, %b", "%r, %s"),
        ("func.return %p, %q", "%a, %b", "%r, %s"),
        # One value carried twice, an input carried, values used after the loop.
        (f"%y = mir.binary add %p, %q : {T} func.return %y, %p", "%a, %a", "%r, %s"),
        (f"%y = mir.binary sub %p, %q : {T} func.return %q, %y", "%x, %x", "%r, %a"),
        (f"%y = mir.unary exp %p : {T} func.return %q, %y", "%a, %b", "%a, %b"),
        # What a layer returns and does not use; a result that nothing uses.
        (f"%y = mir.unary neg %q : {T} %z = mir.unary abs %p : {T} func.return %y, %q",
         "%a, %b", "%s, %s"),
    ],
)  # fmt: skip
def test_what_a_loop_carries(body: str, arguments: str, returned: str):
    text = LAYER.format(
        args=f"%p: {T}, %q: {T}",
        types=f"{T}, {T}",
        body=f"{body} : {T}, {T}",
        results=f'{T} {{rlx.name = "y"}}, {T} {{rlx.name = "z"}}',
        main=f"%r, %s = hir.repeat @l({arguments}) layers 1 to 4 : ({T}, {T}) -> ({T}, {T})\n"
        f"func.return {returned} : {T}, {T}",
    )
    rng = np.random.default_rng(9)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    fuzz.check(Case(text, Weights(rng), [({}, {"x": x})]), limit=1e-12)


def test_a_value_that_is_carried_and_kept():
    text = LAYER.format(
        args=f"%p: {T}, %q: {T}",
        types=T,
        body=f"%y = mir.unary tanh %p : {T} %z = mir.binary mul %y, %q : {T} func.return %z : {T}",
        results=f'{T} {{rlx.name = "y"}}, {T} {{rlx.name = "z"}}',
        main=f"%r = hir.repeat @l(%a, %a) layers 0 to 3 : ({T}, {T}) -> {T}\n"
        f"%s = hir.repeat @l(%r, %b) layers 0 to 3 : ({T}, {T}) -> {T}\n"
        f"func.return %s, %b : {T}, {T}",
    )
    rng = np.random.default_rng(10)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    fuzz.check(Case(text, Weights(rng), [({}, {"x": x})]), limit=1e-12)


def test_a_weight_without_layers_is_one_for_all():
    text = """
    builtin.module {
      hir.weight @matmul "w" : tensor<16x16xf32>
      func.func private @l(%x: tensor<1x16xf32>) -> tensor<1x16xf32> {
        %w = hir.load_weight @matmul : tensor<16x16xf32>
        %y = hir.linear %x, %w : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<1x16xf32>
        func.return %y : tensor<1x16xf32>
      }
      func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"})
          -> (tensor<1x16xf32> {rlx.name = "y"}) {
        %w = hir.load_weight @matmul : tensor<16x16xf32>
        %y = hir.repeat @l(%x) layers 1 to 4 : (tensor<1x16xf32>) -> tensor<1x16xf32>
        %z = hir.linear %y, %w : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<1x16xf32>
        func.return %z : tensor<1x16xf32>
      }
    }
    """
    rng = np.random.default_rng(11)
    weights = Weights(rng)
    weights.add("w", (16, 16))
    x = rng.standard_normal((1, 16)).astype(np.float32)
    fuzz.check(Case(text, weights, [({}, {"x": x})]))
    assert rlx.compile(text, weights).manifest.weight_segment_bytes == 16 * 16 * 4


def test_random_programs(fuzz_count: Callable[[int, int], int]):
    for seed in range(fuzz_count(800, 8)):
        fuzz.check(fuzz.random_case(seed), [LEVELS[seed % len(LEVELS)]])


# Functions


QUICKSTART = """
builtin.module @quickstart {
  hir.weight @w "w" : tensor<2x4xf32>
  func.func @main(%x: tensor<1x4xf32> {rlx.name = "x"}) -> (tensor<1x2xf32> {rlx.name = "y"}) {
    %w = hir.load_weight @w : tensor<2x4xf32>
    %y = hir.linear %x, %w : tensor<1x4xf32>, tensor<2x4xf32> -> tensor<1x2xf32>
    func.return %y : tensor<1x2xf32>
  }
}
"""
W = np.array([1, 0, 0, 1, 1, 0, 0, 1], np.float32).reshape(4, 2).T
X = np.array([[1, 2, 3, 4]], np.float32)


def test_quickstart():
    f = rlx.compile(QUICKSTART, {"w": W})
    assert f(X).tolist() == [[4, 6]]
    assert f(x=X).tolist() == [[4, 6]]
    out = np.zeros((1, 2), np.float32)
    assert f(X, out=[out]) is out
    assert out.tolist() == [[4, 6]]
    assert f.manifest.name == "quickstart"
    # An array that isn't contiguous is copied.
    wide = np.repeat(X, 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous or wide.strides[1] != 4
    assert f(wide).tolist() == [[4, 6]]


def test_every_level_of_ir_is_taken():
    f = rlx.compile(QUICKSTART, {"w": W})
    for stage in ("hir", "mir", "lir"):
        text = f.ir(stage)
        again = rlx.compile(text, {"w": W}, target=Target.named("generic"))
        assert again(X).tolist() == [[4, 6]]
        assert again.ir(stage) == text
    module = fuzz.parsed(QUICKSTART)
    assert rlx.compile(module, {"w": W}, threads=1)(X).tolist() == [[4, 6]]
    assert "hir.linear" in str(module)
    assert "define" in f.ir("llvm")
    with pytest.raises(RlxError, match="expected one of lir, llvm, got 'mir'"):
        again.ir("mir")
    with pytest.raises(RlxError, match="expected one of hir, mir, lir, llvm, got 'asm'"):
        f.ir("asm")


def test_a_plan_that_is_not_sound_is_refused():
    text = rlx.compile(STEPS, {"t": np.zeros((10, 16), np.float32)}).ir("lir")
    broken = text.replace("    lir.barrier\n", "", 1)
    assert broken != text
    with pytest.raises(RlxError, match="the plan of the module is not sound:\n  missing barrier"):
        rlx.compile(broken, {"t": np.zeros((10, 16), np.float32)})


STEPS = """
builtin.module @steps attributes {
  rlx.dims = #hir.dim_table<n = 0 to 4, past = 0 to 12, keys = past + n>
} {
  hir.weight @t "t" : tensor<10x16xf32>
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  hir.state @v values head_dim 16 : tensor<16x16xf32>
  func.func @main(%ids: tensor<?xi32, #hir.dims<n>> {rlx.name = "ids"},
      %x: tensor<?x16xf32, #hir.dims<n, _>> {rlx.name = "x"})
      -> (tensor<?x16xf32, #hir.dims<n, _>> {rlx.name = "y"},
          tensor<?x16xf32, #hir.dims<n, _>> {rlx.name = "e"}) {
    %t = hir.load_weight @t : tensor<10x16xf32>
    %e = hir.embedding %ids, %t
        : tensor<?xi32, #hir.dims<n>>, tensor<10x16xf32> -> tensor<?x16xf32, #hir.dims<n, _>>
    %ks = hir.append %x to @k start "past"
        : tensor<?x16xf32, #hir.dims<n, _>> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %vs = hir.append %e to @v start "past"
        : tensor<?x16xf32, #hir.dims<n, _>> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %y = hir.attention %x, %ks, %vs head_dim 16 scale 0.25
        : tensor<?x16xf32, #hir.dims<n, _>>, tensor<?x16xf32, #hir.dims<keys, _>>
    func.return %y, %e : tensor<?x16xf32, #hir.dims<n, _>>, tensor<?x16xf32, #hir.dims<n, _>>
  }
}
"""


@cache
def _built() -> Built:
    return build(STEPS, Target.host())


def _steps() -> CompiledFunction:
    table = np.random.default_rng(12).standard_normal((10, 16)).astype(np.float32)
    return CompiledFunction(_built(), MapWeights({"t": table}), 1)


def test_state_persists_until_it_is_reset():
    f = _steps()
    rng = np.random.default_rng(13)
    ids = rng.integers(0, 10, 4).astype(np.int32)
    x = rng.standard_normal((4, 16)).astype(np.float32)
    whole, _ = f(ids, x, dims={"past": 0})
    f.reset()
    first, _ = f(ids[:3], x[:3], dims={"past": 0})
    last, e = f(ids[3:], x[3:], dims={"past": 3})
    np.testing.assert_array_equal(np.concatenate([first, last]), whole)
    assert e.shape == (1, 16)
    f.reset()
    # Keys and values of nothing but zeros, then the last row's own.
    zeros, _ = f(ids[3:], x[3:], dims={"past": 3})
    assert not np.array_equal(zeros, last)
    empty = f(ids[:0], x[:0], dims={"past": 0})
    assert [y.shape for y in empty] == [(0, 16), (0, 16)]


I2, X2 = np.zeros(2, np.int32), np.zeros((2, 16), np.float32)
READ_ONLY = np.zeros((2, 16), np.float32)
READ_ONLY.flags.writeable = False
SPARSE = np.zeros((2, 32), np.float32)[:, ::2]


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((I2,), {}, "steps: expected the inputs ids, x, in this order or by name, got array 0"),
        ((I2, X2, X2), {}, "expected the inputs ids, x"),
        ((I2,), {"y": X2}, "expected the inputs ids, x"),
        ((I2, X2), {"x": X2}, "expected the inputs ids, x"),
        ((I2, [1.0]), {}, "input 'x': expected a numpy array, got list"),
        ((I2, X2.astype("f8")), {}, r"'x': expected \[n, 16\] float32, got \[2, 16\] float64"),
        ((I2.astype(np.int64), X2), {}, r"input 'ids': expected \[n\] int32"),
        ((I2, X2[:, :15]), {}, r"'x': expected \[n, 16\] float32, here \[2, 16\], got \[2, 15\]"),
        ((I2, X2[0]), {}, r"input 'x': expected \[n, 16\] float32, got \[16\]"),
        ((I2, X2[:1]), {}, "dimension 'n' is 2 in input 'ids', and 1 in input 'x'"),
        ((I2 + 10, X2), {}, "input 'ids': expected indices from 0 to 9, got 10"),
        ((I2 - 1, X2), {}, "input 'ids': expected indices from 0 to 9, got -1"),
        ((I2, X2), {"dims": {}}, "expected a size for dimension 'past'"),
        ((I2, X2), {"dims": {"past": 13}}, "dimension 'past' must be from 0 to 12, got 13"),
        ((I2, X2), {"dims": {"past": 0, "n": 3}}, "dimension 'n' is 3 in dims, and 2 in input"),
        ((I2, X2), {"dims": {"past": 0, "keys": 2}}, "sizes of n, past, got one of 'keys'"),
        ((I2, X2), {"out": [X2]}, r"out: expected 2 arrays \(y, e\), got 1"),
        ((I2, X2), {"out": [X2, X2.copy()]}, "out 'y': expected memory of its own"),
        ((I2, X2), {"out": [X2.copy(), X2[:1].copy()]}, "out 'e': expected"),
        ((I2, X2), {"out": [X2.copy(), READ_ONLY]}, "'e': expected a contiguous, aligned and w"),
        ((I2, X2), {"out": [X2.copy(), SPARSE]}, "out 'e': expected a contiguous"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(args: tuple, kwargs: dict, message: str, called: bool):
    f = _steps()
    if called:
        f(I2, X2, dims={"past": 0})
        f(I2, X2, dims={"past": 3})
    with pytest.raises(RlxError, match=message):
        f(*args, **{"dims": {"past": 0}, **kwargs})
    # What was refused has left nothing behind: all keys are equal, and so are all values.
    y, e = f(I2, X2, dims={"past": 0})
    np.testing.assert_allclose(y, e, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "weights", "message"),
    [
        (QUICKSTART, None, "expected a weight 'w', which is missing"),
        (QUICKSTART, {"w": W.T}, r"weight 'w': expected \[2, 4\] f32, got \[4, 2\] f32"),
        ("builtin.module {", {}, "module:1:"),
        ("hir.nonsense", {}, "module:1:13: error"),
        (QUICKSTART.replace("@w :", "@v :"), {"w": W}, "expected a hir.weight @v, there is none"),
        (QUICKSTART.replace("@main", "@other"), {"w": W}, "expected a function @main"),
        (STEPS.replace("head_dim 16", "head_dim 8"), {}, "multiples of 16"),
    ],
)
def test_programs_that_do_not_compile(text: str, weights: dict | None, message: str):
    with pytest.raises(RlxError, match=message):
        rlx.compile(text, weights)


def test_sizes_that_would_leave_a_table_are_refused():
    text = """
    builtin.module attributes {
      rlx.dims = #hir.dim_table<n = 1 to 8, out = 0 to 8, past = 0 to 30>
    } {
      func.func @main(%x: tensor<?x16xf32, #hir.dims<n, _>> {rlx.name = "x"})
          -> (tensor<?x16xf32, #hir.dims<n, _>> {rlx.name = "y"},
              tensor<?x16xf32, #hir.dims<out, _>> {rlx.name = "z"}) {
        %cos, %sin = hir.rope_table base 1.0e+04 : tensor<20x16xf32>, tensor<20x16xf32>
        %y = hir.rope %x, %cos, %sin start "past" head_dim 16
            : tensor<?x16xf32, #hir.dims<n, _>>, tensor<20x16xf32>, tensor<20x16xf32>
        %z = hir.last_rows %x
            : tensor<?x16xf32, #hir.dims<n, _>> -> tensor<?x16xf32, #hir.dims<out, _>>
        func.return %y, %z
            : tensor<?x16xf32, #hir.dims<n, _>>, tensor<?x16xf32, #hir.dims<out, _>>
      }
    }
    """
    f = rlx.compile(text)
    x = np.ones((4, 16), np.float32)
    f(x, dims={"past": 16, "out": 4})
    with pytest.raises(RlxError, match=r"expected past \+ n <= 20 .*got past = 17, n = 4"):
        f(x, dims={"past": 17, "out": 4})
    with pytest.raises(RlxError, match=r"expected out <= n .*got out = 5, n = 4"):
        f(x, dims={"past": 0, "out": 5})


def test_a_program_that_carries_its_token_takes_one_step_a_call():
    text = """
    builtin.module attributes {rlx.dims = #hir.dim_table<one = 1, past = 0 to 9>,
        rlx.carry = {token = "id"}, rlx.advance = {past = "one"}} {
      hir.weight @t "t" : tensor<8x16xf32>
      func.func @main(%token: tensor<1xi32> {rlx.name = "token"},
          %params: tensor<8xi32> {rlx.name = "params"}) -> (tensor<1xi32> {rlx.name = "id"}) {
        %t = hir.load_weight @t : tensor<8x16xf32>
        %e = hir.embedding %token, %t : tensor<1xi32>, tensor<8x16xf32> -> tensor<1x16xf32>
        %l = hir.linear %e, %t : tensor<1x16xf32>, tensor<8x16xf32> -> tensor<1x8xf32>
        %id = hir.sample %l, %params : tensor<1x8xf32>, tensor<8xi32> -> tensor<1xi32>
        func.return %id : tensor<1xi32>
      }
    }
    """
    rng = np.random.default_rng(14)
    table = rng.standard_normal((8, 16)).astype(np.float32)
    params = np.zeros(8, np.int32)
    f = rlx.compile(text, {"t": table})
    for token in range(8):
        given = np.array([token], np.int32)
        (got,) = f(given, params, dims={"past": 0})
        assert got == np.argmax(table @ table[token])
        assert given.tolist() == [token]
        assert not params.any()


def test_a_state_serves_its_role_only():
    keys = "tensor<?x32xf32, #hir.dims<keys, _>>"
    text = f"""
builtin.module attributes {{
  rlx.dims = #hir.dim_table<seq = 1, past = 0 to 8, keys = past + seq>
}} {{
  hir.state @s keys head_dim 16 : tensor<16x32xf32>
  func.func @main(%x: tensor<1x32xf32> {{rlx.name = "x"}})
      -> (tensor<1x32xf32> {{rlx.name = "y"}}) {{
    %k = hir.append %x to @s start "past" : tensor<1x32xf32> -> {keys}
    %a = hir.attention %x, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, {keys}
    func.return %a : tensor<1x32xf32>
  }}
}}
"""
    with pytest.raises(RlxError, match="expected a state of values with head_dim 16, @s is one of"):
        rlx.compile(text)
    wide = text.replace("%k, %k head_dim 16", "%k, %k head_dim 32")
    with pytest.raises(RlxError, match="expected a state of keys with head_dim 32, @s is one of"):
        rlx.compile(wide)
