"""
What is known of an operation, in one place: its class, meaning, lowering and samples for tests.

A file of this package has, for each operation, the class (definition, shape rule, verifier), its
meaning in numpy, its expansion into primitives or the kernel that computes it, and how to draw
inputs for it. `RECORDS` lists them, and a `Dialect` at the end holds the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from xdsl.ir import Attribute, Operation, SSAValue

from rlx.contract.opkind import OpKind
from rlx.dialects.common import DimDef
from rlx.dialects.writer import Writer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlx.ops.samples import Draw

Array: TypeAlias = "NDArray[Any]"

ROWS = "row program"
CONTRACTION = "contraction"
ATTENTION = "attention"
MOVE = "move"
SCAN = "scan"
FFT = "fft"
SORT = "sort"
SAMPLING = "sampling"
FAMILIES = (ROWS, CONTRACTION, ATTENTION, MOVE, SCAN, FFT, SORT, SAMPLING)
"""The kernel families."""

FLOATS = ("f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u32")


@dataclass(frozen=True)
class Surroundings:
    """What operations of HIR need of their module: weights, states and dimensions with names."""

    declared: Sequence[Operation] = ()
    """Declarations and functions of the module, beside @main; they are cloned."""
    weights: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """By key."""
    dims: Sequence[DimDef] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of the free dimensions."""
    types: Sequence[Attribute] = ()
    """Of the inputs, where their dimensions have names."""


@dataclass(frozen=True)
class Case:
    """
    Inputs for an operation, and how it is built on them.

    `arrays` have the dtypes of the operands as a caller gives them. `build` makes the operation
    (and what it needs around it) on values of their types, and returns the results.
    """

    arrays: Sequence[Array]
    build: Callable[[Writer, Sequence[SSAValue]], Sequence[SSAValue]]
    around: Surroundings | None = None


@dataclass(frozen=True)
class Record:
    """
    An operation. `meaning(op, *arrays)` gives the result, or a tuple of them, on numpy arrays.

    It must follow the definition, not the lowering: it is what the lowering is tested against. Its
    arrays are float64 (or float32, where that is asked for) for all floats, and exact for integers.
    """

    op: type[Operation]
    kinds: tuple[OpKind, ...]
    family: str
    elements: tuple[str, ...]
    """Elements of the operands that carry the numbers."""
    meaning: Callable[..., Any] | None
    """None where the operation is not a `NamedOp`: `rlx.reference` says what it means."""
    sample: Callable[[Draw], Case]
    """Draws inputs: sizes and values come from `draw`, so that the harness chooses them."""
    expand: Callable[[Writer, Any], Sequence[SSAValue]] | None = None
    """Writes it out in primitives and other named operations; None where it has a kernel."""
    kernel: str = ""
    """The module of lowering with `emit(body)`; `scratch(op, table)` if threads share memory."""
    nmse: float = 1e-12
    """The largest mean squared error of f32, over the mean square of what is right."""

    @property
    def name(self) -> str:
        return self.op.name


def nmse(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Return the mean squared error over the mean square; where both are not finite alike, 0."""
    import numpy as np

    a, b = (np.asarray(x, np.float64) for x in (got, wanted))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    a, b = a[~same], b[~same]
    if not a.size:
        return 0.0
    total = np.square(np.asarray(wanted, np.float64)[np.isfinite(wanted)]).sum()
    error = float(np.square(a - b).sum())
    return error / max(float(total), 1e-300)
