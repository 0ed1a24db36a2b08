"""The masks of attention, as programs write them: causal by comparing indices, or added."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, UnaryKind
from rlx.passes.matching import splat_of

HIDDEN = -1e9
"""A score of at most this much counts as minus infinity: its weight is 0 beside any other."""


@dataclass(frozen=True)
class _Affine:
    """row * i + column * j + offset, for the element at (i, j) of the last two axes."""

    row: int
    column: int
    offset: int

    def plus(self, other: _Affine, sign: int) -> _Affine:
        return _Affine(
            self.row + sign * other.row,
            self.column + sign * other.column,
            self.offset + sign * other.offset,
        )


def _affine(value: SSAValue) -> _Affine | None:
    """Return what an index is made of; None for what is not made of indices of two axes."""
    op = value.owner
    # Small integers wrap before the largest index.
    if element_of(value.type) not in (i32, i64, f32, f64) or not isinstance(op, Operation):
        return None
    splat = splat_of(value)
    if splat is not None:
        whole = isfinite(splat) and splat == int(splat)
        return _Affine(0, 0, int(splat)) if whole else None
    match op:
        case mir.IotaOp():
            axis = op.axis.value.data - len(dims_of(value.type))
            return _Affine(int(axis == -2), int(axis == -1), 0) if axis >= -2 else None
        case mir.CastOp():
            return _affine(op.input)
        case mir.BinaryOp() if op.kind.data in (BinaryKind.ADD, BinaryKind.SUB):
            left, right = _affine(op.lhs), _affine(op.rhs)
            if left is None or right is None:
                return None
            return left.plus(right, 1 if op.kind.data is BinaryKind.ADD else -1)
        case mir.BroadcastOp() | mir.ReshapeOp():
            return _moved(op)
        case _:
            return None


def _moved(op: mir.BroadcastOp | mir.ReshapeOp) -> _Affine | None:
    """Return an index after a move that brings its axes to others, or repeats it along them."""
    inner = _affine(op.input)
    if inner is None:
        return None
    places = _axes_after(op)
    factors = {-2: 0, -1: 0}
    for axis, factor in ((-2, inner.row), (-1, inner.column)):
        # Along an axis of size 1 the index is 0.
        if factor and axis in places:
            if places[axis] not in factors:
                return None
            factors[places[axis]] += factor
        elif factor and dims_of(op.input.type)[axis] != 1:
            return None
    return _Affine(factors[-2], factors[-1], inner.offset)


def _axes_after(op: mir.BroadcastOp | mir.ReshapeOp) -> dict[int, int]:
    """Return which axis of the result an axis of the input is, both counted from the last, -1."""
    old, new = dims_of(op.input.type), dims_of(op.result.type)
    if isinstance(op, mir.BroadcastOp):
        return {a: a for a in range(-len(old), 0) if old[a] == new[a] and old[a] != 1}
    kept = [[a for a in range(-len(dims), 0) if dims[a] != 1] for dims in (old, new)]
    if [old[a] for a in kept[0]] != [new[a] for a in kept[1]]:
        return {}
    return dict(zip(*kept, strict=True))


def is_causal(condition: SSAValue, rows: Dim, columns: Dim) -> bool | None:
    """
    Return whether a condition holds where query i may see key j: j <= i + columns - rows.

    True where it holds for those, False where it holds for the others, None where it is another
    condition or some query would see no key.
    """
    op = condition.owner
    if isinstance(op, mir.BroadcastOp):
        return is_causal(op.input, rows, columns)
    if isinstance(op, mir.UnaryOp) and op.kind.data is UnaryKind.NOT:
        inner = is_causal(op.input, rows, columns)
        return None if inner is None else not inner
    if not isinstance(op, mir.CompareOp) or dims_of(condition.type)[-2:] != (rows, columns):
        return None
    if rows == columns:
        later = 0
    elif isinstance(rows, int) and isinstance(columns, int) and columns > rows:
        later = columns - rows
    else:
        return None
    left, right = _affine(op.lhs), _affine(op.rhs)
    if left is None or right is None:
        return None
    # In the form row * i + column * j + offset >= 0.
    match op.kind.data:
        case CompareKind.GE | CompareKind.GT:
            difference = left.plus(right, -1)
        case CompareKind.LE | CompareKind.LT:
            difference = right.plus(left, -1)
        case _:
            return None
    if op.kind.data in (CompareKind.GT, CompareKind.LT):
        difference = difference.plus(_Affine(0, 0, 1), -1)
    return {_Affine(1, -1, later): True, _Affine(-1, 1, -later - 1): False}.get(difference)


def is_causal_choice(op: Operation, shown: SSAValue | float, rows: Dim, columns: Dim) -> bool:
    """Whether an operation is `shown` where a query may see a key, and hides the other keys."""
    if not isinstance(op, mir.SelectOp):
        return False
    holds = is_causal(op.condition, rows, columns)
    if holds is None:
        return False
    visible, hidden = (op.lhs, op.rhs) if holds else (op.rhs, op.lhs)
    same = visible is shown if isinstance(shown, SSAValue) else splat_of(visible) == shown
    amount = splat_of(hidden)
    return same and amount is not None and amount <= HIDDEN


def mask_for(mask: SSAValue, scores: SSAValue) -> tuple[list[Operation], SSAValue] | str:
    """
    Return the mask of `mir.sdpa`, `[batch..., m, n]`, and the operations that make it.

    `mask` is what is added to the scores `[batch..., heads, m, n]`. A string says why it can't be
    one mask for all heads.
    """
    wanted, element = dims_of(scores.type), element_of(scores.type)
    given = mask.owner.input if isinstance(mask.owner, mir.BroadcastOp) else mask
    dims: tuple[Dim, ...] = dims_of(given.type)
    dims = (1,) * (len(wanted) - len(dims)) + dims
    if len(wanted) > 2:
        if dims[-3] != 1:
            return "the mask differs from head to head"
        dims, wanted = (*dims[:-3], *dims[-2:]), (*wanted[:-3], *wanted[-2:])
    made: list[Operation] = []
    if dims_of(given.type) != dims:
        made.append(mir.ReshapeOp(given, tensor(dims, element)))
        given = made[-1].results[0]
    if dims != wanted:
        made.append(mir.BroadcastOp(given, tensor(wanted, element)))
        given = made[-1].results[0]
    return made, given
