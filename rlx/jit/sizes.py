"""Sizes of dimensions that a trace leaves open: integers that arithmetic and comparisons take."""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn, SupportsIndex, TypeAlias

from rlx.jit.dims import Dim
from rlx.jit.trace import Trace, current, fail

SizeLike: TypeAlias = "int | Size"


def size(trace: Trace, dim: Dim) -> SizeLike:
    """Return a dimension as Python code sees it: an int, or a Size where it is a name."""
    dim = trace.dims.find(dim)
    return dim if isinstance(dim, int) else Size(trace, dim)


def dim_of(x: object, what: str) -> Dim:
    """Return the dimension that an int or a Size stands for; raises RlxError for anything else."""
    if isinstance(x, Size):
        return current(what).dims.find(x.name)
    if isinstance(x, SupportsIndex) and not hasattr(x, "trace"):
        return index(x)
    raise fail(f"{what}: expected sizes that are integers, got {type(x).__name__}")


class Size:
    """
    The size of a dimension with a name, `x.shape[0]`.

    `+`, `*`, `-` of a number and `//` of a number give sizes; in arithmetic with arrays it is an
    integer. A comparison is decided by the sizes of the call that is traced; a call whose sizes
    decide it otherwise is traced again.
    """

    __slots__ = ("name", "trace")
    __array_ufunc__ = None

    def __init__(self, trace: Trace, name: str):
        self.trace = trace
        self.name = name

    def _derive(self, kind: str, a: object, b: object) -> Any:
        if not isinstance(a, int | Size) or not isinstance(b, int | Size):
            return NotImplemented
        dims = self.trace.dims
        return size(self.trace, dims.derive(kind, dim_of(a, "a size"), dim_of(b, "a size")))

    def __add__(self, other: object) -> Any:
        if isinstance(other, int) and other < 0:
            return self - -other
        return self._derive("+", self, other)

    __radd__ = __add__

    def __mul__(self, other: object) -> Any:
        return self._derive("*", self, other)

    __rmul__ = __mul__

    def __sub__(self, other: object) -> Any:
        if isinstance(other, int) and other < 0:
            return self + -other
        if isinstance(other, int | Size) and self < other:
            raise fail(f"a size: expected one that is not negative, got {self} - {other}")
        return self._derive("-", self, other)

    def __floordiv__(self, other: object) -> Any:
        if not isinstance(other, int) or other < 1:
            return NotImplemented
        # floor(n / k) is ceil((n - (k - 1)) / k), 0 below k.
        return self._derive("ceildiv", self - (other - 1) if self >= other else 0, other)

    def __truediv__(self, other: object) -> Any:
        from rlx.jit.core import lift

        return lift(self) / other

    def __rtruediv__(self, other: object) -> Any:
        from rlx.jit.core import lift

        return other / lift(self)

    def __mod__(self, other: object) -> Any:
        if not isinstance(other, int) or other < 1:
            return NotImplemented
        if self.trace.dims.decide("%", self.name, other):
            return 0
        return self.trace.dims.fix(self.name) % other

    def _compare(self, relation: str, other: object, swap: bool = False) -> Any:
        if not isinstance(other, int | Size):
            return NotImplemented
        pair = (self.name, dim_of(other, "a size"))
        return self.trace.dims.decide(relation, *(pair[::-1] if swap else pair))

    def __eq__(self, other: object) -> Any:
        return self._compare("==", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("!=", other)

    def __lt__(self, other: object) -> Any:
        return self._compare("<", other)

    def __le__(self, other: object) -> Any:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> Any:
        return self._compare("<", other, swap=True)

    def __ge__(self, other: object) -> Any:
        return self._compare("<=", other, swap=True)

    def __bool__(self) -> bool:
        return not self == 0

    def __hash__(self) -> int:
        return hash(self.name)

    def _number(self, what: str) -> NoReturn:
        raise fail(
            f"{what} of a size that differs from call to call: fix it with "
            "@rlx.jit(specialize=...), or use what takes sizes (rlx.numpy.zeros, rlx.numpy.arange, "
            "rlx.fori_loop)"
        )

    def __index__(self) -> int:
        self._number("the number")

    def __int__(self) -> int:
        self._number("int()")

    def __float__(self) -> float:
        self._number("float()")

    def __repr__(self) -> str:
        return f"{self.name} (here {self.trace.dims.hint(self.name)})"
