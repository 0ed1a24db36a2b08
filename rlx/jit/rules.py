"""What numpy's ufuncs do to values of one dtype and shape, where that is one primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from rlx.jit import core
from rlx.jit.core import BOOL, Value

Rule: TypeAlias = Callable[..., Any]
Unary: TypeAlias = Callable[[Any], Any]
Binary: TypeAlias = Callable[[Any, Any], Any]
RULES: dict[str, Rule] = {}
"""Name of a numpy ufunc -> what it does to values of its loop's dtype and of one shape."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


_FLOAT_UNARY = {
    "exp": "exp", "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "arctan": "atan",
    "tanh": "tanh", "sqrt": "sqrt",
}  # fmt: skip
_UNARY = {"negative": "neg", "sign": "sign"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "rint": "round"}
_BINARY = {
    "divide": "div", "remainder": "mod", "arctan2": "atan2", "subtract": "sub",
    "left_shift": "shl", "right_shift": "shr", "float_power": "pow",
}  # fmt: skip
_LOGIC = {"add": ("add", "or"), "multiply": ("mul", "and"), "maximum": ("max", "or"),
          "minimum": ("min", "and"), "bitwise_and": ("and", "and"), "bitwise_or": ("or", "or"),
          "bitwise_xor": ("xor", "xor")}  # fmt: skip
"""Kinds for numbers and for bools."""
COMPARISONS = {
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge",
}  # fmt: skip


def _unary(kind: str) -> Unary:
    return lambda x: core.unary(kind, x)


def _binary(kind: str) -> Binary:
    return lambda a, b: core.binary(kind, a, b)


def logic(number: str, truth: str) -> Binary:
    return lambda a, b: core.binary(truth if a.dtype == BOOL else number, a, b)


def _compare(kind: str) -> Binary:
    return lambda a, b: core.compare(kind, a, b)


def _floats_only(kind: str) -> Unary:
    return lambda x: core.unary(kind, x) if x.dtype.kind == "f" else x


RULES.update({name: _unary(kind) for name, kind in (_FLOAT_UNARY | _UNARY).items()})
RULES.update({name: _floats_only(kind) for name, kind in _ROUNDING.items()})
RULES.update({name: _binary(kind) for name, kind in _BINARY.items()})
RULES.update({name: logic(*kinds) for name, kinds in _LOGIC.items()})
RULES.update({name: _compare(kind) for name, kind in COMPARISONS.items()})


@rule("positive", "conjugate")
def _same(x: Value) -> Any:
    return x


@rule("absolute", "fabs")
def _absolute(x: Value) -> Any:
    return x if x.dtype == BOOL else core.unary("abs", x)


@rule("invert")
def _invert(x: Value) -> Any:
    return core.unary("not", x)


@rule("square")
def _square(x: Value) -> Any:
    return core.binary("mul", x, x)


@rule("reciprocal")
def _reciprocal(x: Value) -> Any:
    return core.binary("div", core.full_like(x, 1), x)


def _logical_rule(kind: str) -> Binary:
    return lambda a, b: core.binary(kind, _truth(a), _truth(b))


def _truth(x: Value) -> Any:
    return core.cast_to(x, BOOL)


RULES.update({f"logical_{kind}": _logical_rule(kind) for kind in ("and", "or", "xor")})


@rule("logical_not")
def _logical_not(x: Value) -> Any:
    return core.unary("not", _truth(x))
