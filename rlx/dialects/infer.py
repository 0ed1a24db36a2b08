"""Types of the results of tensor primitives, from those of their operands; messages name shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import cast

from xdsl.dialects.builtin import (
    IntegerType,
    Signedness,
    TensorType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import Dim, dims_of, element_of, spell, tensor

FLOATS = (f32, f64)
"""Elements that arithmetic takes; f16 and bf16 are for storage: cast them."""
STORAGE = (f16, bf16)
STORED: Mapping[str, Attribute] = {"f32": f32, "f16": f16, "bf16": bf16}
"""What numbers that are computed in f32 may be kept in, by name."""
I8, U8, U32 = IntegerType(8), *(IntegerType(n, Signedness.UNSIGNED) for n in (8, 32))
INTEGERS = (*(IntegerType(n) for n in (8, 16, 32, 64)), U8, U32)
"""Those without a sign in their name, i8 to i64, have one."""
ELEMENTS = (*FLOATS, *STORAGE, *INTEGERS, i1)
"""Elements of tensors that are not weights; i1 is a byte of 0 or 1."""


_SUMMED: dict[tuple[Attribute, Attribute], Attribute] = {
    (f32, f32): f32, (f64, f64): f64, (I8, I8): i32, (U8, I8): i32, (i32, i32): i32,
    (i64, i64): i64,
}  # fmt: skip
"""Elements that products take on the left and on the right, and what these are summed in."""


def is_unsigned(element: Attribute) -> bool:
    """Return whether an element is an integer from 0 on."""
    return element in (U8, U32)


def range_of(element: Attribute) -> tuple[int, int] | None:
    """Return the least and the greatest integer of a type, i1 too; None for a float."""
    if not isinstance(element, IntegerType):
        return None
    width = cast(IntegerType, element).width.data
    if element in (i1, U8, U32):
        return 0, 2**width - 1
    return -(2 ** (width - 1)), 2 ** (width - 1) - 1


def check_element(what: str, type_: Attribute, allowed: Collection[Attribute]) -> None:
    """Raise VerifyException unless a tensor's elements are among those allowed."""
    dims_of(type_)
    if element_of(type_) not in allowed:
        names = ", ".join(map(str, allowed))
        hint = "; cast it to f32 first" if element_of(type_) in STORAGE else ""
        raise VerifyException(f"{what}: expected elements of {names}, got {spell(type_)}{hint}")


def check_axes(what: str, type_: Attribute, axes: Sequence[int]) -> None:
    """Raise VerifyException unless the axes are different ones of a tensor."""
    rank = len(dims_of(type_))
    if len(set(axes)) != len(axes) or not all(0 <= a < rank for a in axes):
        allowed = f"different axes from 0 to {rank - 1}" if rank else "no axes"
        raise VerifyException(f"{what}: expected {allowed} of {spell(type_)}, got {list(axes)}")


def with_element(type_: Attribute, element: Attribute) -> TensorType[Attribute]:
    """Return a tensor type with other elements."""
    return tensor(dims_of(type_), element)


def reduced(what: str, type_: Attribute, axes: Sequence[int]) -> TensorType[Attribute]:
    """Return the type without some axes."""
    check_axes(what, type_, axes)
    kept = [d for i, d in enumerate(dims_of(type_)) if i not in axes]
    return tensor(kept, element_of(type_))


def transposed(what: str, type_: Attribute, order: Sequence[int]) -> TensorType[Attribute]:
    """Return the type whose axis i is axis order[i] of the given one."""
    check_axes(what, type_, order)
    dims = dims_of(type_)
    if len(order) != len(dims):
        raise VerifyException(
            f"{what}: expected an order of all {len(dims)} axes of {spell(type_)}, "
            f"got {list(order)}"
        )
    return tensor([dims[i] for i in order], element_of(type_))


def check_reshape(what: str, type_: Attribute, result: Attribute) -> None:
    """
    Raise VerifyException where a reshape changes the elements or their number.

    Where names differ, the module's table decides (`rlx.passes.verify_dims`).
    """
    old, new = dims_of(type_), dims_of(result)
    names = [sorted(d for d in dims if isinstance(d, str)) for dims in (old, new)]
    counts = [prod(d for d in dims if isinstance(d, int)) for dims in (old, new)]
    if element_of(type_) != element_of(result) or (names[0] == names[1] and counts[0] != counts[1]):
        raise VerifyException(
            f"{what}: expected as many elements of the same type, "
            f"got {spell(type_)} and {spell(result)}"
        )


def check_slice(
    what: str, type_: Attribute, starts: Sequence[int], steps: Sequence[int], result: Attribute
) -> None:
    """Raise VerifyException where a slice leaves its tensor, or cuts a dimension with a name."""
    old, new = dims_of(type_), dims_of(result)
    if element_of(type_) != element_of(result):
        raise VerifyException(
            f"{what}: expected the elements of {spell(type_)}, got {spell(result)}"
        )
    if not len(old) == len(new) == len(starts) == len(steps):
        raise VerifyException(
            f"{what}: expected a start and a step for each axis of {spell(type_)}, "
            f"got {list(starts)} and {list(steps)} for {spell(result)}"
        )
    for size, part, start, step in zip(old, new, starts, steps, strict=True):
        whole = size == part and start == 0 and step == 1
        inside = (
            isinstance(size, int)
            and isinstance(part, int)
            and start >= 0
            and step >= 1
            and start + max(part - 1, 0) * step < max(size, start + 1)
            and start + part <= size
        )
        if not whole and not inside:
            raise VerifyException(
                f"{what}: elements {start}, {start} + {step}, ... of a dimension {size} can't be "
                f"{part} elements: a dimension with a name is taken whole"
            )


def narrowed(what: str, type_: Attribute, axis: int, size: Dim) -> TensorType[Attribute]:
    """Return the type with another size along an axis."""
    check_axes(what, type_, [axis])
    dims = list(dims_of(type_))
    dims[axis] = size
    return tensor(dims, element_of(type_))


def check_concat(what: str, types: Sequence[Attribute], axis: int, result: Attribute) -> None:
    """Raise VerifyException where parts don't make up the result along an axis."""
    if not types:
        raise VerifyException(f"{what}: expected a part or more, got none")
    for type_ in (*types, result):
        check_axes(what, type_, [axis])
    parts = [dims_of(t) for t in types]
    dims = dims_of(result)
    others = {(*d[:axis], *d[axis + 1 :]) for d in (*parts, dims)}
    elements = {element_of(t) for t in (*types, result)}
    sizes = [d[axis] for d in parts]
    numbers = [s for s in sizes if isinstance(s, int)]
    # A dimension with a name is looked up in the module's table, by `rlx.passes.verify_dims`.
    fits = dims[axis] == sum(numbers) if len(numbers) == len(sizes) else isinstance(dims[axis], str)
    if len(others) > 1 or len(elements) > 1 or not fits:
        given = ", ".join(map(spell, types))
        raise VerifyException(
            f"{what}: expected parts that differ along axis {axis} only and sum up to the result "
            f"{spell(result)}, got {given}"
        )


def check_broadcast(what: str, type_: Attribute, result: Attribute) -> None:
    """Raise VerifyException unless a tensor's dimensions, aligned at the last, fit or are 1."""
    old, new = dims_of(type_), dims_of(result)
    fits = len(old) <= len(new) and all(
        a in (1, b) for a, b in zip(old, new[len(new) - len(old) :], strict=True)
    )
    if not fits or element_of(type_) != element_of(result):
        raise VerifyException(
            f"{what}: expected dimensions that are those of the result or 1, aligned at the last, "
            f"got {spell(type_)} and {spell(result)}"
        )


def scalar(type_: Attribute) -> TensorType[Attribute]:
    """Return the type without dimensions."""
    return tensor([], element_of(type_))


def padded(
    what: str, type_: Attribute, low: Sequence[int], high: Sequence[int], between: Sequence[int]
) -> TensorType[Attribute]:
    """Return the type with elements added to each axis; only dimensions of numbers may grow."""
    dims = dims_of(type_)
    if not len(low) == len(high) == len(between) == len(dims):
        raise VerifyException(
            f"{what}: expected three counts for each axis of {spell(type_)}, "
            f"got {list(low)}, {list(high)} and {list(between)}"
        )
    if min((*low, *high, *between), default=0) < 0:
        raise VerifyException(
            f"{what}: expected counts from 0, got {list(low)}, {list(high)} and {list(between)}"
        )
    new: list[Dim] = []
    for d, a, b, c in zip(dims, low, high, between, strict=True):
        if isinstance(d, str) and (a or b or c):
            raise VerifyException(
                f"{what}: expected a result type with a name for the padded dimension {d}"
            )
        new.append(d if isinstance(d, str) else a + d + max(d - 1, 0) * c + b)
    return tensor(new, element_of(type_))


def check_pad(
    what: str,
    type_: Attribute,
    low: Sequence[int],
    high: Sequence[int],
    between: Sequence[int],
    result: Attribute,
) -> None:
    """
    Raise VerifyException where a result isn't the padded tensor.

    The module's table says how a dimension with a name grows (`rlx.passes.verify_dims`).
    """
    dims, new = dims_of(type_), dims_of(result)
    counts = list(zip(low, high, between, strict=False))
    named = [i for i, d in enumerate(dims) if isinstance(d, str) and i < len(counts)]
    plain = [1 if i in named else d for i, d in enumerate(dims)]
    kept = [[0 if i in named else n for i, n in enumerate(c)] for c in (low, high, between)]
    wanted = dims_of(padded(what, tensor(plain, element_of(type_)), *kept))
    fits = len(new) == len(dims) and all(
        isinstance(new[i], str) and not counts[i][2] and (any(counts[i]) or new[i] == dims[i])
        if i in named
        else new[i] == wanted[i]
        for i in range(len(dims))
    )
    if not fits or element_of(type_) != element_of(result):
        raise VerifyException(
            f"{what}: expected {spell(type_)} with {list(low)} elements before, {list(high)} after "
            f"and {list(between)} between, got {spell(result)}: a dimension with a name grows to "
            "another with a name, and has none between"
        )


def windows(
    what: str, type_: Attribute, axis: int, size: int, stride: int, step: int
) -> TensorType[Attribute]:
    """Return the type with `[windows, size]` for an axis of a number of elements."""
    check_axes(what, type_, [axis])
    dims = dims_of(type_)
    n = dims[axis]
    if min(size, stride, step) < 1 or not isinstance(n, int) or n < (size - 1) * step + 1:
        raise VerifyException(
            f"{what}: expected an axis that holds a window of {size} elements, {step} apart, "
            f"every {stride} elements, got axis {axis} of {spell(type_)}"
        )
    count = (n - (size - 1) * step - 1) // stride + 1
    return tensor([*dims[:axis], count, size, *dims[axis + 1 :]], element_of(type_))


def gathered(what: str, type_: Attribute, ids: Attribute, axis: int) -> TensorType[Attribute]:
    """Return `type[axis := ids]`, where each index takes the place of an axis."""
    check_axes(what, type_, [axis])
    check_element(f"{what} indices", ids, (i32, i64))
    dims = dims_of(type_)
    return tensor([*dims[:axis], *dims_of(ids), *dims[axis + 1 :]], element_of(type_))


def dot(
    what: str, lhs: Attribute, rhs: Attribute, transposed: tuple[bool, bool]
) -> TensorType[Attribute]:
    """
    Return the type of `[batch..., m, k] x [batch..., k, n]`; `transposed` swaps the last two.

    Sums have the elements of the operands; those of i8, and of u8 and i8, are i32.
    """
    check_element(what, lhs, dict.fromkeys(left for left, _ in _SUMMED))
    sides: list[tuple[Dim, ...]] = []
    for type_, swap in ((lhs, transposed[0]), (rhs, transposed[1])):
        dims = dims_of(type_)
        if len(dims) < 2:
            raise VerifyException(f"{what}: expected matrices, got {spell(lhs)} and {spell(rhs)}")
        sides.append((*dims[:-2], dims[-1], dims[-2]) if swap else dims)
    (*batch, m, k), (*other, k2, n) = sides
    total = _SUMMED.get((element_of(lhs), element_of(rhs)))
    if batch != other or k != k2 or total is None:
        raise VerifyException(
            f"{what}: expected [batch..., m, k] and [batch..., k, n] of one element type, "
            f"got {spell(lhs)} and {spell(rhs)}"
        )
    return tensor([*batch, m, n], total)


def sdpa(what: str, query: Attribute, keys: Attribute, values: Attribute) -> TensorType[Attribute]:
    """Return the type of attention of a query on keys and values; see `mir.sdpa`."""
    check_element(what, query, FLOATS)
    q, k, v = dims_of(query), dims_of(keys), dims_of(values)
    fits = len(q) == len(k) == len(v) >= 3 and q[:-3] == k[:-3] == v[:-3]
    fits = fits and q[-1] == k[-1] and k[-3:-1] == v[-3:-1]
    same = element_of(query) == element_of(keys) == element_of(values)
    heads, kv_heads = (d[-3] if len(d) >= 3 else 0 for d in (q, k))
    whole = False
    if isinstance(heads, int) and isinstance(kv_heads, int):
        whole = kv_heads > 0 and heads % kv_heads == 0
    if not (fits and same and whole):
        raise VerifyException(
            f"{what}: expected a query [batch..., heads, m, d], keys [batch..., kv_heads, n, d] and"
            f" values [batch..., kv_heads, n, e] with heads a multiple of kv_heads, "
            f"got {spell(query)}, {spell(keys)} and {spell(values)}"
        )
    return tensor([*q[:-1], v[-1]], element_of(query))


def check_mask(what: str, mask: Attribute, query: Attribute, keys: Attribute) -> None:
    """A mask of attention has a number for each query and key of each batch."""
    q, k = dims_of(query), dims_of(keys)
    wanted = tensor([*q[:-3], q[-2], k[-2]], element_of(query))
    if mask != wanted:
        raise VerifyException(f"{what}: expected a mask {spell(wanted)}, got {spell(mask)}")


def check_norm(what: str, type_: Attribute, *parameters: Attribute) -> None:
    """A norm is over the last dimension; its parameters have one element for each of it."""
    check_softmax(what, type_)
    wanted = tensor(dims_of(type_)[-1:], element_of(type_))
    for given in parameters:
        if given != wanted:
            raise VerifyException(
                f"{what}: expected {spell(wanted)} for {spell(type_)}, got {spell(given)}"
            )


def check_softmax(what: str, type_: Attribute) -> None:
    check_element(what, type_, FLOATS)
    if not dims_of(type_):
        raise VerifyException(f"{what}: expected a dimension or more, got {spell(type_)}")


def check_scalar(what: str, type_: Attribute) -> None:
    """A condition is one i1."""
    if dims_of(type_) != () or element_of(type_) != i1:
        raise VerifyException(f"{what}: expected a condition of the type tensor<i1>, got {type_}")
