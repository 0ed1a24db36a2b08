"""
How programs of HIR and MIR are evaluated: the values of a call, and its way through its blocks.

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
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from rlx.dialects import hir, mir
from rlx.dialects.common import dims_of, element_of
from rlx.errors import RlxError
from rlx.reference.elements import Array, cast, dtype_of

if TYPE_CHECKING:
    from rlx.reference.interpreter import Reference


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
        return dim if isinstance(dim, int) else named(self.dims, dim, "dimension")

    def weight(self, symbol: str) -> Array:
        """Return a declared weight, or the member of a family for the layer."""
        op: hir.WeightOp = named(self.reference.weights, symbol, "weight")
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
        op: hir.StateOp = named(self.reference.states, symbol, "state")
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
    raise RlxError(f"reference: expected an operation of HIR or MIR, got {op.name}")


def named(table: Mapping[str, Any], name: str, what: str) -> Any:
    """Return what has a name; raises RlxError where nothing has it."""
    if name not in table:
        raise RlxError(
            f"reference: expected a {what} @{name}, the module has {', '.join(table) or 'none'}"
        )
    return table[name]
