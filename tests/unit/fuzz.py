"""Random programs of HIR with their weights and inputs, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
from kernels import nmse
from xdsl.dialects.builtin import ModuleOp

from rlx.flow.source import WeightInfo
from rlx.functions import CompiledFunction, build
from rlx.lowering.target import Target
from rlx.passes.pipelines import run_to
from rlx.passes.source import context, parse
from rlx.passes.verify_plan import check_planned
from rlx.reference import Quantized, Reference

Inputs = dict[str, np.ndarray]
Step = tuple[dict[str, int], Inputs]
"""The sizes of the free dimensions, and the inputs by name."""
FORMATS = ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0")
BLOCKED = ("q4_0", "q4_1", "q8_0")
UNARY = ("neg", "silu", "sigmoid", "tanh", "gelu_tanh", "relu", "abs")
BINARY = ("add", "sub", "mul", "max", "min")
CAPACITY = 64
MAX_SEQ = 9
TINY = 1e-15


class Weights:
    """Random weights of any format, as a source for the compiler and for the reference."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._stored: dict[str, Quantized] = {}

    def add(self, key: str, shape: tuple[int, ...], format: str = "f32") -> None:
        """Add a weight of about N(0, 1/sqrt(k)), or near 1 for a vector."""
        x = self._rng.standard_normal(shape).astype(np.float32)
        x = 1 + x / 8 if len(shape) == 1 else x / np.float32(shape[-1] ** 0.5)
        if format == "bf16":
            # To the nearest with few mantissa bits; the rounding does not matter here.
            data = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = gguf.quants.quantize(x, gguf.GGMLQuantizationType[format.upper()])
        self._stored[key] = Quantized(format, data.reshape(-1).view(np.uint8), shape)

    def has(self, key: str) -> bool:
        return key in self._stored

    def info(self, key: str) -> WeightInfo:
        return WeightInfo(self._stored[key].shape, self._stored[key].format)

    def take(self, key: str, transpose: bool = False) -> tuple[np.ndarray, tuple[int, ...]]:
        raise NotImplementedError("compiled programs read the stored bytes")

    def raw(self, key: str) -> np.ndarray:
        return self._stored[key].data

    @property
    def stored(self) -> Mapping[str, Quantized]:
        return self._stored


@dataclass
class Case:
    """A program, its weights, and the steps to run it for."""

    text: str
    weights: Weights
    steps: list[Step]


# Comparison


def parsed(text: str) -> ModuleOp:
    return parse(context(), text.encode(), "case")


def expected(
    module: ModuleOp, weights: Weights, steps: Sequence[Step], dtype: type = np.float64
) -> list[Inputs]:
    """Return what the reference gives for each step, in float64 or in another precision."""
    reference = Reference(module, weights.stored, dtype)
    return [reference.run(inputs, sizes) for sizes, inputs in steps]


def run_steps(function: CompiledFunction, steps: Sequence[Step]) -> list[Inputs]:
    """Run the steps in order; the arrays around inputs and outputs must stay as they are."""
    results: list[Inputs] = []
    names = [io.name for io in function.manifest.outputs]
    for sizes, inputs in steps:
        guarded = {name: Guarded(array) for name, array in inputs.items()}
        seen = {d for io in function.manifest.inputs for d in io.dims}
        dims = {name: size for name, size in sizes.items() if name not in seen}
        bound = function.manifest.bind(sizes)
        out = [
            Guarded(np.full(shape, 77, dtype))
            for shape, dtype in (
                (
                    tuple(bound[d] if isinstance(d, str) else d for d in io.dims),
                    {"f32": np.float32, "i32": np.int32}[io.dtype],
                )
                for io in function.manifest.outputs
            )
        ]
        function(
            dims=dims,
            out=[g.array for g in out],
            **{name: g.array for name, g in guarded.items()},
        )
        for g in (*guarded.values(), *out):
            g.check()
        for name, array in inputs.items():
            np.testing.assert_array_equal(guarded[name].array, array)
        results.append({name: g.array.copy() for name, g in zip(names, out, strict=True)})
    return results


class Guarded:
    """A copy of an array with bytes around it that nothing may write."""

    def __init__(self, array: np.ndarray):
        self._memory = np.full(array.nbytes + 512, 0xA5, np.uint8)
        # Off any vector's alignment, as a caller's array may be.
        self._start = 256 + (4 - self._memory.ctypes.data) % 64
        self._size = array.nbytes
        data = self._memory[self._start : self._start + array.nbytes]
        self.array = data.view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def check(self) -> None:
        assert (self._memory[: self._start] == 0xA5).all(), "written before an array"
        assert (self._memory[self._start + self._size :] == 0xA5).all(), "written behind an array"


def assert_close(
    got: Sequence[Inputs],
    want: Sequence[Inputs],
    limit: float,
    what: str,
    single: Sequence[Inputs] | None = None,
) -> None:
    """
    Check the normalised mean squared error of every output of every step.

    A program may lose digits by its nature (x - tanh x of a small x). `single` is what the
    reference gives in float32: up to a hundred times its error is allowed too. Our functions have
    2 ulp where numpy's have half of one, which is 16 times the squared error, more by chance for a
    single number: seed 724 has 62 times, and 2 ulp of noise in its tanh explain 30 to 200 times.
    """
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.keys() == w.keys()
        for name in w:
            assert g[name].shape == w[name].shape
            if np.abs(w[name]).max(initial=0) < TINY:
                # Products of small values may have been subnormal: f32 has no precision there.
                assert np.abs(g[name]).max(initial=0) < 10 * TINY
                continue
            error = nmse(g[name].astype(np.float64), w[name])
            allowed = limit if single is None else max(limit, 100 * nmse(single[i][name], w[name]))
            assert error <= allowed, f"{what}: step {i}, output {name}: NMSE {error:.2e}"


def check(
    case: Case,
    levels: Sequence[str] = ("host",),
    limit: float = 1e-10,
    threads: Sequence[int] = (1, 2),
) -> None:
    """Compare a case: reference of HIR, of MIR, and the compiled program, whose plan is checked."""
    want = expected(parsed(case.text), case.weights, case.steps)
    single = expected(parsed(case.text), case.weights, case.steps, np.float32)
    mir = parsed(case.text)
    run_to(mir, "mir")
    assert_close(expected(mir, case.weights, case.steps), want, 1e-24, "MIR")
    lir = parsed(case.text)
    run_to(lir, "lir")
    assert check_planned(lir) == []
    for level in levels:
        built = build(case.text, Target.named(level))
        first: list[Inputs] | None = None
        for n in threads:
            got = run_steps(CompiledFunction(built, case.weights, n, poison=True), case.steps)
            assert_close(got, want, limit, f"{level}, {n} threads", single)
            first = first or got
            for a, b in zip(got, first, strict=True):
                for name in a:
                    np.testing.assert_array_equal(a[name], b[name], f"{level}, {n} threads, {name}")


# Generation


@dataclass
class _Layer:
    """A function that repeats can call: types of what it carries and of what it keeps."""

    name: str
    carried: list[int]
    kept: list[int]
    attends: bool
    families: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    used: range = range(0)


@dataclass
class _Body:
    """A function's operations while they are written; values by their width."""

    generator: Generator
    values: list[tuple[str, int]]
    lines: list[str] = field(default_factory=list)
    layer: _Layer | None = None

    def emit(self, text: str, width: int) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values.append((name, width))
        return name

    def pick(self, width: int | None = None) -> tuple[str, int]:
        choices = [v for v in self.values if width is None or v[1] == width]
        # Recent values more often: chains are longer then.
        weights = np.arange(1, len(choices) + 1) ** 2.0
        return choices[self.generator.rng.choice(len(choices), p=weights / weights.sum())]

    def load(self, shape: tuple[int, ...], format: str = "f32") -> tuple[str, str]:
        """Load a new weight; return its name and type."""
        g = self.generator
        element = format if format in ("f32", "f16", "bf16") else f"!hir.q<{format}>"
        type_ = f"tensor<{'x'.join(map(str, shape))}x{element}>"
        symbol = f"w{len(g.declarations)}"
        family = self.layer is not None and g.rng.random() < 0.7
        key = f"{symbol}.{{layer}}" if family else symbol
        g.declarations.append(f'hir.weight @{symbol} "{key}" : {type_}')
        if family:
            assert self.layer is not None
            self.layer.families.append((key, shape, format))
        else:
            g.weights.add(key, shape, format)
        name = f"%l{len(self.lines)}"
        self.lines.append(f"{name} = hir.load_weight @{symbol} : {type_}")
        return name, type_

    def linear(self, source: tuple[str, int], n: int) -> tuple[str, int]:
        g = self.generator
        name, k = source
        w, type_ = self.load((n, k), g.format(k))
        x = g.type(k)
        return self.emit(f"hir.linear {name}, {w} : {x}, {type_} -> {g.type(n)}", n), n

    def step(self) -> None:
        """Write an operation or a few."""
        g = self.generator
        options = [self._unary, self._binary, self._binary, self._linear, self._linear]
        options += [self._norm, self._swiglu]
        if self.layer is not None and self.layer.attends:
            options += [self._attention]
        g.choose(options)()

    def _unary(self) -> None:
        name, width = self.pick()
        kind = self.generator.choose(UNARY)
        self.emit(f"mir.unary {kind} {name} : {self.generator.type(width)}", width)

    def _binary(self) -> None:
        a, width = self.pick()
        b, _ = self.pick(width)
        kind = self.generator.choose(BINARY)
        # Products of products would soon be too large for f32.
        a = self._bounded(a, width) if kind == "mul" else a
        self.emit(f"mir.binary {kind} {a}, {b} : {self.generator.type(width)}", width)

    def _bounded(self, x: str, width: int) -> str:
        return self.emit(f"mir.unary tanh {x} : {self.generator.type(width)}", width)

    def _linear(self) -> None:
        self.linear(self.pick(), self.generator.choose(self.generator.widths))

    def _norm(self) -> None:
        name, width = self.pick()
        weight, type_ = self.load((width,))
        x = self.generator.type(width)
        self.emit(f"hir.rms_norm {name}, {weight} eps 1.0e-05 : {x}, {type_}", width)

    def _swiglu(self) -> None:
        g = self.generator
        (name, k), ffn = self.pick(), g.choose(g.widths)
        (up, up_type), (gate, gate_type) = (self.load((ffn, k), g.format(k)) for _ in range(2))
        down, down_type = self.load((k, ffn), g.format(ffn))
        name = self._bounded(name, k)
        types = ", ".join((g.type(k), up_type, gate_type, down_type))
        self.emit(f"hir.glu {name} up {up} gate {gate} down {down} : {types}", k)

    def _attention(self) -> None:
        g = self.generator
        kv, group = g.choose((1, 2, 3)), g.choose((1, 2, 4))
        head_dim, source = 16, self.pick()
        widths = (kv * group * head_dim, kv * head_dim, kv * head_dim)
        q, k, v = (self.linear(source, n)[0] for n in widths)
        table = f"tensor<{CAPACITY}x16xf32>"
        for name, width in ((q, widths[0]), (k, widths[1])):
            x = g.type(width)
            rotated = self.emit(
                f'hir.rope {name}, %cos, %sin start "past" head_dim {head_dim} : '
                f"{x}, {table}, {table}",
                width,
            )
            q, k = (rotated, k) if name == q else (q, rotated)
        views = []
        for role, name in (("keys", k), ("values", v)):
            symbol = f"s{len(g.declarations)}"
            g.declarations.append(
                f"hir.state @{symbol} {role} head_dim {head_dim} : "
                f"tensor<{CAPACITY}x{widths[1]}xf32>"
            )
            view = f"tensor<?x{widths[1]}xf32, #hir.dims<keys, _>>"
            views.append(f"%s{len(self.lines)}")
            self.lines.append(
                f'{views[-1]} = hir.append {name} to @{symbol} start "past" : '
                f"{g.type(widths[1])} -> {view}"
            )
        a = self.emit(
            f"hir.attention {q}, {views[0]}, {views[1]} head_dim {head_dim} scale 0.25 : "
            f"{g.type(widths[0])}, {view}",
            widths[0],
        )
        self.linear((a, widths[0]), source[1])


class Generator:
    """Writes one random program."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.weights = Weights(self.rng)
        self.declarations: list[str] = []
        self.functions: list[str] = []
        self.layers: list[_Layer] = []
        self.rows: int | str = self.choose((1, 1, 2, 7, "seq", "seq"))
        self.attends = self.rng.random() < 0.5
        self.widths = [int(w) for w in self.rng.choice((1, 8, 16, 17, 32, 48, 96), 2, False)]

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.rng.integers(len(options))]

    def format(self, k: int) -> str:
        return self.choose(FORMATS if k % 32 == 0 else ("f32", "f16", "bf16"))

    def type(self, width: int) -> str:
        if isinstance(self.rows, int):
            return f"tensor<{self.rows}x{width}xf32>"
        return f"tensor<?x{width}xf32, #hir.dims<{self.rows}, _>>"

    def case(self) -> Case:
        for _ in range(self.choose((0, 1, 1, 2))):
            self._layer()
        text = self._main()
        for layer in self.layers:
            for key, shape, format in layer.families:
                for i in layer.used:
                    self.weights.add(key.replace("{layer}", str(i)), shape, format)
        return Case(text, self.weights, self._steps())

    def _layer(self) -> None:
        carried = [self.choose(self.widths) for _ in range(self.choose((1, 1, 2, 3)))]
        kept = [self.choose(self.widths) for _ in range(self.choose((0, 0, 1)))]
        layer = _Layer(f"layer{len(self.layers)}", carried, kept, self.attends)
        args = [(f"%a{i}", w) for i, w in enumerate((*carried, *kept))]
        body = _Body(self, list(args), layer=layer)
        for _ in range(self.rng.integers(0, 6)):
            body.step()
        # Any value of the right width may be handed on: an argument, another's, one twice.
        results = [body.pick(width)[0] for width in carried]
        params = [f"{name}: {self.type(width)}" for name, width in args]
        params += self._tables() if self.attends else []
        types = ", ".join(self.type(w) for w in carried)
        self.functions += [
            f"func.func private @{layer.name}({', '.join(params)}) -> ({types}) {{",
            *(f"  {line}" for line in body.lines),
            f"  func.return {', '.join(results)} : {types}",
            "}",
        ]
        self.layers.append(layer)

    def _tables(self) -> list[str]:
        return [f"%{name}: tensor<{CAPACITY}x16xf32>" for name in ("cos", "sin")]

    def _main(self) -> str:
        inputs = [(f"%x{i}", w) for i, w in enumerate(self.widths)]
        body = _Body(self, list(inputs))
        table = f"tensor<{CAPACITY}x16xf32>"
        if self.attends:
            body.lines.append(f"%cos, %sin = hir.rope_table base 1.0e+04 : {table}, {table}")
        for _ in range(self.rng.integers(1, 5)):
            body.step()
        for layer in self.layers * self.choose((1, 1, 2)):
            self._call(body, layer)
            for _ in range(self.rng.integers(0, 3)):
                body.step()
        outputs = [(*body.values[-1], self.type(body.values[-1][1]))]
        for _ in range(self.choose((0, 1, 2))):
            name, width = body.pick()
            outputs.append((name, width, self.type(width)))
        if self.attends and self.rng.random() < 0.2:
            outputs.append(("%cos", 16, table))
        params = [f'{n}: {self.type(w)} {{rlx.name = "{n[1:]}"}}' for n, w in inputs]
        results = [f'{t} {{rlx.name = "y{i}"}}' for i, (_, _, t) in enumerate(outputs)]
        lines = [
            f"builtin.module attributes {{rlx.dims = #hir.dim_table<{self._dims()}>}} {{",
            *(f"  {line}" for line in (*self.declarations, *self.functions)),
            f"  func.func @main({', '.join(params)}) -> ({', '.join(results)}) {{",
            *(f"    {line}" for line in body.lines),
            f"    func.return {', '.join(o[0] for o in outputs)} : "
            f"{', '.join(o[2] for o in outputs)}",
            "  }",
            "}",
        ]
        return "\n".join(lines)

    def _call(self, body: _Body, layer: _Layer) -> None:
        first = int(self.rng.integers(0, 3))
        last = first + int(self.rng.integers(1, 4))
        used = layer.used or range(first, last)
        layer.used = range(min(used.start, first), max(used.stop, last))
        widths = (*layer.carried, *layer.kept)
        names = [body.pick(width)[0] for width in widths]
        names += ["%cos", "%sin"] if self.attends else []
        types = [self.type(w) for w in widths]
        types += [f"tensor<{CAPACITY}x16xf32>"] * (2 if self.attends else 0)
        results = ", ".join(self.type(w) for w in layer.carried)
        fresh = [f"%r{len(body.lines)}_{i}" for i in range(len(layer.carried))]
        body.lines.append(
            f"{', '.join(fresh)} = hir.repeat @{layer.name}({', '.join(names)}) "
            f"layers {first} to {last} : ({', '.join(types)}) -> ({results})"
        )
        body.values += zip(fresh, layer.carried, strict=True)

    def _dims(self) -> str:
        seq = f"1 to {MAX_SEQ}" if self.rows == "seq" else self.rows
        past = f", past = 0 to {CAPACITY - MAX_SEQ}, keys = past + seq"
        return f"seq = {seq}" + (past if self.attends else "")

    def _steps(self) -> list[Step]:
        past, steps = 0, []
        for _ in range(3):
            seq = int(self.rng.integers(1, MAX_SEQ + 1)) if self.rows == "seq" else int(self.rows)
            sizes = ({"seq": seq} if self.rows == "seq" else {}) | (
                {"past": past} if self.attends else {}
            )
            inputs = {
                f"x{i}": self.rng.standard_normal((seq, w)).astype(np.float32)
                for i, w in enumerate(self.widths)
            }
            steps.append((sizes, inputs))
            past += seq
        return steps


def random_case(seed: int) -> Case:
    """Return a program that depends on the seed alone."""
    return Generator(seed).case()
