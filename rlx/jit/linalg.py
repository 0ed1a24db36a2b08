"""Products of traced arrays: matrices in batches, contractions by axes or by letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rlx.jit import core, elementwise, manipulation, reductions
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, INT64, DType, Value
from rlx.jit.dims import Dim
from rlx.jit.trace import fail


def _pair(a: object, b: object, name: str) -> tuple[Any, Any, DType]:
    """Return operands of one dtype that products are computed in, and the dtype of the result."""
    dtype = elementwise.result_type(a, b)
    values = core.lift(a, dtype, name), core.lift(b, dtype, name)
    wide = FLOAT32 if dtype == FLOAT16 else INT64 if dtype == BOOL else dtype
    return *(core.cast_to(v, wide) for v in values), dtype


def matmul(a: object, b: object) -> Any:
    """Return matrix products, of a batch of them where there are more than two dimensions."""
    x, y, dtype = _pair(a, b, "matmul")
    if not x.dims or not y.dims:
        raise ValueError(
            "matmul: Input operand 0 does not have enough dimensions (has 0, gufunc core with "
            "signature (n?,k),(k,m?)->(n?,m?) requires 1)"
        )
    row, column = len(x.dims) == 1, len(y.dims) == 1
    x = core.reshape(x, (1, *x.dims)) if row else x
    y = core.reshape(y, (*y.dims, 1)) if column else y
    result = _product(x, y)
    if column:
        result = core.reshape(result, result.dims[:-1])
    if row:
        shape = result.dims
        result = core.reshape(result, shape[:-1] if column else (*shape[:-2], shape[-1]))
    return core.cast_to(result, dtype)


def _product(x: Value, y: Value) -> Any:
    """Return `[..., m, k] x [..., k, n]` of one dtype."""
    dims = x.trace.dims
    k, other = dims.find(x.dims[-1]), dims.find(y.dims[-2])
    if not dims.same(k, other):
        raise ValueError(
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc "
            f"signature (n?,k),(k,m?)->(n?,m?) (size {dims.hint(other)} is different from "
            f"{dims.hint(k)})"
        )
    batch = core.common_shape(x.dims[:-2], y.dims[:-2])
    if x.dtype.kind == "f":
        x = core.broadcast(x, (*batch, *x.dims[-2:]))
        y = core.broadcast(y, (*batch, *y.dims[-2:]))
        return core.dot(x, y)
    left = core.reshape(x, (*x.dims, 1))
    right = core.reshape(y, (*y.dims[:-2], 1, *y.dims[-2:]))
    shape = core.common_shape(left.dims, right.dims)
    terms = core.binary("mul", core.broadcast(left, shape), core.broadcast(right, shape))
    return core.reduce("sum", terms, [len(shape) - 2])


def dot(a: object, b: object) -> Any:
    """Return numpy's dot: the last axis of one with the last but one of the other."""
    x, y = core.lift(a, what="dot"), core.lift(b, what="dot")
    if not x.dims or not y.dims:
        return elementwise.apply("multiply", x, y)
    return tensordot(x, y, ([len(x.dims) - 1], [max(len(y.dims) - 2, 0)]))


def vdot(a: object, b: object) -> Any:
    return dot(manipulation.ravel(a), manipulation.ravel(b))


def inner(a: object, b: object) -> Any:
    x, y = core.lift(a, what="inner"), core.lift(b, what="inner")
    if not x.dims or not y.dims:
        return elementwise.apply("multiply", x, y)
    return tensordot(x, y, ([-1], [-1]))


def outer(a: object, b: object) -> Any:
    """Return all products of an element of one with an element of the other."""
    x, y = manipulation.ravel(a), manipulation.ravel(b)
    return elementwise.apply("multiply", manipulation.expand_dims(x, 1), y)


def vecdot(a: object, b: object, axis: int = -1) -> Any:
    """Return sums of products along an axis of both."""
    x, y, dtype = _pair(a, b, "vecdot")
    x, y = (manipulation.moveaxis(v, axis, -1) for v in (x, y))
    if not x.trace.dims.same(x.dims[-1], y.dims[-1]):
        raise ValueError("vecdot: the two arrays have different sizes along the axis")
    total = core.reduce("sum", *_last(elementwise.apply("multiply", x, y)))
    return core.cast_to(total, dtype)


def _last(x: Value) -> tuple[Value, list[int]]:
    return x, [len(x.dims) - 1]


def matvec(a: object, b: object) -> Any:
    return manipulation.squeeze(matmul(a, manipulation.expand_dims(b, -1)), -1)


def vecmat(a: object, b: object) -> Any:
    return manipulation.squeeze(matmul(manipulation.expand_dims(a, -2), b), -2)


def tensordot(a: object, b: object, axes: Any = 2) -> Any:
    """Return products summed over axes of both, given by number or as two lists."""
    x, y, dtype = _pair(a, b, "tensordot")
    if isinstance(axes, int):
        ours, theirs = range(len(x.dims) - axes, len(x.dims)), range(axes)
    else:
        ours, theirs = axes
    ours = reductions.axes_of(_listed(ours), len(x.dims))
    theirs = reductions.axes_of(_listed(theirs), len(y.dims))
    same = x.trace.dims.same
    if len(ours) != len(theirs) or not all(
        same(x.dims[i], y.dims[j]) for i, j in zip(ours, theirs, strict=True)
    ):
        raise ValueError("shape-mismatch for sum")
    left = [i for i in range(len(x.dims)) if i not in ours]
    right = [i for i in range(len(y.dims)) if i not in theirs]
    shape = (*(x.dims[i] for i in left), *(y.dims[i] for i in right))
    product = x.trace.dims.product
    k = product(x.dims[i] for i in ours)
    x = core.transpose(x, [*left, *ours])
    y = core.transpose(y, [*theirs, *right])
    x = core.reshape(x, (product(x.dims[: len(left)]), k))
    y = core.reshape(y, (k, product(y.dims[len(theirs) :])))
    return core.cast_to(core.reshape(_product(x, y), shape), dtype)


def _listed(axes: Any) -> list[int]:
    return [axes] if isinstance(axes, int) else list(axes)


def einsum(subscripts: str, *operands: object) -> Any:
    """
    Return sums of products by letters, `"bij,jk->bik"`; operands are joined from left to right.

    Raises ValueError for letters that don't fit; there is no `...`.
    """
    if not isinstance(cast(object, subscripts), str):
        raise fail("einsum: expected subscripts as a string, then operands")
    text = subscripts.replace(" ", "")
    if "." in text:
        raise fail("einsum: '...' is not there: name the axes by letters")
    inputs, arrow, output = text.partition("->")
    letters = inputs.split(",")
    if not arrow:
        output = "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))
    if len(letters) != len(operands):
        raise ValueError(f"einsum: {len(letters)} operands are named, {len(operands)} were given")
    dtype = elementwise.result_type(*operands)
    wide = FLOAT32 if dtype == FLOAT16 else dtype
    terms = [
        _diagonals(core.lift(x, wide, "einsum"), names)
        for x, names in zip(operands, letters, strict=True)
    ]
    _sizes_agree(terms)
    value, names = _summed(*terms[0], [output, *(n for _, n in terms[1:])])
    for i, (other, other_names) in enumerate(terms[1:], 2):
        later = [output, *(n for _, n in terms[i:])]
        other, other_names = _summed(other, other_names, [*later, names])
        value, names = _contracted(value, names, other, other_names, later)
    missing = set(output) - set(names)
    if missing:
        raise ValueError(f"einsum: the output has '{''.join(sorted(missing))}', no input has it")
    order = [names.index(c) for c in output]
    return core.cast_to(core.transpose(value, order), dtype)


def _sizes_agree(terms: Sequence[tuple[Value, str]]) -> None:
    sizes: dict[str, Dim] = {}
    for value, names in terms:
        for name, dim in zip(names, value.dims, strict=True):
            if not value.trace.dims.same(sizes.setdefault(name, dim), dim):
                raise ValueError(f"einsum: operands have different sizes for '{name}'")


def _diagonals(value: Any, names: str) -> tuple[Any, str]:
    """Return a term whose letters differ: a letter that comes twice stands for a diagonal."""
    if len(names) != len(value.dims):
        raise ValueError(f"einsum: '{names}' names {len(names)} axes, the operand has "
                         f"{len(value.dims)}")  # fmt: skip
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            i = names.index(name)
            j = names.index(name, i + 1)
            value = diagonal(value, axis1=i, axis2=j)
            names = names[:i] + names[i + 1 : j] + names[j + 1 :] + name
    return value, names


def _summed(value: Any, names: str, others: Sequence[str]) -> tuple[Any, str]:
    """Sum over the letters that nothing else has."""
    gone = [i for i, c in enumerate(names) if not any(c in o for o in others)]
    if not gone:
        return value, names
    kind = "max" if value.dtype == BOOL else "sum"
    return core.reduce(kind, value, gone), "".join(c for i, c in enumerate(names) if i not in gone)


def _contracted(x: Any, a: str, y: Any, b: str, later: Sequence[str]) -> tuple[Any, str]:
    """Multiply two terms and sum over what they share and no later term has."""
    summed = [c for c in a if c in b and not any(c in o for o in later)]
    batch = [c for c in a if c in b and c not in summed]
    left, right = [c for c in a if c not in b], [c for c in b if c not in a]
    x = core.transpose(x, [a.index(c) for c in (*batch, *left, *summed)])
    y = core.transpose(y, [b.index(c) for c in (*batch, *summed, *right)])
    names = "".join([*batch, *left, *right])
    product = x.trace.dims.product
    head, n = x.dims[: len(batch)], len(batch)
    if not summed:
        x = core.reshape(x, (*x.dims, *[1] * len(right)))
        y = core.reshape(y, (*head, *[1] * len(left), *y.dims[n:]))
        return elementwise.apply("multiply", x, y), names
    shape = (*head, *x.dims[n : n + len(left)], *y.dims[n + len(summed) :])
    k = product(y.dims[n : n + len(summed)])
    x = core.reshape(x, (*head, product(x.dims[n : n + len(left)]), k))
    y = core.reshape(y, (*head, k, product(y.dims[n + len(summed) :])))
    if x.dtype == BOOL:
        x, y = core.cast_to(x, INT64), core.cast_to(y, INT64)
        return core.cast_to(core.reshape(_product(x, y), shape), BOOL), names
    return core.reshape(_product(x, y), shape), names


def diagonal(x: object, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the diagonal of two axes, as the last axis of the result."""
    if offset != 0:
        raise fail("diagonal: expected the offset 0")
    value = core.lift(x, what="diagonal")
    if value.dtype == core.FLOAT16:
        # Sums are of wider numbers; of one number they are exact.
        wide = diagonal(core.cast_to(value, core.FLOAT32), 0, axis1, axis2)
        return core.cast_to(wide, core.FLOAT16)
    value = manipulation.moveaxis(value, (axis1, axis2), (-2, -1))
    dims = value.trace.dims
    n = dims.derive("min", value.dims[-2], value.dims[-1])
    value = value[..., : _size(value, n), : _size(value, n)]
    rows, columns = (core.iota(value, value.dims, len(value.dims) - i) for i in (2, 1))
    on = core.compare("eq", rows, columns)
    return core.reduce(*_of_one(core.select(on, value, core.full_like(value, 0))))


def _of_one(x: Value) -> tuple[str, Value, list[int]]:
    return "max" if x.dtype == BOOL else "sum", x, [len(x.dims) - 1]


def _size(value: Value, dim: Dim) -> Any:
    from rlx.jit.sizes import size

    return size(value.trace, dim)


def trace(x: object) -> Any:
    """Return the sum of the diagonal of the first two axes."""
    return reductions.sum(diagonal(x), -1)


def vector_norm(
    x: object, axis: Any = None, keepdims: bool = False, ord: Any = 2
) -> Any:  # fmt: skip
    """Return the norm of vectors: (sum |x|^ord)^(1/ord), the largest |x| for infinity."""
    size = elementwise.apply("absolute", x)
    if ord == np.inf:
        return reductions.max(size, axis, keepdims)
    if ord == 1:
        return reductions.sum(size, axis, keepdims=keepdims)
    if ord == 2:
        square = elementwise.apply("multiply", x, x)
        return elementwise.apply("sqrt", reductions.sum(square, axis, keepdims=keepdims))
    total = reductions.sum(elementwise.apply("float_power", size, ord), axis, keepdims=keepdims)
    return elementwise.apply("float_power", total, 1 / ord)


def norm(x: object, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return numpy's norm of vectors, and the square root of a matrix's sum of squares."""
    value = core.lift(x, what="norm")
    matrix = len(value.dims) > 1 and (axis is None or isinstance(axis, tuple))
    if matrix and ord not in (None, "fro"):
        raise fail("norm: of matrices there is the Frobenius norm alone: give one axis")
    return vector_norm(value, axis, keepdims, 2 if matrix or ord is None else ord)
