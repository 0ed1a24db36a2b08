"""Random programs of tensor primitives, branches, loops and a layer, and their special inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    f16,
    f32,
    f64,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import mir
from rlx.dialects.common import DIMS, DimDef, DimTableAttr, dims_of, element_of, tensor
from rlx.dialects.infer import U8
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind

B, R, U = BinaryKind, ReduceKind, UnaryKind
SHAPES = [(), (4,), (1, 4), (4, 4), ("seq", 4), (4, "seq"), (2, "seq", 4), (6, 4), (1, 1)]
ARITHMETIC = (f32, f64, i8, i32, i64, U8)
INPUTS = {
    "x": tensor(["seq", 4]),
    "y": tensor([4, 4]),
    "z": tensor(["seq", 4], f64),
    "i": tensor(["seq", 4], i32),
    "j": tensor([4], i64),
    "k": tensor([4, 4], i8),
    "b": tensor(["seq", 4], i1),
    "h": tensor([2, "seq", 4], f16),
    "s": tensor([]),
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3.5, 200.0]
EXACT = (U.NEG, U.ABS, U.SIGN, U.FLOOR, U.CEIL, U.ROUND, U.SQRT, U.RELU)
SMOOTH = (U.TANH, U.SILU, U.GELU, U.SOFTPLUS, U.SIGMOID, U.ELU, U.HARD_SWISH, U.SOFTSIGN)
FLOATS, BOOLS = (f32, f64), (B.AND, B.OR, B.XOR)
EXACT_BINARY = (B.ADD, B.ADD, B.SUB, B.SUB, B.MUL, B.MUL, B.DIV, B.MAX, B.MIN)
INTEGER_BINARY = (*EXACT_BINARY, *BOOLS, B.MOD, B.MOD, B.SHL, B.SHR)
NUMBERS = (0, 1, -1, 2, 4, 0.5, -0.0)


def inputs(seed: int, seq: int, special: bool) -> dict[str, np.ndarray]:
    """Values of every input, drawn from the special ones or from N(0, 1)."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, type_ in INPUTS.items():
        shape = [seq if d == "seq" else d for d in dims_of(type_)]
        element = element_of(type_)
        if element == i1:
            found[name] = rng.random(shape) < 0.5
        elif isinstance(element, IntegerType):
            found[name] = rng.integers(-8, 9, shape).astype(f"int{element.width.data}")
        else:
            drawn = rng.choice(SPECIAL, shape) if special else rng.standard_normal(shape)
            with np.errstate(all="ignore"):
                found[name] = np.asarray(drawn).astype(np.float64 if element == f64 else np.float32)
    return found


class Program:
    """
    A random program whose operations often undo, repeat or ignore one another.

    An `exact` one has only what numpy rounds in one way, however its arrays lie in memory.
    """

    def __init__(self, seed: int, exact: bool = True, steps: int = 30):
        self.rng = np.random.default_rng(seed)
        self.exact = exact
        self.block = Block()
        self.values: list[SSAValue] = []

        layer = Block(arg_types=[INPUTS["x"], INPUTS["y"]])
        self.inside(layer, list(layer.args), steps // 2, 1, lambda: self.end_layer(layer))

        self.block = main = Block(arg_types=list(INPUTS.values()))
        self.values = list(main.args)
        for _ in range(steps):
            self.step(2)
        x, y = self.of_type(INPUTS["x"]), self.of_type(INPUTS["y"])
        call = mir.RepeatOp("layer", 0, 2, [x, y], 1)
        self.add(call)
        for _ in range(steps // 2):
            self.step(1)
        count = min(6, len(self.values))
        results = [self.values[-1], *self.rng.choice(self.values[:-1], count - 1, replace=False)]
        main.add_op(ReturnOp(*results, call.res[0]))
        types = [*(v.type for v in results), call.res[0].type]
        named = [DictionaryAttr({"rlx.name": StringAttr(n)}) for n in INPUTS]
        outs = [DictionaryAttr({"rlx.name": StringAttr(f"r{i}")}) for i in range(len(types))]
        self.module = ModuleOp(
            [
                FuncOp(
                    "layer",
                    ([INPUTS["x"], INPUTS["y"]], [INPUTS["x"]]),
                    Region(layer),
                    visibility="private",
                ),
                FuncOp(
                    "main",
                    (list(INPUTS.values()), types),
                    Region(main),
                    arg_attrs=ArrayAttr(named),
                    res_attrs=ArrayAttr(outs),
                ),
            ],
            {DIMS: DimTableAttr.of([DimDef("seq", 1, 8)])},
        )

    # Building

    def inside(
        self,
        block: Block,
        values: list[SSAValue],
        steps: int,
        depth: int,
        end: Callable[[], None],
    ) -> None:
        """Write operations in a block, which sees `values`; `end` writes its terminator."""
        around = self.block, self.values
        self.block, self.values = block, values
        for _ in range(steps):
            self.step(depth)
        end()
        self.block, self.values = around

    def end_layer(self, block: Block) -> None:
        block.add_op(ReturnOp(self.of_type(INPUTS["x"])))

    def add(self, op: Operation) -> None:
        self.block.add_op(op)
        self.values += [r for r in op.results]

    def recent(self) -> SSAValue:
        late = self.values[-4:] if self.rng.random() < 0.6 else self.values
        return late[self.rng.integers(len(late))]

    def where(self, fits: Callable[[Attribute], bool]) -> SSAValue | None:
        found = [v for v in self.values if fits(v.type)]
        late = found[-3:] if self.rng.random() < 0.6 else found
        return late[self.rng.integers(len(late))] if found else None

    def of_type(self, type_: Attribute) -> SSAValue:
        found = self.where(lambda t: t == type_)
        return found if found is not None else self.filled(type_)

    def filled(self, type_: Attribute) -> SSAValue:
        """A tensor of one number: a constant, or a scalar that is broadcast."""
        element = element_of(type_)
        number = self.rng.choice(NUMBERS)
        whole = isinstance(element, IntegerType)
        number = int(abs(number) > 0) if element == i1 else int(number) if whole else float(number)
        number = abs(number) if element == U8 else number
        dims = dims_of(type_)
        named = any(isinstance(d, str) for d in dims)
        scalar = named or self.rng.random() < 0.5
        held = tensor([], element) if scalar else type_
        self.add(mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(held, [number])))
        if scalar and dims:
            self.add(mir.BroadcastOp(self.values[-1], type_))
        return self.values[-1]

    def step(self, depth: int) -> None:
        kinds = [self.unary, self.binary, self.binary, self.compare, self.select, self.cast]
        kinds += [self.move, self.move, self.slice, self.concat, self.gather, self.reduce]
        kinds += [self.pad, self.window, self.reverse]
        kinds += [self.constant, self.iota, self.chain, self.chain, self.chain]
        if depth > 0:
            kinds += [lambda: self.branch(depth), lambda: self.loop(depth)]
        if not self.exact:
            kinds += [self.dot, self.dot, self.composite]
        try:
            kinds[self.rng.integers(len(kinds))]()
        except VerifyException:
            pass  # shapes that do not fit: nothing is added

    # Operations

    def unary(self) -> None:
        x = self.recent()
        element = element_of(x.type)
        kinds = (U.NEG, U.ABS, U.SIGN, U.NOT)
        if element in FLOATS:
            kinds = EXACT if self.exact else (*EXACT, *SMOOTH)
        kind = U.NOT if element == i1 else kinds[self.rng.integers(len(kinds))]
        if element == f16:
            return
        again = x.owner.kind.data if isinstance(x.owner, mir.UnaryOp) else kind
        self.add(mir.UnaryOp(again if self.rng.random() < 0.5 else kind, x))

    def binary(self) -> None:
        x = self.recent()
        element = element_of(x.type)
        if element == f16:
            return
        kinds = BOOLS if element == i1 else EXACT_BINARY if element in FLOATS else INTEGER_BINARY
        pick = self.rng.random()
        y = x if pick < 0.15 else self.filled(x.type) if pick < 0.6 else self.of_type(x.type)
        sides = (x, y) if self.rng.random() < 0.8 else (y, x)
        self.add(mir.BinaryOp(kinds[self.rng.integers(len(kinds))], *sides))

    def compare(self) -> None:
        x = self.recent()
        if element_of(x.type) != f16:
            y = x if self.rng.random() < 0.3 else self.of_type(x.type)
            self.add(mir.CompareOp(list(CompareKind)[self.rng.integers(6)], x, y))

    def select(self) -> None:
        x = self.recent()
        condition = self.of_type(tensor(dims_of(x.type), i1))
        self.add(mir.SelectOp(condition, x, self.of_type(x.type)))

    def cast(self) -> None:
        x = self.recent()
        elements = (*ARITHMETIC, i1, f16)
        self.add(mir.CastOp(x, elements[self.rng.integers(len(elements))]))

    def move(self) -> None:
        x = self.recent()
        dims, element = dims_of(x.type), element_of(x.type)
        pick = self.rng.random()
        if pick < 0.4:
            self.add(mir.TransposeOp(x, self.rng.permutation(len(dims)).tolist()))
            return
        shapes = [
            (1, *dims),
            tuple(d for d in dims if d != 1),
            dims[:-1] if dims[-1:] == (1,) else dims,
        ]
        shapes += [(2, 2, *dims[1:])] if dims[:1] == (4,) else []
        shapes += [(4, *dims[2:])] if dims[:2] == (2, 2) else []
        if pick < 0.75:
            self.checked(mir.ReshapeOp(x, tensor(shapes[self.rng.integers(len(shapes))], element)))
        else:
            wide = [s for s in (*SHAPES, (3, *dims)) if len(s) >= len(dims)]
            self.checked(mir.BroadcastOp(x, tensor(wide[self.rng.integers(len(wide))], element)))

    def checked(self, op: Operation) -> None:
        try:
            op.verify_()
        except VerifyException:
            op.erase()
            raise
        self.add(op)

    def slice(self) -> None:
        x = self.recent()
        dims = list(dims_of(x.type))
        starts, steps = [0] * len(dims), [1] * len(dims)
        for axis, size in enumerate(dims):
            if isinstance(size, int) and size > 1 and self.rng.random() < 0.6:
                starts[axis] = int(self.rng.integers(size - 1))
                steps[axis] = int(self.rng.integers(1, 3))
                most = (size - 1 - starts[axis]) // steps[axis] + 1
                dims[axis] = int(self.rng.integers(1, most + 1))
        self.checked(mir.SliceOp(x, starts, tensor(dims, element_of(x.type)), steps))

    def pad(self) -> None:
        """A pad, often of a pad, and of the same number."""
        x = self.recent()
        dims = dims_of(x.type)
        inner = x.owner if isinstance(x.owner, mir.PadOp) else None
        fill = inner.fill if inner and self.rng.random() < 0.7 else None
        fill = self.filled(tensor([], element_of(x.type))) if fill is None else fill
        counts = [
            [int(self.rng.integers(3)) if isinstance(d, int) and d < 8 else 0 for d in dims]
            for _ in range(3)
        ]
        if self.rng.random() < 0.5:
            counts[2] = [0] * len(dims)
        self.checked(mir.PadOp(x, fill, *counts))

    def window(self) -> None:
        x = self.recent()
        numbers = [(a, d) for a, d in enumerate(dims_of(x.type)) if isinstance(d, int) and d]
        if not numbers or len(dims_of(x.type)) > 3:
            return
        axis, n = numbers[self.rng.integers(len(numbers))]
        size = int(self.rng.integers(1, n + 1))
        stride = size if self.rng.random() < 0.6 else int(self.rng.integers(1, 3))
        self.add(mir.WindowOp(x, axis, size, stride))

    def reverse(self) -> None:
        x = self.recent()
        axes = [a for a in range(len(dims_of(x.type))) if self.rng.random() < 0.6]
        self.add(mir.ReverseOp(x, axes))

    def concat(self) -> None:
        x = self.recent()
        dims = list(dims_of(x.type))
        axes = [a for a, d in enumerate(dims) if isinstance(d, int)]
        if not axes:
            return
        axis = axes[self.rng.integers(len(axes))]
        size, element = dims[axis], element_of(x.type)
        if size >= 2 and self.rng.random() < 0.5:
            cut = int(self.rng.integers(1, size))
            parts: list[SSAValue] = []
            for start, length in ((0, cut), (cut, size - cut)):
                starts = [start if a == axis else 0 for a in range(len(dims))]
                some = [length if a == axis else d for a, d in enumerate(dims)]
                self.add(mir.SliceOp(x, starts, tensor(some, element)))
                parts.append(self.values[-1])
        else:
            parts = [x, self.of_type(x.type)][: self.rng.integers(1, 3)]
        dims[axis] = sum(dims_of(p.type)[axis] for p in parts)
        if dims[axis] <= 16:
            self.checked(mir.ConcatOp(axis, parts, tensor(dims, element)))

    def gather(self) -> None:
        x = self.recent()
        dims = dims_of(x.type)
        if not dims or len(dims) > 3:
            return
        axis = int(self.rng.integers(len(dims)))
        pick = self.rng.random()
        if pick < 0.4:
            self.add(mir.IotaOp(0, tensor([dims[axis]], i32)))
        elif pick < 0.7:
            ids = [[0, 1], [1, 3], [2], [3, 1], [0, 0]][self.rng.integers(5)]
            self.add(
                mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(tensor([len(ids)], i64), ids))
            )
        else:
            self.add(mir.CastOp(self.of_type(INPUTS["j"]), i32))
        self.add(mir.GatherOp(x, self.values[-1], axis))

    def reduce(self) -> None:
        x = self.recent()
        element, rank = element_of(x.type), len(dims_of(x.type))
        if element == f16:
            return
        kinds = [R.MAX, R.MIN]
        if element != i1 and not (element in FLOATS and self.exact):
            kinds += [R.SUM, R.PROD]
        axes = [a for a in range(rank) if self.rng.random() < 0.5]
        self.add(mir.ReduceOp(kinds[self.rng.integers(len(kinds))], x, axes))

    def constant(self) -> None:
        static = [s for s in SHAPES if all(isinstance(d, int) for d in s)]
        shape = static[self.rng.integers(len(static))]
        element = (*ARITHMETIC, i1)[self.rng.integers(len(ARITHMETIC) + 1)]
        count = int(np.prod(shape))
        if element == i1:
            values = self.rng.integers(0, 2, count).tolist()
        elif isinstance(element, IntegerType):
            values = self.rng.integers(0 if element == U8 else -9, 10, count).tolist()
        else:
            values = (self.rng.integers(-9, 10, count) / 4).tolist()
        self.add(mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(tensor(shape, element), values)))

    def iota(self) -> None:
        shape = SHAPES[1:][self.rng.integers(len(SHAPES) - 1)]
        axis = int(self.rng.integers(len(shape)))
        self.add(mir.IotaOp(axis, tensor(shape, ARITHMETIC[self.rng.integers(len(ARITHMETIC))])))

    def chain(self) -> None:
        """Operations that only the next one uses."""
        x = self.where(lambda t: element_of(t) in ARITHMETIC and len(dims_of(t)) == 2)
        if x is None:
            return
        dims, element = dims_of(x.type), element_of(x.type)
        y = self.of_type(x.type)
        pick = self.rng.integers(6)
        new: list[Operation] = []
        if pick == 0:
            new.append(mir.UnaryOp(U.NEG, x))
            new.append(mir.BinaryOp(B.ADD, y, new[-1].results[0]))
        elif pick == 1:
            new.append(mir.CompareOp(list(CompareKind)[self.rng.integers(6)], x, y))
            new.append(mir.UnaryOp(U.NOT, new[-1].results[0]))
        elif pick == 2:
            kind = R.MAX if element in FLOATS and self.exact else R.SUM
            for axis in self.rng.permutation(2)[:2]:
                value = new[-1].results[0] if new else x
                new.append(mir.ReduceOp(kind, value, [int(axis) if not new else 0]))
        elif pick == 3:
            new += [mir.TransposeOp(v, [1, 0]) for v in (x, y)]
            new.append(mir.BinaryOp(B.SUB, new[0].results[0], new[1].results[0]))
            new.append(mir.UnaryOp(U.ABS, new[-1].results[0]))
            new.append(mir.TransposeOp(new[-1].results[0], [1, 0]))
        elif pick == 4:
            wide = tensor([3, *dims], element)
            new += [mir.BroadcastOp(v, wide) for v in (x, y)]
            new.append(mir.BinaryOp(B.MAX, new[0].results[0], new[1].results[0]))
        elif isinstance(dims[1], int) and dims[1] <= 4:
            twice = tensor([dims[0], 2 * dims[1]], element)
            thrice = tensor([dims[0], 3 * dims[1]], element)
            new.append(mir.ConcatOp(1, [x, y], twice))
            new.append(mir.ConcatOp(1, [new[0].results[0], x], thrice))
        for op in new:
            self.block.add_op(op)
        self.values += [r for op in new[-1:] for r in op.results]

    def dot(self) -> None:
        x = self.where(lambda t: element_of(t) in FLOATS and len(dims_of(t)) >= 2)
        if x is None:
            return
        y = self.where(lambda t: element_of(t) == element_of(x.type) and len(dims_of(t)) >= 2)
        if y is not None:
            flags = self.rng.random(2) < 0.5
            self.add(mir.DotOp(x, y, bool(flags[0]), bool(flags[1])))
            if self.rng.random() < 0.4:
                rank = len(dims_of(self.values[-1].type))
                order = [*range(rank - 2), rank - 1, rank - 2]
                self.add(mir.TransposeOp(self.values[-1], order))

    def composite(self) -> None:
        x = self.of_type(INPUTS["x"])
        vectors = [self.of_type(tensor([4])) for _ in range(2)]
        pick = self.rng.integers(4)
        if pick == 0:
            self.add(mir.SoftmaxOp(x))
        elif pick == 1:
            self.add(mir.LayerNormOp(x, *vectors, 1e-5))
        elif pick == 2:
            self.add(mir.RmsNormOp(x, vectors[0], 1e-5))
        else:
            heads = mir.ReshapeOp(x, tensor(["seq", 2, 2]))
            turned = mir.TransposeOp(heads.result, [1, 0, 2])
            mask = self.of_type(tensor(["seq", "seq"])) if self.rng.random() < 0.3 else None
            one = mir.SliceOp(turned.result, [0, 0, 0], tensor([1, "seq", 2]))
            for op in (heads, turned, one):
                self.add(op)
            causal = bool(self.rng.random() < 0.5)
            keys = one if self.rng.random() < 0.5 else turned
            self.add(mir.SdpaOp(turned.result, keys.result, keys.result, 0.7, mask, causal))

    # Control flow

    def branch(self, depth: int) -> None:
        condition = self.of_type(tensor([], i1))
        types = [self.recent().type for _ in range(self.rng.integers(1, 3))]
        blocks = [Block(), Block()]
        for block in blocks:
            self.inside(block, list(self.values), 3, depth - 1, lambda b=block: self.end(b, types))
        self.add(mir.IfOp(condition, *blocks, types))

    def end(self, block: Block, types: list[Attribute]) -> None:
        values = [self.of_type(t) for t in types]
        block.add_op(mir.YieldOp(*values))

    def loop(self, depth: int) -> None:
        count = tensor([], i32)
        carried = [self.recent() for _ in range(self.rng.integers(1, 3))]
        self.add(mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(count, [0])))
        inits = [self.values[-1], *carried]
        types = [v.type for v in inits]
        test, body = Block(arg_types=types), Block(arg_types=types)
        limit = mir.ConstantOp(
            DenseIntOrFPElementsAttr.from_list(count, [int(self.rng.integers(3))])
        )
        below = mir.CompareOp(CompareKind.LT, test.args[0], limit.result)
        held = mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(tensor([], i1), [0]))
        never = self.rng.random() < 0.2
        test.add_ops([limit, below, held, mir.YieldOp(held.result if never else below.result)])
        values = [*self.values, *body.args]
        self.inside(body, values, 4, depth - 1, lambda: self.end_turn(body, types))
        self.add(mir.WhileOp(inits, test, body))

    def end_turn(self, body: Block, types: list[Attribute]) -> None:
        values = [self.of_type(t) for t in types[1:]]
        one = mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(types[0], [1]))
        following = mir.BinaryOp(B.ADD, body.args[0], one.result)
        body.add_ops([one, following, mir.YieldOp(following.result, *values)])
