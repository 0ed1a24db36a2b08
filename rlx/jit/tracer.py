"""The array that a traced function sees: numpy's operators, methods and protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from rlx.jit.core import Value
from rlx.jit.elementwise import apply, power
from rlx.jit.sizes import SizeLike, size
from rlx.jit.trace import fail

METHODS = (
    "sum prod mean var std max min any all argmax argmin reshape ravel squeeze swapaxes transpose"
    " astype take repeat clip round dot flatten diagonal argsort cumsum cumprod"
).split()
"""Methods that are functions of `rlx.numpy` of the same name."""


class Tracer(Value):
    """
    An array of a traced function, known by its dtype and its dimensions alone.

    Operators, indexing, methods and numpy's functions give other tracers. What needs the values
    themselves, such as `if`, raises RlxError and says what to use instead.
    """

    __slots__ = ()
    __array_priority__ = 1000

    # What is known

    @property
    def shape(self) -> tuple[SizeLike, ...]:
        """The sizes of the axes: ints, and `Size` where calls may differ."""
        return tuple(size(self.trace, d) for d in self.dims)

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> SizeLike:
        return size(self.trace, self.trace.dims.product(self.dims))

    @property
    def T(self) -> Any:
        from rlx.jit.manipulation import transpose

        return transpose(self)

    @property
    def mT(self) -> Any:
        from rlx.jit.manipulation import matrix_transpose

        return matrix_transpose(self)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def real(self) -> Any:
        return self

    def copy(self) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<traced {self.dtype} array of shape {self._shape_text()}>"

    def _shape_text(self) -> str:
        names = [str(self.trace.dims.find(d)) for d in self.dims]
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"

    # Operators are set below. `==` gives an array, so that a tracer has no hash.

    __hash__ = None  # pyright: ignore[reportAssignmentType]: as for arrays

    def __pow__(self, other: object) -> Any:
        return _operand(other) and power(self, other)

    def __rpow__(self, other: object) -> Any:
        return _operand(other) and power(other, self)

    def __divmod__(self, other: object) -> tuple[Any, Any]:
        return apply("floor_divide", self, other), apply("remainder", self, other)

    def __matmul__(self, other: object) -> Any:
        from rlx.jit.linalg import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: object) -> Any:
        from rlx.jit.linalg import matmul

        return matmul(other, self)

    def __getitem__(self, key: object) -> Any:
        from rlx.jit.indexing import index

        return index(self, key)

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise fail(
            "a traced array can't be changed in place: build the result with rlx.numpy.where, "
            "concat or stack"
        )

    def sort(self, *args: object, **options: object) -> NoReturn:
        raise fail("a traced array can't be sorted in place: use rlx.numpy.sort")

    def fill(self, value: object) -> NoReturn:
        raise fail("a traced array can't be filled in place: use rlx.numpy.full_like")

    def __len__(self) -> int:
        return self._length("len()", "use x.shape[0]")

    def __iter__(self) -> Iterator[Any]:
        count = self._length("iteration", "use whole-array operations, rlx.scan or rlx.fori_loop")
        return (self[i] for i in range(count))

    def _length(self, what: str, advice: str) -> int:
        if not self.dims:
            raise TypeError("iteration over a 0-d array" if what == "iteration" else
                            "len() of unsized object")  # fmt: skip
        first = self.trace.dims.find(self.dims[0])
        if isinstance(first, str):
            raise fail(
                f"{what} of a traced array whose length {self._shape_text()} differs from call to "
                f"call: {advice}, or fix the length with @rlx.jit(specialize=...)"
            )
        return first

    def _no_value(self, what: str, advice: str) -> NoReturn:
        raise fail(
            f"{what} needs the value of a traced array, which is known only when the compiled "
            f"function runs: {advice}"
        )

    def __bool__(self) -> bool:
        self._no_value(
            "a condition (if, while, and, or, not)",
            "use rlx.numpy.where to choose elements, rlx.cond or rlx.while_loop for control flow, "
            "& | ~ for logic, or name the argument in static_argnames",
        )

    def __int__(self) -> int:
        self._no_value("int()", "use astype, or name the argument in static_argnames")

    def __float__(self) -> float:
        self._no_value("float()", "use astype, or name the argument in static_argnames")

    def __complex__(self) -> complex:
        self._no_value("complex()", "rlx has no complex numbers")

    def __index__(self) -> int:
        self._no_value(
            "an index or a count",
            "name the argument in static_argnames, index with the array (rlx.numpy.take), or use "
            "rlx.fori_loop for a loop",
        )

    def item(self, *args: object) -> NoReturn:
        self._no_value("item()", "return the array and read it outside")

    def tolist(self) -> NoReturn:
        self._no_value("tolist()", "return the array and read it outside")

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self._no_value(
            "a numpy array made of it",
            "use the function of rlx.numpy, or call this one outside the traced function",
        )

    # numpy's protocols

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> Any:
        from rlx.jit.protocols import ufunc_call

        return ufunc_call(ufunc, method, inputs, options)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[object],
        options: Mapping[str, object],
    ) -> Any:
        from rlx.jit.protocols import function_call

        return function_call(function, args, options)


def _operand(x: object) -> Any:
    """Return NotImplemented for what is no operand, so that Python asks the other side."""
    return NotImplemented if x is None or isinstance(x, str) else True


def _operator(name: str, swap: bool) -> Callable[[Tracer, object], Any]:
    def operate(self: Tracer, other: object) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented
        return apply(name, other, self) if swap else apply(name, self, other)

    return operate


def _unary_operator(name: str) -> Callable[[Tracer], Any]:
    return lambda self: apply(name, self)


def _method(name: str) -> Callable[..., Any]:
    def call(self: Tracer, *args: object, **options: object) -> Any:
        from rlx import numpy as functions

        return getattr(functions, name)(self, *args, **options)

    return call


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
_COMPARE = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}

for _name, _ufunc in _BINARY.items():
    setattr(Tracer, f"__{_name}__", _operator(_ufunc, False))
    setattr(Tracer, f"__r{_name}__", _operator(_ufunc, True))
for _name, _ufunc in _COMPARE.items():
    setattr(Tracer, f"__{_name}__", _operator(_ufunc, False))
for _name, _ufunc in _UNARY.items():
    setattr(Tracer, f"__{_name}__", _unary_operator(_ufunc))
for _name in METHODS:
    setattr(Tracer, _name, _method(_name))
