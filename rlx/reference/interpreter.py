"""
Runs programs of HIR and MIR on numpy arrays: what their operations mean, for the tests.

This is a walker of our own and not `xdsl.interpreter`, because that looks an operation up by its
exact class, while ours have their meaning on the bases that HIR and MIR share
(`rlx.dialects.ops`): `functools.singledispatch` follows the bases, so that one function says what
an operation of both levels is. A walker also checks every value against its declared type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, bf16
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from rlx.dialects import hir, mir, ops
from rlx.dialects.common import DimTable, dims_of, element_of, format_of
from rlx.dialects.infer import STORAGE
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.ops.registry import record_of
from rlx.reference import kernels
from rlx.reference.elements import Array, Float, bf16_values, cast, dtype_of, rounded
from rlx.reference.primitives import compute
from rlx.reference.sampling import sample
from rlx.reference.sequence import gated_delta_net
from rlx.reference.weights import ArrayWeights, Stored, WeightSource, by_key

MAX_TURNS = 1_000_000
"""Turns after which a loop is taken for one that never ends."""


class Reference:
    """
    A program with its weights and its state, run by numpy in one dtype.

    `weights` is a source, or arrays by weight key or by symbol (see `by_key`). `state` holds the
    arrays `[capacity, width]` by (symbol, layer), made when first used and kept across runs; two
    programs that share it continue each other. Positions never written are NaN. State used
    outside a repeated function is that of layer 0.
    """

    def __init__(
        self,
        module: ModuleOp,
        weights: WeightSource | Mapping[str, Stored | Sequence[Stored]],
        dtype: Float = np.float64,
        state: dict[tuple[str, int], Array] | None = None,
    ):
        if isinstance(weights, Mapping):
            weights = ArrayWeights(by_key(module, weights))
        self.dtype = dtype
        self.source = weights
        self.state = {} if state is None else state
        self.sequences: dict[tuple[int, int], Array] = {}
        self.table = DimTable.of(module)
        self.weights = {op.sym_name.data: op for op in module.ops if isinstance(op, hir.WeightOp)}
        self.states = {op.sym_name.data: op for op in module.ops if isinstance(op, hir.StateOp)}
        self.functions = {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)}

    def seen(self, result: SSAValue, value: Array) -> Array:
        """
        Return a result as later operations see it.

        A subclass may look at it, or add what rounding would, to learn what a program makes of it.
        """
        return value

    def run(
        self, inputs: Mapping[str, NDArray[Any]], dims: Mapping[str, int] | None = None
    ) -> dict[str, Array]:
        """
        Execute @main on `inputs` by name; return its results by name.

        `dims` gives the sizes of the free dimensions. An input of f32 is converted to the dtype of
        the reference, and so are f16 and bf16, inputs and results: arrays of uint16 are taken for
        the bits of bf16. Raises RlxError for inputs or sizes that the program doesn't declare, for
        a value that isn't of its declared shape, for an unknown operation, and for a loop that
        doesn't end within a million turns.
        """
        main = _named(self.functions, "main", "function")
        sizes = _bind(self.table, dims or {})
        names = _names(main.arg_attrs, len(main.args), "argument")
        if set(names) != set(inputs):
            raise RlxError(
                f"reference: expected the inputs {', '.join(names) or 'none'}, "
                f"got {', '.join(inputs) or 'none'}"
            )
        scope = Scope(self, sizes, None)
        arguments = [
            self._input(name, arg.type, inputs[name])
            for name, arg in zip(names, main.args, strict=True)
        ]
        # Infinities and NaN are values like others here: the caller looks at the results.
        with np.errstate(all="ignore"):
            results = scope.call(main, arguments, None)
        names = _names(main.res_attrs, len(results), "result")
        # Copies: a result may be a view of the state, which the next run writes.
        return {name: value.copy() for name, value in zip(names, results, strict=True)}

    def _input(self, name: str, type_: Attribute, value: NDArray[Any]) -> Array:
        element = element_of(type_)
        wanted = dtype_of(element, self.dtype)
        value = np.asarray(value)
        if element == bf16 and value.dtype == np.uint16:
            value = bf16_values(value)
        if not np.can_cast(value.dtype, wanted, "same_kind"):
            raise RlxError(f"reference: input {name!r}: expected {element}, got {value.dtype}")
        return cast(value, element, self.dtype)


def _named(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise RlxError(
            f"reference: expected a {what} @{name}, the module has {', '.join(table) or 'none'}"
        )
    return table[name]


def _names(attributes: ArrayAttr[DictionaryAttr] | None, count: int, what: str) -> list[str]:
    """Return the `rlx.name` of each argument or result of @main."""
    names = [a.data.get("rlx.name") for a in attributes or ()]
    found = [n.data for n in names if isinstance(n, StringAttr)]
    if len(found) != count or len(set(found)) != count:
        raise RlxError(
            f"reference: expected a different rlx.name on each {what} of @main, got {found} "
            f"for {count}"
        )
    return found


def _bind(table: DimTable, given: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every dimension; the given ones must be all free ones, within bounds."""
    for name in table.free:
        d = table.dims[name]
        if not d.low <= given.get(name, -1) <= d.high:
            raise RlxError(
                f"reference: expected the size of the dimension {d}, got {given.get(name)}"
            )
    sizes = table.bind({name: given[name] for name in table.free})
    for name, size in given.items():
        if sizes.get(name) != size:
            raise RlxError(f"reference: dimension '{name}' is {sizes.get(name)}, got {size}")
    return sizes


@dataclass
class Scope:
    """The values of one call of a function, and the layer it is called for."""

    reference: Reference
    dims: Mapping[str, int]
    layer: int | None
    values: dict[SSAValue, Array] = field(default_factory=dict[SSAValue, Array])

    def call(self, function: FuncOp, arguments: Sequence[Array], layer: int | None) -> list[Array]:
        """Return the results of a function on its own scope."""
        inner = Scope(self.reference, self.dims, layer)
        return inner.enter(f"@{function.sym_name.data}", function.body.block, arguments)

    def enter(self, what: str, block: Block, arguments: Sequence[Array]) -> list[Array]:
        """Run a block on the values of its arguments."""
        if len(arguments) != len(block.args):
            raise RlxError(f"reference: expected {len(block.args)} values for arguments of {what}")
        for arg, value in zip(block.args, arguments, strict=True):
            self.values[arg] = self.checked(f"argument of {what}", arg.type, value)
        return self.run(block)

    def run(self, block: Block) -> list[Array]:
        """Run the operations of a block; return the operands of its terminator."""
        for op in block.ops:
            undefined = next((v for v in op.operands if v not in self.values), None)
            if undefined is not None:
                raise RlxError(f"reference: {op.name} uses {undefined} before it is defined")
            arguments = [self.values[v] for v in op.operands]
            if op.has_trait(IsTerminator):
                return arguments
            results = evaluate(op, self, *arguments)
            for result, value in zip(op.results, results, strict=True):
                value = self.checked(op.name, result.type, value)
                self.values[result] = self.reference.seen(result, value)
        raise RlxError("reference: expected a block that ends in a terminator")

    def checked(self, what: str, type_: Attribute, value: Array) -> Array:
        """Return a value as it is, after checking its shape and dtype against its type."""
        shape = self.shape(type_)
        if value.shape != shape:
            raise RlxError(
                f"reference: {what}: expected the shape {list(shape)} of {type_}, "
                f"got {list(value.shape)}"
            )
        dtype = self.dtype(type_)
        if value.dtype != dtype:
            raise RlxError(f"reference: {what}: expected {dtype} for {type_}, got {value.dtype}")
        return value

    def shape(self, type_: Attribute) -> tuple[int, ...]:
        """Return the shape of a tensor in this run."""
        return tuple(self.size(d) for d in dims_of(type_))

    def dtype(self, type_: Attribute) -> np.dtype[Any]:
        """Return the dtype of the array for a tensor; that of weights in blocks is that of f32."""
        return dtype_of(element_of(type_), self.reference.dtype)

    def size(self, dim: int | str) -> int:
        """Return the size of a dimension in this run."""
        return dim if isinstance(dim, int) else _named(self.dims, dim, "dimension")

    def weight(self, symbol: str) -> Array:
        """Return a declared weight, or the member of a family for the layer."""
        op: hir.WeightOp = _named(self.reference.weights, symbol, "weight")
        if op.is_family and self.layer is None:
            raise RlxError(
                f"reference: weight @{symbol} is a family over layers, which can be loaded only "
                "in a function that a repeat calls"
            )
        key = op.key.data.replace("{layer}", str(self.layer))
        array = self.reference.source.array(key).astype(self.dtype(op.type), copy=False)
        return self.checked(f"weight {key!r}", op.type, array)

    def state(self, symbol: str) -> Array:
        """Return the array of a declared state, `[capacity, width]`, to be written in place."""
        op: hir.StateOp = _named(self.reference.states, symbol, "state")
        key = (symbol, self.layer or 0)
        if key not in self.reference.state:
            shape = [self.size(d) for d in dims_of(op.type)]
            self.reference.state[key] = np.full(shape, np.nan, self.reference.dtype)
        return self.reference.state[key]

    def sequence(self, state: Array, number: int) -> Array:
        """Return the state of a sequence, that of the module for number 0."""
        # A view of the first rows begins where the state does.
        key = (state.__array_interface__["data"][0], number)
        fresh = state if number == 0 else np.full(state.shape, np.nan, state.dtype)
        return self.reference.sequences.setdefault(key, fresh)

    def append(
        self,
        rows: Array,
        state: Array,
        start: str,
        kept: Attribute,
        places: Array | None = None,
    ) -> Array:
        """Write rows into a state of a type from position `start`; return the positions filled."""
        first = self.size(start)
        if places is not None:
            for row, (number, position) in zip(rows, places, strict=True):
                own = self.sequence(state, int(number))
                own[first + position] = cast(row, element_of(kept), self.reference.dtype)
            return state
        last = first + len(rows)
        if last > len(state):
            raise RlxError(
                f"reference: append: expected positions below the capacity {len(state)}, "
                f"got {first} to {last - 1}"
            )
        state[first:last] = cast(rows, element_of(kept), self.reference.dtype)
        return state[:last]


@singledispatch
def evaluate(op: Operation, scope: Scope, *args: Array) -> Sequence[Array]:
    """Return the results of an operation on the values of its operands."""
    if op.name in mir.KINDS_BY_NAME and type(op) not in evaluate.registry:
        import_module("rlx.reference.signal")  # It registers what its operations mean.
        return evaluate(op, scope, *args)
    if isinstance(op, NamedOp):
        meaning = record_of(op.name).meaning
        assert meaning is not None
        given: Any = meaning(op, *args)
        results: Sequence[Any] = [*given] if len(op.res) > 1 else [given]
        arrays = [
            np.asarray(value).astype(scope.dtype(r.type), copy=False)
            for value, r in zip(results, op.res, strict=True)
        ]
        elements = [element_of(r.type) for r in op.res]
        return [rounded(x, e) if e in STORAGE else x for x, e in zip(arrays, elements, strict=True)]
    raise RlxError(f"reference: expected an operation of HIR or MIR, got {op.name}")


@evaluate.register
def _(op: ops.LoadWeight, scope: Scope) -> Sequence[Array]:
    return [scope.weight(op.weight.string_value())]


@evaluate.register
def _(op: ops.Embedding, scope: Scope, ids: Array, table: Array) -> Sequence[Array]:
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise RlxError(
            f"reference: embedding: expected ids from 0 to {len(table) - 1}, "
            f"got {ids.min()} to {ids.max()}"
        )
    return [table[ids]]


@evaluate.register
def _(op: ops.RmsNorm, scope: Scope, x: Array, weight: Array) -> Sequence[Array]:
    return [kernels.rms_norm(x, weight, op.eps.value.data)]


@evaluate.register
def _(op: hir.LinearOp, scope: Scope, x: Array, weight: Array) -> Sequence[Array]:
    return [kernels.linear(x, weight)]


@evaluate.register
def _(op: mir.MatmulOp, scope: Scope, x: Array, weight: Array) -> Sequence[Array]:
    if format_of(op.weight.type) == "i8":
        x = kernels.activation_bytes(x)
    return [kernels.linear(x, weight)]


@evaluate.register
def _(
    op: hir.GluOp, scope: Scope, x: Array, up: Array, gate: Array, down: Array
) -> Sequence[Array]:
    return [kernels.glu(op.kind.data, x, up, gate, down)]


@evaluate.register
def _(op: mir.PackOp, scope: Scope, weight: Array) -> Sequence[Array]:
    if op.panels and format_of(op.result.type) == "i8":
        weight = kernels.weight_bytes(weight)
    return [weight]


@evaluate.register
def _(op: ops.RopeTable, scope: Scope) -> Sequence[Array]:
    positions, n_rot = (scope.size(d) for d in dims_of(op.cos.type))
    tables = kernels.rope_table(positions, n_rot, op.base.value.data)
    return [table.astype(scope.reference.dtype) for table in tables]


@evaluate.register
def _(op: ops.Rope, scope: Scope, x: Array, cos: Array, sin: Array) -> Sequence[Array]:
    start = scope.size(op.start.data)
    if start + len(x) > len(cos):
        raise RlxError(
            f"reference: {op.name}: expected positions below {len(cos)}, the rows of the table, "
            f"got {start} to {start + len(x) - 1}"
        )
    return [kernels.rope(x, cos, sin, start, op.head_dim.value.data)]


@evaluate.register
def _(op: hir.AppendOp, scope: Scope, rows: Array, places: Array | None = None) -> Sequence[Array]:
    state = scope.state(op.state.string_value())
    return [scope.append(rows, state, op.start.data, op.result.type, places)]


@evaluate.register
def _(op: mir.LoadStateOp, scope: Scope) -> Sequence[Array]:
    return [scope.state(op.state.string_value())]


@evaluate.register
def _(
    op: mir.AppendOp, scope: Scope, rows: Array, state: Array, places: Array | None = None
) -> Sequence[Array]:
    return [scope.append(rows, state, op.start.data, op.state.type, places)]


@evaluate.register
def _(op: mir.FirstRowsOp, scope: Scope, x: Array) -> Sequence[Array]:
    return [x[: scope.size(dims_of(op.result.type)[0])]]


@evaluate.register
def _(
    op: ops.Attention, scope: Scope, q: Array, k: Array, v: Array, places: Array | None = None
) -> Sequence[Array]:
    facts = op.head_dim.value.data, op.scale.value.data
    if places is not None:
        rows: list[Array] = []
        for r, (number, position) in enumerate(places):
            keys, values = (scope.sequence(x, int(number))[: position + 1] for x in (k, v))
            rows.append(kernels.attention(q[r : r + 1], keys, values, *facts))
        return [np.concatenate(rows)]
    result = kernels.attention(q, k, v, *facts)
    element = element_of(op.result.type)
    return [rounded(result, element) if element == bf16 else result]


@evaluate.register
def _(op: mir.GatedDeltaNetOp, scope: Scope, *args: Array) -> Sequence[Array]:
    return gated_delta_net(*args)


@evaluate.register
def _(op: ops.LastRows, scope: Scope, x: Array) -> Sequence[Array]:
    rows = scope.size(dims_of(op.result.type)[0])
    return [x[max(len(x) - rows, 0) :]]


@evaluate.register
def _(op: ops.Sample, scope: Scope, logits: Array, params: Array) -> Sequence[Array]:
    drawn = zip(logits, params, strict=True) if params.ndim == 2 else [(logits[-1], params)]
    return [np.array([sample(*row) for row in drawn], np.int32)]


@evaluate.register
def _(op: ops.Repeat, scope: Scope, *args: Array) -> Sequence[Array]:
    function = _named(scope.reference.functions, op.callee.string_value(), "function")
    carried, fixed = list(args[: len(op.res)]), args[len(op.res) :]
    for layer in range(op.first.value.data, op.last.value.data):
        carried = scope.call(function, [*carried, *fixed], layer)
    return carried


@evaluate.register
def _(op: mir.KernelOp, scope: Scope) -> Sequence[Array]:
    return scope.run(op.body.block)


@evaluate.register
def _(op: mir.IfOp, scope: Scope, condition: Array) -> Sequence[Array]:
    return scope.run((op.then if condition else op.otherwise).block)


@evaluate.register
def _(op: mir.WhileOp, scope: Scope, *inits: Array) -> Sequence[Array]:
    carried: Sequence[Array] = inits
    for _ in range(MAX_TURNS):
        (more,) = scope.enter("condition of mir.while", op.condition.block, carried)
        if not more:
            return carried
        carried = scope.enter("body of mir.while", op.body.block, carried)
    raise RlxError(f"reference: mir.while: its condition still holds after {MAX_TURNS} turns")


@evaluate.register
def _(op: hir.ScanOp, scope: Scope, *args: Array) -> Sequence[Array]:
    count = len(op.inits)
    carried, xs = list(args[:count]), args[count:]
    stacked = [np.zeros(scope.shape(r.type), scope.dtype(r.type)) for r in op.res[count:]]
    for i in range(scope.size(op.length)):
        elements = [np.asarray(x[i]) for x in xs]
        made = scope.enter("body of hir.scan", op.body.block, [*carried, *elements])
        carried = made[:count]
        for stack, output in zip(stacked, made[count:], strict=True):
            stack[i] = output
    return [*carried, *stacked]


def _primitive(op: Operation, scope: Scope, *args: Array) -> Sequence[Array]:
    shape = scope.shape(op.results[0].type)
    return [np.asarray(compute(op, shape, scope.reference.dtype, *args))]


for _primitive_class in mir.PRIMITIVES:
    evaluate.register(_primitive_class)(_primitive)


@evaluate.register
def _(op: mir.NarrowOp, scope: Scope, x: Array) -> Sequence[Array]:
    axis, step = op.axis.value.data, op.step.value.data
    start, count = scope.size(op.start.data), scope.shape(op.result.type)[axis]
    places = start + np.arange(count) * step
    if count and places[-1] >= x.shape[axis]:
        raise RlxError(
            f"reference: mir.narrow: expected elements of an axis of {x.shape[axis]}, "
            f"got {count} from {start} on, {step} apart"
        )
    return [x.take(places, axis=axis)]
