"""Values of LLVM IR as text: a type and a spelling; constants, and the names of types."""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias


class Value(NamedTuple):
    """An SSA value or a constant."""

    type: str
    name: str

    @property
    def lanes(self) -> int:
        """Return the number of vector lanes, 1 for a scalar."""
        return int(self.type[1:].split(" x ")[0]) if self.type[0] == "<" else 1

    @property
    def element(self) -> str:
        return self.type[1:-1].split(" x ")[1] if self.type[0] == "<" else self.type

    @property
    def constant(self) -> int | None:
        """Return the value of an integer constant, None for anything else."""
        return int(self.name) if self.name.lstrip("-").isdigit() else None


Index: TypeAlias = Value | int
"""An i64 value, or a Python integer in its place."""


def vec(lanes: int, element: str) -> str:
    """Return the type of a vector, the scalar's own for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def i64(n: int) -> Value:
    return Value("i64", str(n))


def i32(n: int) -> Value:
    return Value("i32", str(n))


def float_bits(x: float) -> str:
    """Return the LLVM spelling of a binary32 constant: its value as the bits of a double."""
    (single,) = struct.unpack("<f", struct.pack("<f", x))
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def f32(x: float) -> Value:
    return Value("float", float_bits(x))


def f64(x: float) -> Value:
    return Value("double", f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}")


def mangle(type_: str) -> str:
    """Return the suffix that LLVM gives an overloaded intrinsic for a type."""
    lanes = type_[1:].split(" x ")[0] if type_[0] == "<" else ""
    element = type_[1:-1].split(" x ")[1] if lanes else type_
    short = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
    return f"{'v' + lanes if lanes else ''}{short.get(element, element)}"
