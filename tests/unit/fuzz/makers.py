"""
A table of the tensor primitives: what each needs of an operand, and how to write it.

Results must not depend on rounding: functions that jump are given values that are the same
everywhere, and functions with poles arguments that keep away from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.values import (
    EXACT,
    FLOATS,
    INTEGERS,
    SINGLE,
    STORAGE,
    UNSIGNED,
    Body,
    Type,
    Value,
    is_float,
    is_integer,
    rounds,
)

SMOOTH = (
    "atan", "tanh", "erf", "sigmoid", "log_sigmoid", "silu", "gelu", "gelu_tanh", "elu",
    "softplus", "softsign", "hard_sigmoid", "hard_swish", "mish",
)  # fmt: skip
BOUNDED = ("exp", "sin", "cos", "tan")
POSITIVE = ("sqrt", "rsqrt", "recip", "log")
MOVED = ("neg", "abs", "relu")
"""Maps that only take or negate what they are given."""
JUMPS = ("sign", "floor", "ceil", "round")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
INTEGER_BINARY = (
    "add", "sub", "mul", "div", "max", "min", "mod", "and", "or", "xor", "shl", "shr",
)  # fmt: skip
PARTS = {"more": ("c2", "m"), "both": ("seq", "m"), "twice": ("seq", "seq")}
"""A dimension that is a sum -> one of its parts, from the size of the other on."""


@dataclass(frozen=True)
class Maker:
    """Writes an operation or a few, for an operand that fits where one is needed."""

    name: str
    write: Callable[..., object]
    fits: Callable[[Value], bool] | None
    weight: int


MAKERS: dict[str, Maker] = {}


def maker(fits: Callable[[Value], bool] | None, weight: int = 2) -> Callable[[Callable], Callable]:
    """Enter a function in the table; `fits` says which operand it takes, None that none."""

    def enter(write: Callable) -> Callable:
        MAKERS[write.__name__] = Maker(write.__name__, write, fits, weight)
        return write

    return enter


def is_exact(x: Value) -> bool:
    return x.noise == EXACT


def is_comparable(x: Value) -> bool:
    return is_exact(x) and x.element not in STORAGE


def has_axes(x: Value) -> bool:
    return x.type.rank > 0


def number_axes(x: Value) -> list[int]:
    """Return the axes whose size is a number that isn't 0."""
    return [i for i, d in enumerate(x.dims) if isinstance(d, int) and d]


# Maps


@maker(is_float, 5)
def float_unary(b: Body, x: Value) -> None:
    kinds = [*SMOOTH, *BOUNDED, *POSITIVE, *MOVED, *(JUMPS if is_exact(x) else ())]
    kind = b.choose(kinds)
    if kind in BOUNDED:
        x = b.bounded(x)
    if kind in POSITIVE:
        x = b.positive(x)
    b.unary(kind, x, x.noise if kind in (*MOVED, *JUMPS) else None)


@maker(lambda x: is_integer(x) or x.element == "i1", 3)
def integer_unary(b: Body, x: Value) -> None:
    b.unary("not" if x.element == "i1" else b.choose(("neg", "abs", "sign", "not")), x)


@maker(is_float, 6)
def float_binary(b: Body, x: Value) -> None:
    y = b.like(x)
    kind = b.choose(("add", "sub", "mul", "max", "min", "div", "pow", "atan2", "mod"))
    if kind in ("max", "min"):
        b.binary(kind, x, y, max(x.noise, y.noise))
    elif kind in ("div", "atan2"):
        # atan2 jumps where both are 0 and at the negative half-axis.
        b.binary(kind, x, b.positive(y))
    elif kind == "pow":
        b.binary(kind, b.positive(b.bounded(x)), b.bounded(y))
    elif kind == "mod":
        if is_exact(x):
            b.binary(kind, x, b.full(x, 0.75))
    else:
        # Products of products would soon be too large for f32.
        b.binary(kind, b.bounded(x) if kind == "mul" else x, y)


@maker(lambda x: is_integer(x) or x.element == "i1", 4)
def integer_binary(b: Body, x: Value) -> None:
    kinds = ("and", "or", "xor") if x.element == "i1" else INTEGER_BINARY
    b.binary(b.choose(kinds), x, b.like(x))


@maker(is_comparable, 3)
def compare(b: Body, x: Value) -> Value:
    y = b.pick(lambda v: v.type == x.type and is_exact(v)) or x
    if y == x:
        y = b.full(x, int(b.rng.integers(-2, 3)))
    text = f"mir.compare {b.choose(COMPARE)} {x}, {y} : {x.type} -> {x.type.of('i1')}"
    return b.op(text, x.type.of("i1"), EXACT)


@maker(None, 3)
def select(b: Body) -> None:
    x = b.pick()
    condition = b.pick(lambda v: v.type == x.type.of("i1"))
    if condition is None:
        condition = compare(b, b.constant(0, x.type.of("i32")))
    y = b.like(x)
    noise = max(x.noise, y.noise)
    b.op(f"mir.select {condition}, {x}, {y} : {condition.type}, {x.type}", x.type, noise)


@maker(lambda x: True, 4)
def cast(b: Body, x: Value) -> None:
    """Casts that give the same everywhere or are rounded once; wide integers become small first."""
    if is_float(x) and not is_exact(x):
        wide = "f64" if x.element == "f32" else "f32"
        b.cast(x, wide, x.noise if wide == "f64" else SINGLE)
        return
    elements = [e for e in (*FLOATS, *STORAGE, *INTEGERS, "i1") if e != x.element]
    to = b.choose(elements)
    if x.element in ("i16", "i32", "i64", "ui32") and to in (*FLOATS, *STORAGE):
        x = b.binary("mod", x, b.full(x, 97))
    # The reference keeps more digits of f64 than f32 has.
    b.cast(x, to, SINGLE if (x.element, to) == ("f64", "f32") else x.noise)


# Reductions, norms and products


@maker(lambda x: x.element not in STORAGE and has_axes(x), 4)
def reduce(b: Body, x: Value) -> None:
    axes = [i for i in range(x.type.rank) if b.rng.random() < 0.5]
    kinds = ("max", "min") if x.element == "i1" else ("sum", "max", "min", "prod")
    kind = b.choose((*kinds, "mean") if is_float(x) else kinds)
    empty = any(b.generator.may_be_empty(x.dims[i]) for i in axes)
    if is_float(x) and empty and kind in ("mean", "max", "min"):
        # NaN and infinities would spread.
        return
    if kind == "prod" and is_float(x):
        x = b.positive(b.bounded(x))
    noise = x.noise if kind in ("max", "min") else rounds(x)
    type_ = Type(tuple(d for i, d in enumerate(x.dims) if i not in axes), x.element)
    b.op(f"mir.reduce {kind} {x} axes {axes} : {x.type} -> {type_}", type_, noise)


@maker(lambda x: is_float(x) and has_axes(x))
def softmax(b: Body, x: Value) -> None:
    x = b.binary("mul", b.bounded(x), b.full(x, 3))
    b.op(f"mir.softmax {x} : {x.type}", x.type, rounds(x))


@maker(lambda x: is_float(x) and has_axes(x) and x.type.rank - 1 in number_axes(x))
def layer_norm(b: Body, x: Value) -> None:
    vector = Type(x.dims[-1:], x.element)
    w, bias = (b.pick(lambda v: v.type == vector) or b.constant(n, vector) for n in (1.5, 0.25))
    noise = max(rounds(v) for v in (x, w, bias))
    b.op(f"mir.layer_norm {x}, {w}, {bias} eps 0.01 : {x.type}, {vector}", x.type, noise)


@maker(lambda x: is_float(x) and x.type.rank >= 2, 3)
def dot(b: Body, x: Value) -> None:
    """A product with any value that fits on one side or the other, at worst with itself."""
    swap_x, swap_y = (bool(b.rng.random() < 0.4) for _ in range(2))
    m, k = x.dims[-2:][:: -1 if swap_x else 1]

    def joins(v: Value) -> bool:
        same = v.element == x.element and v.type.rank == x.type.rank
        return same and v.dims[:-2] == x.dims[:-2] and v.dims[-1 if swap_y else -2] == k

    y = b.pick(joins)
    if y is None:
        y, swap_y = x, not swap_x
    n = y.dims[-2 if swap_y else -1]
    type_ = Type((*x.dims[:-2], m, n), x.element)
    if not b.fits(type_):
        return
    x, y = b.bounded(x), b.bounded(y)
    sides = f"{x} {'lhs_t' * swap_x}, {y} {'rhs_t' * swap_y}"
    noise = max(rounds(x), rounds(y))
    b.op(f"mir.dot {sides} : {x.type}, {y.type} -> {type_}", type_, noise)


def _heads(b: Body, x: Value, heads: int, width: int) -> Value:
    """`[n, heads * width] -> [heads, n, width]`."""
    apart = b.move("reshape", x, Type((x.dims[0], heads, width), x.element))
    type_ = Type((heads, x.dims[0], width), x.element)
    return b.op(f"mir.transpose {apart} [1, 0, 2] : {apart.type} -> {type_}", type_, x.noise)


def _is_wide(x: Value) -> bool:
    return is_float(x) and x.type.rank == 2 and x.dims[1] in (8, 16, 32, 48, 96)


@maker(_is_wide)
def sdpa(b: Body, x: Value) -> None:
    kv, group, width = b.choose((1, 2)), b.choose((1, 2)), int(x.dims[1])
    d = width // (kv * group)

    def narrow(v: Value) -> bool:
        same = v.element == x.element and v.type.rank == 2
        return same and isinstance(v.dims[1], int) and v.dims[1] >= kv * d

    keys, values = (b.bounded(b.pick(narrow) or x) for _ in range(2))
    if keys.dims[0] != values.dims[0]:
        values = keys
    q = _heads(b, b.bounded(x), kv * group, d)
    k, v = (
        _heads(b, _columns(b, side, kv * d) if side.dims[1] != kv * d else side, kv, d)
        for side in (keys, values)
    )
    mask = b.pick(lambda u: u.type == Type((q.dims[1], k.dims[1]), x.element) and is_float(u))
    mask = mask if b.rng.random() < 0.5 else None
    noise = max(rounds(u) for u in (q, k, v, *([mask] if mask else [])))
    masked = f" mask {mask} : {mask.type}" if mask else ""
    causal = "causal " if b.rng.random() < 0.5 else ""
    type_ = Type((kv * group, q.dims[1], d), x.element)
    text = f"mir.sdpa {q}, {k}, {v}{masked} scale 0.5 {causal}: {q.type}, {k.type}, {v.type}"
    b.op(f"{text} -> {type_}", type_, noise)


def _columns(b: Body, x: Value, width: int) -> Value:
    type_ = Type((x.dims[0], width), x.element)
    return b.op(f"mir.slice {x} starts [0, 0] steps [1, 1] : {x.type} -> {type_}", type_, x.noise)


# Moves


@maker(lambda x: True, 3)
def reshape(b: Body, x: Value) -> None:
    """One axis more of size 1, or one less; an axis cut in two, or two that become one."""
    shapes = [x.type.at(i) for i, d in enumerate(x.dims) if d == 1]
    shapes += [Type((*x.dims[:i], 1, *x.dims[i:]), x.element) for i in range(x.type.rank + 1)]
    for i, d in enumerate(x.dims):
        parts = [(n, d // n) for n in (2, 3, 4) if d % n == 0] if isinstance(d, int) else []
        parts += b.generator.factors(d)
        shapes += [x.type.at(i, *pair) for pair in parts]
    for i, (d, e) in enumerate(zip(x.dims, x.dims[1:], strict=False)):
        merged = b.generator.product(d, e)
        if merged is not None:
            shapes.append(Type((*x.dims[:i], merged, *x.dims[i + 2 :]), x.element))
    shapes = [s for s in shapes if b.fits(s)]
    if shapes:
        b.move("reshape", x, b.choose(shapes))


@maker(lambda x: True, 3)
def broadcast(b: Body, x: Value) -> None:
    dims = tuple(b.generator.dim() if d == 1 and b.rng.random() < 0.7 else d for d in x.dims)
    if dims == x.dims:
        dims = (b.generator.dim(), *dims)
    if b.fits(Type(dims)):
        b.move("broadcast", x, Type(dims, x.element))


@maker(lambda x: x.type.rank >= 2, 3)
def transpose(b: Body, x: Value) -> None:
    order = [int(i) for i in b.rng.permutation(x.type.rank)]
    type_ = Type(tuple(x.dims[i] for i in order), x.element)
    b.op(f"mir.transpose {x} {order} : {x.type} -> {type_}", type_, x.noise)


@maker(lambda x: bool(number_axes(x)), 3)
def slice_(b: Body, x: Value) -> None:
    starts, steps, dims = [0] * x.type.rank, [1] * x.type.rank, list(x.dims)
    for i in number_axes(x):
        size = int(x.dims[i])
        starts[i] = int(b.rng.integers(0, size))
        steps[i] = int(b.choose((1, 1, 2, 3)))
        most = (size - starts[i] + steps[i] - 1) // steps[i]
        dims[i] = int(b.rng.integers(1, most + 1))
    type_ = Type(tuple(dims), x.element)
    text = f"mir.slice {x} starts {starts} steps {steps} : {x.type} -> {type_}"
    b.op(text, type_, x.noise)


@maker(lambda x: any(d in PARTS for d in x.dims))
def narrow(b: Body, x: Value) -> None:
    """A part of an axis that is a sum: one of the two that it is of."""
    axis = b.choose([i for i, d in enumerate(x.dims) if d in PARTS])
    start, size = PARTS[x.dims[axis]]
    type_ = x.type.at(axis, size)
    text = f'mir.narrow {x} axis {axis} start "{start}" step 1 : {x.type} -> {type_}'
    b.op(text, type_, x.noise)


@maker(has_axes, 3)
def pad(b: Body, x: Value) -> None:
    """Axes of numbers grow; one with a name where there is a name for what it becomes."""
    rank = x.type.rank
    low, high, between = ([0] * rank for _ in range(3))
    dims = list(x.dims)
    for i, d in enumerate(x.dims):
        if isinstance(d, int):
            low[i], high[i], between[i] = (int(b.choose((0, 0, n))) for n in (3, 1, 2))
            dims[i] = low[i] + d + max(d - 1, 0) * between[i] + high[i]
        elif b.generator.sum(d, "c2"):
            dims[i] = b.generator.sum(d, "c2")
            low[i], high[i] = b.choose(((2, 0), (1, 1), (0, 2)))
    type_ = Type(tuple(dims), x.element)
    if b.fits(type_):
        fill = b.constant(1, Type((), x.element))
        counts = f"low {low} high {high} between {between}"
        b.op(f"mir.pad {x}, {fill} {counts} : {x.type}, {fill.type} -> {type_}", type_, x.noise)


@maker(lambda x: bool(number_axes(x)), 3)
def window(b: Body, x: Value) -> None:
    axis = b.choose(number_axes(x))
    n, stride = int(x.dims[axis]), b.choose((1, 1, 2, 3))
    size = int(b.rng.integers(1, min(n, 6) + 1))
    step = int(b.rng.integers(1, (n - 1) // (size - 1) + 1)) if size > 1 else b.choose((1, 2))
    count = (n - (size - 1) * step - 1) // stride + 1
    type_ = x.type.at(axis, count, size)
    if b.fits(type_):
        text = f"mir.window {x} axis {axis} size {size} stride {stride} step {step}"
        b.op(f"{text} : {x.type} -> {type_}", type_, x.noise)


@maker(has_axes)
def reverse(b: Body, x: Value) -> None:
    axes = [i for i in range(x.type.rank) if b.rng.random() < 0.6]
    b.op(f"mir.reverse {x} axes {axes} : {x.type}", x.type, x.noise)


@maker(has_axes, 3)
def concat(b: Body, x: Value) -> None:
    axis = int(b.rng.integers(x.type.rank))

    def joins(v: Value) -> bool:
        same = v.element == x.element and v.type.rank == x.type.rank
        return same and v.type.at(axis) == x.type.at(axis)

    y = b.pick(joins) or x
    total = b.generator.sum(x.dims[axis], y.dims[axis])
    if total is None or not b.fits(x.type.at(axis, total)):
        return
    type_ = x.type.at(axis, total)
    text = f"mir.concat axis {axis} ({x}, {y}) : ({x.type}, {y.type}) -> {type_}"
    b.op(text, type_, max(x.noise, y.noise))


@maker(has_axes, 3)
def gather(b: Body, x: Value) -> None:
    """Any integers are indices: those beyond the axis mean its ends."""
    axis = int(b.rng.integers(x.type.rank))
    ids = b.pick(lambda v: v.element in ("i32", "i64") and v.type.rank <= 2)
    if ids is None or b.generator.may_be_empty(x.dims[axis]):
        return
    type_ = x.type.at(axis, *ids.dims)
    if b.fits(type_):
        text = f"mir.gather {x}, {ids} axis {axis} : {x.type}, {ids.type} -> {type_}"
        b.op(text, type_, x.noise)


# Constants and weights


@maker(None)
def constant(b: Body) -> None:
    element = b.choose((*FLOATS, *STORAGE, *INTEGERS, "i1"))
    n = int(b.rng.integers(1, 6))
    numbers = [float(v) / 4 for v in b.rng.integers(-8, 9, n)]
    if element in INTEGERS:
        numbers = [abs(int(v * 4)) if element in UNSIGNED else int(v * 4) for v in numbers]
    text = [str(v > 0).lower() if element == "i1" else repr(v) for v in numbers]
    type_ = Type((n,), element)
    b.op(f"mir.constant dense<[{', '.join(text)}]> : {type_}", type_, EXACT)


@maker(None)
def iota(b: Body) -> None:
    dims = tuple(b.generator.dim() for _ in range(b.choose((1, 2))))
    type_ = Type(dims, b.choose((*FLOATS, *INTEGERS)))
    if b.fits(type_):
        b.op(f"mir.iota axis {b.rng.integers(len(dims))} : {type_}", type_, EXACT)


@maker(None)
def plain_weight(b: Body) -> None:
    """A weight that primitives read."""
    width = b.choose(b.generator.widths)
    shape = b.choose(((width,), (3, width)))
    element = b.choose(("f32", "f32", "f16", "bf16"))
    x = b.generator.load(b, shape, element, EXACT)
    if element != "f32":
        b.cast(x, "f32", EXACT)
