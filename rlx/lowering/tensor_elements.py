"""Elements of tensors in registers and in memory, and how they are reduced."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf

from xdsl.dialects.builtin import bf16, f16, f32, f64, i1
from xdsl.ir import Attribute

from rlx.dialects.infer import U8, U32, is_unsigned
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.values import f32 as float_
from rlx.lowering.values import f64 as double
from rlx.lowering.vmath import emit_cast
from rlx.lowering.vmath_basic import maximum, minimum

_REGISTER: dict[Attribute, str] = {
    f32: "float", f64: "double", f16: "i16", bf16: "i16", U8: "i8", U32: "i32",
}  # fmt: skip
HALVES: dict[Attribute, str] = {f16: "half", bf16: "bfloat"}
"""Elements that are only stored and moved, as 16-bit integers; LLVM's type, for casts."""


def register_type(element: Attribute) -> str:
    """Return the LLVM type of one element while it is computed with."""
    return _REGISTER.get(element) or str(element)


def memory_type(element: Attribute) -> str:
    """Return the LLVM type of one element in memory."""
    return "i8" if element == i1 else register_type(element)


def loaded(f: Function, element: Attribute, v: Value) -> Value:
    """Return what was loaded from memory as it is computed with."""
    return f.icmp("ne", v, 0) if element == i1 else v


def stored(f: Function, element: Attribute, v: Value) -> Value:
    """Return what is computed with as it is stored in memory."""
    return f.cast("zext", v, vec(v.lanes, "i8")) if element == i1 else v


def converted(f: Function, v: Value, source: Attribute, target: Attribute) -> Value:
    """Return elements as another type's, as `mir.cast` defines it."""
    if source == target:
        return v
    if source in HALVES:
        v = f.cast("bitcast", v, vec(v.lanes, HALVES[source]))
    type_ = HALVES.get(target, register_type(target))
    v = emit_cast(f, v, type_, not is_unsigned(source), not is_unsigned(target))
    return f.cast("bitcast", v, vec(v.lanes, "i16")) if target in HALVES else v


def constant_of(element: Attribute, data: bytes) -> Value:
    """Return the scalar of one element's bytes."""
    if element == f32:
        (bits,) = struct.unpack("<I", data)
        # A signalling NaN would be changed on the way through a double.
        (x,) = struct.unpack("<f", data)
        return float_(x) if x == x else Value("float", f"bitcast (i32 {bits} to float)")
    if element == f64:
        return Value("double", f"0x{int.from_bytes(data, 'little'):016X}")
    if element == i1:
        return Value("i1", "true" if any(data) else "false")
    signed = element not in HALVES
    return Value(register_type(element), str(int.from_bytes(data, "little", signed=signed)))


class Reduction:
    """
    How elements of a type are combined; `mean` is a sum that `finish` divides.

    `highest` is a `max` of floats at a third of the cost: with a NaN among them, any of them.
    """

    def __init__(self, f: Function, kind: str, element: Attribute):
        self.f = f
        self.kind = kind
        self.element = element
        self.type = register_type(element)
        self.combine: Callable[[Value, Value], Value] = self._combination()

    def neutral(self, lanes: int) -> Value:
        """Return the result of no elements."""
        if self.element == i1:
            scalar = Value("i1", "false" if self.kind == "max" else "true")
        elif self.element in (f32, f64):
            x = {"max": -inf, "highest": -inf, "min": inf, "prod": 1.0}.get(self.kind, 0.0)
            scalar = float_(x) if self.element == f32 else double(x)
        else:
            top = 1 << int(self.type[1:]) - 1
            least, most = (0, -1) if is_unsigned(self.element) else (-top, top - 1)
            x = {"max": least, "min": most, "prod": 1}.get(self.kind, 0)
            scalar = Value(self.type, str(x))
        return self.f.splat(scalar, lanes)

    def _combination(self) -> Callable[[Value, Value], Value]:
        f, kind = self.f, self.kind
        if self.element == i1:
            return f.or_ if kind == "max" else f.and_
        if self.element in (f32, f64):
            match kind:
                case "max":
                    return lambda a, b: maximum(f, a, b)
                case "highest":
                    return lambda a, b: f.select(f.fcmp("ogt", a, b), a, b)
                case "min":
                    return lambda a, b: minimum(f, a, b)
                case "prod":
                    return f.fmul
                case _:
                    return f.fadd
        match kind:
            case "max" | "min":
                sign = "u" if is_unsigned(self.element) else "s"
                return lambda a, b: f.intrinsic(f"{sign}{kind}", a.type, a, b)
            case "prod":
                return lambda a, b: f.binary("mul", a, b)
            case _:
                return lambda a, b: f.binary("add", a, b)

    def horizontal(self, accumulators: list[Value]) -> Value:
        """Return vectors combined in pairs, then their lanes by halves."""
        f = self.f
        while len(accumulators) > 1:
            a, b, *rest = accumulators
            accumulators = [*rest, self.combine(a, b)]
        v = accumulators[0]
        while v.lanes > 1:
            half = v.lanes // 2
            if half == 1:
                low, high = f.extract(v, 0), f.extract(v, 1)
            else:
                low, high = (f.shuffle(v, v, range(i, i + half)) for i in (0, half))
            v = self.combine(low, high)
        return v

    def finish(self, v: Value, count: Value) -> Value:
        """Return the result for a combination of `count` elements."""
        if self.kind != "mean":
            return v
        f = self.f
        return f.fdiv(v, f.splat(f.cast("uitofp", count, self.type), v.lanes))
