"""
Linear algebra on matrices in the last two axes: three kernels factor and solve, the rest is theirs.

Any axes before them are a batch. Computed in the elements given, f32 or f64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import CONTRACTION, FLOATS, Array, Case, Record
from rlx.ops.samples import Draw

B, C, R, U = BinaryKind, CompareKind, ReduceKind, UnaryKind


def _square(op: type[NamedOp], types: Sequence[Attribute]) -> tuple[list[Dim], Dim]:
    """Return the batch and the size of square matrices, the first operand."""
    infer.check_element(op.name, types[0], infer.FLOATS)
    *batch, rows, columns = (*dims_of(types[0]), 0, -1)[: max(len(dims_of(types[0])), 2)]
    if rows != columns:
        raise op.refuse("square matrices [batch..., n, n]", types)
    return batch, rows


def _matrices(draw: Draw, batch: Sequence[int], n: int) -> Array:
    """Return matrices that are far from singular, though not by their first pivots."""
    import numpy as np

    a = draw.array((*batch, n, n), -1, 1) + 2 * np.sqrt(n) * np.eye(n)[draw.rng.permutation(n)]
    return a.astype(draw.dtype)


# The kernels


@irdl_op_definition
class LuOp(NamedOp):
    """
    Factors of square matrices with rows in another order: A[order] = L U.

    Results are `[batch..., n, n]`, L below the diagonal (its own is of ones) and U from it on, the
    order `[batch..., n]`, i64, and its sign `[batch...]`. The pivot is the largest of its column;
    where that is 0 the column is left as it is, and the matrix singular.
    """

    name = "linalg.lu"
    KIND: ClassVar = OpKind.DENSE_SOLVE
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        batch, n = _square(cls, types)
        return [types[0], tensor([*batch, n], i64), tensor(batch, element_of(types[0]))]


def _lu(op: LuOp, a: Array) -> tuple[Array, Array, Array]:
    import numpy as np

    a, n = a.copy(), a.shape[-1]
    order = np.zeros(a.shape[:-1], np.int64)
    order[...] = range(n)
    sign = np.ones(a.shape[:-2], a.dtype)
    for at in np.ndindex(*a.shape[:-2]):
        m = a[at]
        for k in range(n):
            p = k + int(np.argmax(np.abs(m[k:, k])))
            if p != k:
                m[[k, p]], order[at][[k, p]] = m[[p, k]], order[at][[p, k]]
                sign[at] = -sign[at]
            if m[k, k] != 0:
                m[k + 1 :, k] /= m[k, k]
            m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return a, order, sign


def _sample_lu(draw: Draw) -> Case:
    a = _matrices(draw, draw.shape(0, 1), draw.size(0, 64))
    return Case([a], lambda w, v: w.add_all(LuOp(*v)))


@irdl_op_definition
class CholeskyOp(NamedOp):
    """
    L with L L^T = A, lower triangular, of symmetric matrices that are positive definite.

    What is above the diagonal of A is not read, and is 0 in L. Where A is not positive definite the
    roots, and what depends on them, are NaN.
    """

    name = "linalg.cholesky"
    KIND: ClassVar = OpKind.CHOLESKY
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        _square(cls, types)
        return types


def _cholesky(op: CholeskyOp, a: Array) -> Array:
    import numpy as np

    result, n = np.zeros_like(a), a.shape[-1]
    for i in range(n):
        for j in range(i + 1):
            left = a[..., i, j] - (result[..., i, :j] * result[..., j, :j]).sum(-1)
            result[..., i, j] = np.sqrt(left) if i == j else left / result[..., j, j]
    return result


def _sample_cholesky(draw: Draw) -> Case:
    import numpy as np

    n = draw.size(0, 64)
    a = _matrices(draw, draw.shape(0, 1), n).astype(np.float64)
    spd = (a @ np.swapaxes(a, -1, -2) / max(n, 1) + np.eye(n)).astype(draw.dtype)
    return Case([spd], lambda w, v: w.add_all(CholeskyOp(*v)))


@irdl_op_definition
class TriangularSolveOp(NamedOp):
    """
    X with T X = B, for triangular T `[batch..., n, n]` and B `[batch..., n, m]`.

    The other triangle is not read; `lower` says which one is, `unit` that the diagonal is of ones,
    `transposed` that T^T is meant. A third operand, `ordered`, `[batch..., n]` i64, gives the rows
    of B that come first, second and so on. A 0 on the diagonal gives what division by it does.
    """

    name = "linalg.triangular_solve"
    KIND: ClassVar = OpKind.TRIANGULAR_SOLVE
    OPTIONS: ClassVar = {"lower": True, "unit": False, "transposed": False, "ordered": False}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2 + o["ordered"])
        batch, n = _square(cls, types)
        b = dims_of(types[1])
        fits = list(b[:-1]) == [*batch, n] and element_of(types[1]) == element_of(types[0])
        if not fits or (o["ordered"] and types[2] != tensor([*batch, n], i64)):
            raise cls.refuse(
                "matrices [batch..., n, n] and [batch..., n, m] of one element, with `ordered` an "
                "order [batch..., n] i64",
                types,
            )
        return types[1:2]


def _triangular_solve(
    op: TriangularSolveOp, t: Array, b: Array, order: Array | None = None
) -> Array:
    import numpy as np

    lower, n = op.option("lower"), t.shape[-1]
    if op.option("transposed"):
        t, lower = np.swapaxes(t, -1, -2), not lower
    x = b.copy() if order is None else np.take_along_axis(b, order[..., None], -2)
    for i in range(n)[:: 1 if lower else -1]:
        known = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= (t[..., i, known, None] * x[..., known, :]).sum(-2)
        if not op.option("unit"):
            x[..., i, :] /= t[..., i, i, None]
    return x


def _sample_triangular_solve(draw: Draw) -> Case:
    import numpy as np

    batch, n, m = draw.shape(0, 1), draw.size(0, 64), draw.size(0, 64)
    t = draw.array((*batch, n, n), -1, 1) / max(n, 1)
    t[..., range(n), range(n)] += 1.5
    options: dict[str, Any] = {name: draw.chance() for name in TriangularSolveOp.OPTIONS}
    arrays = [t, draw.array((*batch, n, m))]
    if options["ordered"]:
        order = np.broadcast_to(draw.rng.permutation(n), (*batch, n))
        arrays.append(np.ascontiguousarray(order, np.int64))
    return Case(arrays, lambda w, v: w.add_all(TriangularSolveOp(*v, **options)))


# What is made of them


class _Solve(NamedOp):
    """X with A X = B."""

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        batch, n = _square(cls, types)
        b = dims_of(types[1])
        rank, same = len(batch) + 1, element_of(types[0]) == element_of(types[1])
        if list(b[:rank]) != [*batch, n] or len(b) - rank not in (0, 1) or not same:
            raise cls.refuse(
                "matrices [batch..., n, n], and [batch..., n] or [batch..., n, m], of one element",
                types,
            )
        return types[1:]


def _solve(op: _Solve, a: Array, b: Array) -> Array:
    import numpy as np

    vector = b.ndim < a.ndim
    x = np.linalg.solve(a, b[..., None] if vector else b)
    return x[..., 0] if vector else x


def _expand_solve(w: Writer, op: _Solve) -> Sequence[SSAValue]:
    a, b = op.args
    given = dims_of(b.type)
    if len(given) < len(dims_of(a.type)):
        b = w.reshape(b, [*given, 1])
    lu, order, _ = w.add_all(LuOp(a))
    y = w.add(TriangularSolveOp(lu, b, order, unit=True, ordered=True))
    return [w.reshape(w.add(TriangularSolveOp(lu, y, lower=False)), given)]


@irdl_op_definition
class DenseSolveOp(_Solve):
    """
    x with A x = b, for A `[n, n]` and b `[n]` or `[n, m]`, by factors with partial pivoting.

    Where A is singular, x is infinite or NaN: what is divided by a pivot of 0.
    """

    name = "linalg.dense_solve"
    KIND: ClassVar = OpKind.DENSE_SOLVE

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        result = super().infer(types, o)
        if len(dims_of(types[0])) != 2:
            raise cls.refuse("one matrix: linalg.batched_dense_solve takes several", types)
        return result


@irdl_op_definition
class BatchedDenseSolveOp(_Solve):
    """
    x with A x = b, for each of A `[batch..., n, n]` and b `[batch..., n]` or `[batch..., n, m]`.

    It is `linalg.dense_solve` for each matrix.
    """

    name = "linalg.batched_dense_solve"
    KIND: ClassVar = OpKind.BATCHED_DENSE_SOLVE


def _sample_solve(op: type[_Solve], batched: bool) -> Callable[[Draw], Case]:
    def sample(draw: Draw) -> Case:
        batch, n = draw.shape(1, 2) if batched else (), draw.size(0, 64)
        shape = (*batch, n) if draw.chance() else (*batch, n, draw.size(0, 33))
        arrays = [_matrices(draw, batch, n), draw.array(shape)]
        return Case(arrays, lambda w, v: w.add_all(op(*v)))

    return sample


def _diagonal(w: Writer, x: SSAValue) -> SSAValue:
    """Return where an element is on the diagonal."""
    dims = dims_of(x.type)
    row, column = (w.iota(axis, dims, i64) for axis in (len(dims) - 2, len(dims) - 1))
    return w.compare(C.EQ, row, column)


class _OfDiagonal(NamedOp):
    """A number for each matrix."""

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        batch, _ = _square(cls, types)
        return [tensor(batch, element_of(types[0]))]


@irdl_op_definition
class DetOp(_OfDiagonal):
    """The determinant of square matrices, `[batch..., n, n]` -> `[batch...]`."""

    name = "linalg.det"
    KIND: ClassVar = OpKind.DET


def _det(op: DetOp, a: Array) -> Array:
    import numpy as np

    return np.linalg.det(a)


def _determinant(w: Writer, a: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue, list[int]]:
    """Return the factors, the places of their diagonal, the sign of the order, and the axes."""
    lu, _, sign = w.add_all(LuOp(a))
    rank = len(dims_of(a.type))
    return lu, _diagonal(w, lu), sign, [rank - 2, rank - 1]


def _expand_det(w: Writer, op: DetOp) -> Sequence[SSAValue]:
    lu, diagonal, sign, axes = _determinant(w, op.args[0])
    return [w.binary(B.MUL, w.reduce(R.PROD, w.select(diagonal, lu, 1.0), axes), sign)]


@irdl_op_definition
class LogDetOp(_OfDiagonal):
    """
    The logarithm of the determinant of square matrices, `[batch..., n, n]` -> `[batch...]`.

    NaN where that is below 0, and -infinity where it is 0.
    """

    name = "linalg.logdet"
    KIND: ClassVar = OpKind.LOG_DET


def _logdet(op: LogDetOp, a: Array) -> Array:
    import numpy as np

    sign, log = np.linalg.slogdet(a)
    return np.where(sign < 0, np.nan, log)


def _expand_logdet(w: Writer, op: LogDetOp) -> Sequence[SSAValue]:
    lu, diagonal, sign, axes = _determinant(w, op.args[0])
    ones = w.select(diagonal, lu, 1.0)
    total = w.reduce(R.SUM, w.unary(U.LOG, w.unary(U.ABS, ones)), axes)
    negative = w.binary(B.MUL, w.reduce(R.PROD, w.unary(U.SIGN, ones), axes), sign)
    return [w.select(w.compare(C.LT, negative, 0.0), float("nan"), total)]


def _sample_of_diagonal(op: type[_OfDiagonal]) -> Callable[[Draw], Case]:
    def sample(draw: Draw) -> Case:
        a = _matrices(draw, draw.shape(0, 1), draw.size(0, 17))
        return Case([a], lambda w, v: w.add_all(op(*v)))

    return sample


_KERNEL = "rlx.lowering.solve"
RECORDS = (
    Record(
        LuOp, (OpKind.DENSE_SOLVE,), CONTRACTION, FLOATS, _lu, _sample_lu, kernel=_KERNEL,
        nmse=1e-11,
    ),
    Record(
        CholeskyOp, (OpKind.CHOLESKY,), CONTRACTION, FLOATS, _cholesky, _sample_cholesky,
        kernel=_KERNEL, nmse=1e-11,
    ),
    Record(
        TriangularSolveOp, (OpKind.TRIANGULAR_SOLVE,), CONTRACTION, FLOATS, _triangular_solve,
        _sample_triangular_solve, kernel=_KERNEL, nmse=1e-11,
    ),
    Record(
        DenseSolveOp, (OpKind.DENSE_SOLVE,), CONTRACTION, FLOATS, _solve,
        _sample_solve(DenseSolveOp, False), _expand_solve, nmse=1e-10,
    ),
    Record(
        BatchedDenseSolveOp, (OpKind.BATCHED_DENSE_SOLVE,), CONTRACTION, FLOATS, _solve,
        _sample_solve(BatchedDenseSolveOp, True), _expand_solve, nmse=1e-10,
    ),
    Record(
        DetOp, (OpKind.DET,), CONTRACTION, FLOATS, _det, _sample_of_diagonal(DetOp), _expand_det,
        nmse=1e-10,
    ),
    Record(
        LogDetOp, (OpKind.LOG_DET,), CONTRACTION, FLOATS, _logdet, _sample_of_diagonal(LogDetOp),
        _expand_logdet, nmse=1e-10,
    ),
)  # fmt: skip

Linalg = Dialect("linalg", [r.op for r in RECORDS], [])
