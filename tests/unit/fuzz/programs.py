"""Writes random programs of HIR: functions that repeats call, a @main, its weights and inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz import flow
from fuzz.makers import MAKERS
from fuzz.named import CAPACITY, NAMED, TABLE, VOCABULARY
from fuzz.values import EXACT, MAX_SEQ, SINGLE, Body, Layer, Type, Value
from fuzz.weights import PLAIN, Weights, formats_of

Inputs = dict[str, np.ndarray]
Step = tuple[dict[str, int], Inputs]
"""The sizes of the free dimensions, and the inputs by name."""

DTYPES: dict[str, np.dtype] = {
    **{e: np.dtype(d) for e, d in {"f32": "f4", "f64": "f8", "f16": "f2"}.items()},
    **{f"i{8 * n}": np.dtype(f"i{n}") for n in (1, 2, 4, 8)},
    **{f"ui{8 * n}": np.dtype(f"u{n}") for n in (1, 4)},
    "i1": np.dtype(bool),
}
"""Arrays at the boundary of a program, by the type of their elements."""
DERIVED = {
    "twice": ("seq", "+", "seq"),
    "area": ("seq", "*", "seq"),
    "both": ("seq", "+", "m"),
    "more": ("m", "+", "c2"),
}
STEPS, MAX_LEAVES = 3, 8


@dataclass
class Case:
    """A program, its weights, and the steps to run it for."""

    text: str
    weights: Weights
    steps: list[Step]
    noise: Mapping[str, int] | None = None
    """How exact each output is; without it all are rounded as f32."""


class Generator:
    """Writes one random program that depends on the seed alone, of some makers or of all."""

    def __init__(self, seed: int, makers: Sequence[str] = ()):
        self.rng = np.random.default_rng(seed)
        self.weights = Weights(self.rng)
        self.declarations: list[str] = []
        self.functions: list[str] = []
        self.layers: list[Layer] = []
        self.makers = [MAKERS[name] for name in makers or MAKERS]
        self.shares = np.array([m.weight for m in self.makers], float)
        self.shares /= self.shares.sum()
        self.named_only = bool(makers)
        self.rows: int | str = self.choose((1, 1, 2, 7, "seq", "seq"))
        self.attends = self.rng.random() < (0.5 if makers else 0.3)
        self.widths = [int(w) for w in self.rng.choice((1, 8, 16, 17, 32, 48, 96, 256), 2, False)]
        self._names = 0

    # What makers ask for

    def fresh(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.rng.integers(len(options))]

    def format(self, k: int) -> str:
        return self.choose(formats_of(k))

    def dim(self) -> int | str:
        """Return a dimension for a new axis."""
        return self.choose((2, 3, 4, 5, self.rows, "m", self.choose(list(DERIVED))))

    def upper(self, dim: int | str) -> int:
        known = {"seq": MAX_SEQ, "m": 5, "keys": CAPACITY, "twice": 18, "area": 81, "both": 14}
        known |= {"more": 7}
        return dim if isinstance(dim, int) else known[dim]

    def may_be_empty(self, dim: int | str) -> bool:
        return dim in (0, "m")

    def product(self, a: int | str, b: int | str) -> int | str | None:
        """Return the dimension that is a product of two, None where there isn't one."""
        return self._derived(a, "*", b)

    def sum(self, a: int | str, b: int | str) -> int | str | None:
        return self._derived(a, "+", b)

    def _derived(self, a: int | str, operator: str, b: int | str) -> int | str | None:
        if isinstance(a, int) and isinstance(b, int):
            return a * b if operator == "*" else a + b
        named = [n for n, d in DERIVED.items() if d in ((a, operator, b), (b, operator, a))]
        return named[0] if named else None

    def factors(self, dim: int | str) -> list[tuple[str, str]]:
        """Return the pairs of dimensions whose product a dimension with a name is."""
        return [(a, b) for n, (a, o, b) in DERIVED.items() if n == dim and o == "*"]

    def load(self, b: Body, shape: tuple[int, ...], format: str, noise: int) -> Value:
        """Load a new weight; inside a layer mostly the layer's own."""
        type_ = Type(shape, format if format in PLAIN else f"!hir.q<{format}>")
        symbol = f"w{len(self.declarations)}"
        family = b.layer is not None and self.rng.random() < 0.7
        key = f"{symbol}.{{layer}}" if family else symbol
        self.declarations.append(f'hir.weight @{symbol} "{key}" : {type_}')
        if b.layer is not None and family:
            b.layer.families.append((key, shape, format))
        else:
            self.weights.add(key, shape, format)
        value = Value(self.fresh(), type_, noise)
        b.lines.append(f"{value} = hir.load_weight @{symbol} : {type_}")
        if noise == EXACT:
            b.values.append(value)
        return value

    def step(self, b: Body) -> None:
        """Write an operation or a few, by the first maker drawn that has an operand."""
        for _ in range(9):
            maker = self.makers[self.rng.choice(len(self.makers), p=self.shares)]
            before = len(b.lines)
            operand = b.pick(maker.fits) if maker.fits else None
            if maker.fits is None:
                maker.write(b)
            elif operand is not None:
                maker.write(b, operand)
            if len(b.lines) > before:
                return

    # The parts of a program

    def case(self) -> Case:
        for _ in range(self.choose((0, 1, 1, 2) if self.named_only else (0, 0, 1, 1, 2))):
            self._layer()
        text, noise = self._main()
        for layer in self.layers:
            for key, shape, format in layer.families:
                for i in layer.used:
                    self.weights.add(key.replace("{layer}", str(i)), shape, format)
        return Case(text, self.weights, self._steps(), noise)

    @property
    def inputs(self) -> dict[str, Type]:
        given = {f"x{i}": Type((self.rows, w)) for i, w in enumerate(self.widths)}
        if self.named_only:
            return given
        return given | {
            "k": Type((), "i32"),
            "ids": Type((self.rows,), "i32"),
            "d": Type((self.rows, 3), "f64"),
            "n": Type(("m", 4), "i64"),
            "h": Type((2, 3), "f16"),
            "t": Type((self.rows,), "i1"),
            "b": Type((5, 3), "ui8"),
        }

    def _layer(self) -> None:
        types = [Type((self.rows, w)) for w in self.widths]
        extra = [] if self.named_only else [Type((), "i32"), Type((self.rows, 3), "f64")]
        carried = [self.choose([*types, *extra]) for _ in range(self.choose((1, 1, 2, 3)))]
        kept = [self.choose([*types, *extra]) for _ in range(self.choose((0, 0, 1)))]
        layer = Layer(f"layer{len(self.layers)}", carried, kept, self.attends)
        args = [
            Value(self.fresh(), t, EXACT if t.element == "i32" else SINGLE)
            for t in (*carried, *kept)
        ]
        body = Body(self, list(args), layer=layer)
        for _ in range(self.rng.integers(0, 6 if self.named_only else 9)):
            self.step(body)
        # Any value of the right type may be handed on: an argument, another's, one twice.
        results = (
            flow.handed_on(body, carried)
            if not self.named_only
            else [body.pick(lambda v, t=t: v.type == t) for t in carried]
        )
        params = [f"{v}: {v.type}" for v in args]
        params += [f"%{name}: {TABLE}" for name in ("cos", "sin")] if self.attends else []
        spelled = ", ".join(map(str, carried))
        self.functions += [
            f"func.func private @{layer.name}({', '.join(params)}) -> ({spelled}) {{",
            *body.lines,
            f"func.return {', '.join(map(str, results))} : {spelled}",
            "}",
        ]
        self.layers.append(layer)

    def _main(self) -> tuple[str, dict[str, int]]:
        inputs = self.inputs
        body = Body(self, [Value(f"%{name}", t, EXACT) for name, t in inputs.items()])
        if self.attends:
            body.lines.append(f"%cos, %sin = hir.rope_table base 1.0e+04 : {TABLE}, {TABLE}")
        for _ in range(self.rng.integers(*((1, 5) if self.named_only else (3, 12)))):
            self.step(body)
        for layer in self.layers * self.choose((1, 1, 2)):
            self._call(body, layer)
            for _ in range(self.rng.integers(0, 3)):
                self.step(body)
        outputs = self._outputs(body)
        if self.attends and self.rng.random() < 0.2:
            outputs.append(Value("%cos", TABLE, SINGLE))
        params = [f'%{n}: {t} {{rlx.name = "{n}"}}' for n, t in inputs.items()]
        results = [f'{v.type} {{rlx.name = "y{i}"}}' for i, v in enumerate(outputs)]
        lines = [
            f"builtin.module attributes {{rlx.dims = #hir.dim_table<{self._dims()}>}} {{",
            *self.declarations,
            *self.functions,
            f"func.func @main({', '.join(params)}) -> ({', '.join(results)}) {{",
            *body.lines,
            f"func.return {', '.join(map(str, outputs))} : "
            f"{', '.join(str(v.type) for v in outputs)}",
            "}",
            "}",
        ]
        return "\n".join(lines), {f"y{i}": v.noise for i, v in enumerate(outputs)}

    def _outputs(self, body: Body) -> list[Value]:
        """Return what @main returns: the last value, most of those left unused, and others."""
        used = Counter(re.findall(r"%\w+", "\n".join(body.lines)))
        leaves = [
            v
            for v in body.values[len(self.inputs) : -1]
            if used[v.name] < 2 and self.rng.random() < 0.7
        ]
        others = [body.pick() for _ in range(self.choose((0, 1, 2)))]
        given = [body.values[-1], *leaves[:MAX_LEAVES], *(v for v in others if v is not None)]
        # A caller's arrays can't hold bf16.
        return [body.cast(v, "f32", v.noise) if v.element == "bf16" else v for v in given]

    def _call(self, body: Body, layer: Layer) -> None:
        first = int(self.rng.integers(0, 3))
        last = first + int(self.rng.integers(1, 4))
        used = layer.used or range(first, last)
        layer.used = range(min(used.start, first), max(used.stop, last))
        types = [*layer.carried, *layer.kept]
        names = [str(body.pick(lambda v, t=t: v.type == t)) for t in types]
        names += ["%cos", "%sin"] if self.attends else []
        types += [TABLE] * (2 if self.attends else 0)
        results = [
            Value(self.fresh(), t, EXACT if t.element == "i32" else SINGLE) for t in layer.carried
        ]
        body.lines.append(
            f"{', '.join(map(str, results))} = hir.repeat @{layer.name}({', '.join(names)}) layers "
            f"{first} to {last} : ({', '.join(map(str, types))}) -> "
            f"({', '.join(map(str, layer.carried))})"
        )
        body.values += results

    # Sizes and inputs

    def _dims(self) -> str:
        # What has state has a bound; other programs run as well without.
        unbounded = not self.attends and self.rng.random() < 0.3
        seq_top, m_top = ("any", "any") if unbounded else (MAX_SEQ, 5)
        seq = f"seq = 1 to {seq_top}" if self.rows == "seq" else f"seq = {self.rows}"
        dims = [seq] if self.named_only else [seq, f"m = 0 to {m_top}", "c2 = 2"]
        if not self.named_only:
            dims += [f"{n} = {a} {o} {b}" for n, (a, o, b) in DERIVED.items()]
        if self.attends:
            dims += [f"past = 0 to {CAPACITY - MAX_SEQ}", "keys = past + seq"]
        return ", ".join(dims)

    def _steps(self) -> list[Step]:
        past, steps = 0, []
        for _ in range(STEPS):
            seq = int(self.rng.integers(1, MAX_SEQ + 1)) if self.rows == "seq" else int(self.rows)
            sizes = {"seq": seq} if self.rows == "seq" else {}
            if not self.named_only:
                sizes["m"] = int(self.rng.integers(0, 6))
            if self.attends:
                sizes["past"] = past
            shapes = {
                name: tuple(sizes.get(d, seq) if isinstance(d, str) else d for d in t.dims)
                for name, t in self.inputs.items()
            }
            inputs = {n: self._input(n, t.element, shapes[n]) for n, t in self.inputs.items()}
            steps.append((sizes, inputs))
            past += seq
        return steps

    def _input(self, name: str, element: str, shape: tuple[int, ...]) -> np.ndarray:
        if name == "ids":
            return self.rng.integers(0, VOCABULARY, shape).astype(np.int32)
        if element == "i1":
            return np.asarray(self.rng.random(shape) < 0.5)
        if element == "ui8":
            return self.rng.integers(0, 256, shape, np.uint8)
        if element in ("i32", "i64"):
            return np.asarray(self.rng.integers(-9, 10, shape)).astype(DTYPES[element])
        return np.asarray(self.rng.standard_normal(shape)).astype(DTYPES[element])


def random_case(seed: int) -> Case:
    """Return a program of named operations on matrices, as language models have them."""
    return Generator(seed, NAMED).case()


def random_program(seed: int) -> Case:
    """Return a program of everything that HIR holds."""
    return Generator(seed).case()
