"""Runs programs of HIR and MIR on numpy arrays: what their operations mean, for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, bf16
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from rlx.dialects import hir
from rlx.dialects.common import DimTable, element_of
from rlx.errors import RlxError
from rlx.reference.elements import Array, Float, bf16_values, cast, dtype_of
from rlx.reference.meanings import evaluate
from rlx.reference.scope import Scope, named
from rlx.reference.weights import ArrayWeights, Stored, WeightSource, by_key

__all__ = ["Reference", "evaluate"]


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
        main = named(self.functions, "main", "function")
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
