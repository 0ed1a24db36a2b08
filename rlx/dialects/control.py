"""
Control flow of HIR and MIR: what a condition, a value of the program, decides at run time.

The regions use outer values directly. A branch that is not taken does not run, and a loop runs as
long as its condition holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    operand_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import infer
from rlx.dialects.common import spell
from rlx.dialects.definition import op_definition
from rlx.dialects.ops import AnyTensor


@op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    name = "mir.yield"
    traits = traits_def(IsTerminator(), Pure())


def yielded(block: Block) -> YieldOp:
    """Return the terminator of a block of a valid operation."""
    last = block.last_op
    assert isinstance(last, YieldOp)
    return last


def _spell_all(types: Sequence[Attribute]) -> str:
    return f"({', '.join(map(spell, types))})"


def _check_yields(op: IRDLOperation, what: str, block: Block, wanted: Sequence[Attribute]) -> None:
    if not isinstance(block.last_op, YieldOp):
        raise VerifyException(f"{op.name}: expected the {what} to end in mir.yield")
    given = [v.type for v in block.last_op.arguments]
    if given != list(wanted):
        raise VerifyException(
            f"{op.name}: expected the {what} to yield {_spell_all(wanted)}, got {_spell_all(given)}"
        )


def _check_arguments(
    op: IRDLOperation, what: str, block: Block, wanted: Sequence[Attribute]
) -> None:
    given = [a.type for a in block.args]
    if given != list(wanted):
        raise VerifyException(
            f"{op.name}: expected the {what} to have the arguments {_spell_all(wanted)}, "
            f"got {_spell_all(given)}"
        )


@op_definition
class IfOp(IRDLOperation):
    """Runs one of two regions, by a condition `tensor<i1>`; its results are what that yields."""

    name = "mir.if"
    condition = operand_def(AnyTensor)
    res = var_result_def(AnyTensor)
    then = region_def("single_block")
    otherwise = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = (
        "$condition `->` `(` type($res) `)` $then `else` $otherwise attr-dict-with-keyword"
        " `:` type($condition)"
    )

    def __init__(
        self, condition: SSAValue, then: Block, otherwise: Block, types: Sequence[Attribute]
    ):
        super().__init__(
            operands=[condition],
            regions=[Region(then), Region(otherwise)],
            result_types=[types],
        )

    def verify_(self) -> None:
        infer.check_scalar(self.name, self.condition.type)
        for what, region in (("then region", self.then), ("else region", self.otherwise)):
            _check_arguments(self, what, region.block, [])
            _check_yields(self, what, region.block, self.res.types)


@op_definition
class WhileOp(IRDLOperation):
    """
    Runs `body` on the carried values as long as `condition` yields true.

    Both regions take the carried values as arguments; the condition yields one `tensor<i1>`, the
    body the next values. The results are the values for which the condition fails.
    """

    name = "mir.while"
    inits = var_operand_def(AnyTensor)
    res = var_result_def(AnyTensor)
    condition = region_def("single_block")
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = (
        "`(` $inits `)` $condition `do` $body attr-dict-with-keyword `:`"
        " functional-type($inits, $res)"
    )

    def __init__(self, inits: Sequence[SSAValue], condition: Block, body: Block):
        super().__init__(
            operands=[inits],
            regions=[Region(condition), Region(body)],
            result_types=[[v.type for v in inits]],
        )

    def verify_(self) -> None:
        types = self.inits.types
        if list(types) != list(self.res.types):
            raise VerifyException(
                f"{self.name}: expected results of the types that are carried, {_spell_all(types)},"
                f" got {_spell_all(self.res.types)}"
            )
        for what, region in (("condition", self.condition), ("body", self.body)):
            _check_arguments(self, what, region.block, types)
        if not isinstance(self.condition.block.last_op, YieldOp):
            raise VerifyException(f"{self.name}: expected the condition to end in mir.yield")
        given = [v.type for v in self.condition.block.last_op.arguments]
        if len(given) != 1:
            raise VerifyException(
                f"{self.name}: expected the condition to yield one tensor<i1>, "
                f"got {_spell_all(given)}"
            )
        infer.check_scalar(self.name, given[0])
        _check_yields(self, "body", self.body.block, types)
