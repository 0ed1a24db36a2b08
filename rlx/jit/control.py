"""
Branches and loops that traced values decide: `cond`, `while_loop`, `fori_loop` and `scan`.

The functions that they are given are traced into regions, and may use values from around them. What
they carry and return are nests of arrays. The branch that is not taken does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.jit import core, elementwise
from rlx.jit.core import BOOL, INT64, DType, Value
from rlx.jit.sizes import dim_of
from rlx.jit.trace import Block, Trace, Type, current, fail
from rlx.jit.tree import flatten, unflatten

Function = Callable[..., Any]


def _lifted(tree: object, what: str) -> tuple[list[Any], Any]:
    """Return the leaves of a nest as traced values, and its structure."""
    leaves: list[Any] = []
    structure = flatten(tree, leaves)
    return [core.lift(leaf, what=what) for leaf in leaves], structure


def _condition(x: object, what: str) -> Any:
    value = core.lift(x, BOOL, what)
    if value.dims:
        raise fail(f"{what}: expected one condition, an array of rank 0, got {value!r}")
    return value


def cond(predicate: object, then: Function, otherwise: Function, *args: object) -> Any:
    """
    Return `then(*args)` where the predicate holds, `otherwise(*args)` elsewhere; one of them runs.

    Both must return nests of one structure, with arrays of the same shapes; dtypes are promoted.
    """
    trace = current("rlx.cond")
    test = _condition(predicate, "rlx.cond")
    first, structure, then_block = _branch(trace, then, args)
    second, other, else_block = _branch(trace, otherwise, args)
    if structure != other:
        raise fail(f"rlx.cond: expected branches of one structure, got {structure} and {other}")
    wanted = [_joined(a, b, "rlx.cond: the branches") for a, b in zip(first, second, strict=True)]
    for block, values in ((then_block, first), (else_block, second)):
        with trace.within(block):
            casts = [core.cast_to(v, t) for v, (t, _) in zip(values, wanted, strict=True)]
            block.results = [c.number for c in casts]
    number = trace.add("if", (then_block, else_block), [test.number], *wanted)
    weak = [a.weak if a.weak is b.weak else None for a, b in zip(first, second, strict=True)]
    leaves = [core.wrap(trace, number + i, w) for i, w in enumerate(weak)]
    return unflatten(structure, iter(leaves))


def _branch(trace: Trace, f: Function, args: Sequence[object]) -> tuple[list[Any], Any, Block]:
    with trace.region([]) as block:
        return *_lifted(f(*args), "rlx.cond"), block


def _joined(a: Value, b: Value, what: str) -> tuple[DType, Any]:
    """Return the type that two values have in common; their shapes must be one."""
    dims = a.trace.dims
    if len(a.dims) != len(b.dims) or not all(map(dims.same, a.dims, b.dims)):
        raise fail(
            f"{what}: expected arrays of one shape, got {core.shape_text(a.dims)} and "
            f"{core.shape_text(b.dims)}"
        )
    return elementwise.result_type(a, b), tuple(map(dims.find, a.dims))


def while_loop(condition: Function, body: Function, init: Any) -> Any:
    """
    Return what `body` makes of `init`, turn after turn, once `condition` of it no longer holds.

    Both take the carried nest; the body returns the next one, of the same structure and shapes.
    """
    trace = current("rlx.while_loop")
    values, structure = _lifted(init, "rlx.while_loop")
    weak = [v.weak for v in values]
    for _ in range(3):
        made = _turn(trace, body, values, weak, structure)
        weak = [None if m.weak is None else w for m, w in zip(made, weak, strict=True)]
        wanted = [
            _joined(m, v, "rlx.while_loop: what is carried")[0]
            for m, v in zip(made, values, strict=True)
        ]
        if wanted == [v.dtype for v in values]:
            break
        # A number such as 0 takes the dtype that the first turn gives it.
        if any(v.weak is None and v.dtype != t for v, t in zip(values, wanted, strict=True)):
            given, got = (", ".join(map(str, d)) for d in ([v.dtype for v in values], wanted))
            raise fail(
                f"rlx.while_loop: expected a body that keeps the dtypes ({given}), it makes "
                f"({got}): use astype"
            )
        values = [core.cast_to(v, t) for v, t in zip(values, wanted, strict=True)]
    values = [core.cast_to(v, v.dtype) for v in values]
    types = [trace.type_of(v.number) for v in values]
    with trace.region(types) as test:
        holds = condition(_carried(trace, test, weak, structure))
        test.results = [_condition(holds, "rlx.while_loop").number]
    with trace.region(types) as turn:
        made, _ = _lifted(body(_carried(trace, turn, weak, structure)), "rlx.while_loop")
        turn.results = [core.cast_to(m, v.dtype).number for m, v in zip(made, values, strict=True)]
    signature = [(v.dtype, v.dims) for v in values]
    number = trace.add("while", (test, turn), [v.number for v in values], *signature)
    leaves = [core.wrap(trace, number + i, w) for i, w in enumerate(weak)]
    return unflatten(structure, iter(leaves))


def _carried(trace: Trace, block: Block, weak: Sequence[type | None], structure: Any) -> Any:
    leaves = [core.wrap(trace, n, w) for n, w in zip(block.arguments, weak, strict=True)]
    return unflatten(structure, iter(leaves))


def _turn(
    trace: Trace,
    body: Function,
    values: Sequence[Value],
    weak: Sequence[type | None],
    structure: Any,
) -> list[Any]:
    """Return what a turn makes of the carried values, for a first look at its types."""
    types: list[Type] = [trace.type_of(v.number) for v in values]
    with trace.region(types) as block:
        made, other = _lifted(body(_carried(trace, block, weak, structure)), "rlx.while_loop")
    if structure != other:
        raise fail(
            f"rlx.while_loop: expected a body that keeps the structure {structure}, got {other}"
        )
    return made


def fori_loop(lower: object, upper: object, body: Function, init: Any) -> Any:
    """Return `init` after `body(i, carried)` for each i from lower up to upper."""
    first, last = (core.lift(x, what="rlx.fori_loop") for x in (lower, upper))
    if first.dtype.kind not in "iu" or last.dtype.kind not in "iu":
        raise fail(f"rlx.fori_loop: expected integers, got {first.dtype} and {last.dtype}")

    def turn(state: Any) -> Any:
        i, carried = state
        return i + 1, body(i, carried)

    def goes_on(state: Any) -> Any:
        return state[0] < last

    return while_loop(goes_on, turn, (first, init))[1]


def scan(body: Function, init: Any, xs: Any, length: object = None) -> tuple[Any, Any]:
    """
    Return what is carried, and the outputs of each turn as arrays with a new first axis.

    `body(carried, x)` gives the next carried nest and an output; x has the elements of `xs` along
    its first axis, or is None for `xs` None, when `length` says how many turns there are.
    """
    trace = current("rlx.scan")
    arrays, structure = _lifted(xs, "rlx.scan")
    if any(not a.dims for a in arrays):
        raise fail("rlx.scan: expected arrays with a first axis to go along")
    sizes = [a.dims[0] for a in arrays] + ([] if length is None else [dim_of(length, "rlx.scan")])
    if not sizes or not all(trace.dims.same(sizes[0], s) for s in sizes):
        raise fail("rlx.scan: expected xs of one length, or a length")
    n = trace.dims.find(sizes[0])

    def element(i: Any) -> Any:
        parts = [core.take(a, core.cast_to(i, INT64), 0) for a in arrays]
        return unflatten(structure, iter(parts))

    with trace.region([("int64", ())]) as block:
        _, outputs = body(init, element(core.wrap(trace, block.arguments[0])))
        made, out_structure = _lifted(outputs, "rlx.scan")
        types = [(m.dtype, m.dims) for m in made]
    empty = [core.full(0, t, (n, *dims)) for t, dims in types]

    def turn(i: Any, state: Any) -> Any:
        carried, stacked = state
        carried, output = body(carried, element(i))
        made, _ = _lifted(output, "rlx.scan")
        return carried, [
            _put(s, core.cast_to(m, s.dtype), i) for s, m in zip(stacked, made, strict=True)
        ]

    carried, stacked = fori_loop(0, core.size_of(n), turn, (init, empty))
    return carried, unflatten(out_structure, iter(stacked))


def _put(stacked: Value, output: Value, i: Value) -> Any:
    """Return an array with a value at place i of its first axis; it is written in place."""
    return core.make(
        stacked, stacked.dtype, stacked.dims, "named", ("indexing.scatter_rows", ()),
        stacked, i, output,
    )  # fmt: skip
