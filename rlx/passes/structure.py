"""What operations say, as text for keys and digests: without names of values, and quickly made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.ir import Attribute, Operation, SSAValue


def structure_of(ops: Iterable[Operation]) -> str:
    """
    Return a text that two lists of operations share where they say the same.

    It is not IR: to print that takes a quarter of the way from HIR to LIR.
    """
    return "\n".join(_Structure().operations(ops))


class _Structure:
    def __init__(self):
        self._values: dict[SSAValue, int] = {}
        self._types: dict[Attribute, str] = {}

    def operations(self, ops: Iterable[Operation]) -> Iterator[str]:
        for op in ops:
            operands = [self._number(v) for v in op.operands]
            for value in op.results:
                self._number(value)
            yield f"{op.name} {operands} {self._types_of(op.results)}"
            # Not kept by attribute, as types are: 0.0 and -0.0 are equal, and differ.
            yield from (f"{name} = {_text(a)}" for name, a in sorted(op.properties.items()))
            yield from (f"{name} := {_text(a)}" for name, a in sorted(op.attributes.items()))
            for region in op.regions:
                for block in region.blocks:
                    for value in block.args:
                        self._number(value)
                    yield f"( {self._types_of(block.args)}"
                    yield from self.operations(block.ops)
                    yield ")"

    def _number(self, value: SSAValue) -> int:
        return self._values.setdefault(value, len(self._values))

    def _types_of(self, values: Iterable[SSAValue]) -> list[str]:
        return [self._type(v.type) for v in values]

    def _type(self, type_: Attribute) -> str:
        text = self._types.get(type_)
        if text is None:
            text = self._types[type_] = str(type_)
        return text


def _text(attribute: Attribute) -> str:
    """Return what an attribute says; the text of a tensor alone has one zero and few NaNs."""
    if isinstance(attribute, DenseIntOrFPElementsAttr):
        tensor = cast(DenseIntOrFPElementsAttr[Any], attribute)
        return f"{tensor.type} {tensor.data.data.hex()}"
    return str(attribute)
