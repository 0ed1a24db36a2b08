"""LIR's operations that hold others: kernels, the program, and its loops and branches."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import I64, IndexType, IntegerAttr, StringAttr, SymbolNameConstraint
from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    operand_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import infer
from rlx.dialects.definition import op_definition
from rlx.dialects.mir import YieldOp
from rlx.dialects.ops import AnyTensor, i64_attr


def check_at_least(what: str, low: int, **given: IntegerAttr[I64]) -> None:
    """Raise VerifyException for a number below `low`."""
    for name, value in given.items():
        if value.value.data < low:
            raise VerifyException(f"{what}: expected {name} >= {low}, got {value.value.data}")


def check_layers(what: str, first: IntegerAttr[I64], last: IntegerAttr[I64]) -> None:
    """Raise VerifyException unless there is a layer in `first .. last - 1`."""
    if not 0 <= first.value.data < last.value.data:
        raise VerifyException(
            f"{what}: expected layers first to last with 0 <= first < last, "
            f"got {first.value.data} to {last.value.data}"
        )


@op_definition
class KernelOp(IRDLOperation):
    """What one launch computes: arguments are what it reads, yielded values what it writes."""

    name = "lir.kernel"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), IsolatedFromAbove())
    assembly_format = "$sym_name $body attr-dict-with-keyword"

    def __init__(self, name: str, body: Block):
        super().__init__(properties={"sym_name": StringAttr(name)}, regions=[Region(body)])

    @property
    def yielded(self) -> YieldOp:
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last

    def verify_(self) -> None:
        if not isinstance(self.body.block.last_op, YieldOp):
            raise VerifyException(
                f"lir.kernel @{self.sym_name.data}: expected a body that ends in mir.yield"
            )
        if not re.fullmatch(r"[\w.$]+", self.sym_name.data, re.ASCII):
            raise VerifyException(
                f"lir.kernel @{self.sym_name.data!r}: expected a name of letters, digits, _ . $"
            )


@op_definition
class ProgramOp(IRDLOperation):
    """Buffers and launches in order; sizes in bytes."""

    name = "lir.program"
    sym_name = prop_def(SymbolNameConstraint())
    arena_size = prop_def(IntegerAttr[I64])
    lower_bound = prop_def(IntegerAttr[I64])
    alignment = prop_def(IntegerAttr[I64])
    state_size = prop_def(IntegerAttr[I64])
    weights_size = prop_def(IntegerAttr[I64])
    fingerprint = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "$sym_name `arena` $arena_size `lower_bound` $lower_bound `alignment` $alignment"
        " `state` $state_size `weights` $weights_size `fingerprint` $fingerprint"
        " $body attr-dict-with-keyword"
    )

    def __init__(
        self,
        name: str,
        *,
        arena_size: int,
        lower_bound: int,
        alignment: int,
        state_size: int,
        weights_size: int,
        fingerprint: str,
        body: Block,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "arena_size": i64_attr(arena_size),
                "lower_bound": i64_attr(lower_bound),
                "alignment": i64_attr(alignment),
                "state_size": i64_attr(state_size),
                "weights_size": i64_attr(weights_size),
                "fingerprint": StringAttr(fingerprint),
            },
            regions=[Region(body)],
        )

    def verify_(self) -> None:
        what = f"lir.program @{self.sym_name.data}"
        check_at_least(
            what,
            0,
            arena=self.arena_size,
            lower_bound=self.lower_bound,
            state=self.state_size,
            weights=self.weights_size,
        )
        check_at_least(what, 1, alignment=self.alignment)
        if self.body.block.args:
            raise VerifyException(f"{what}: expected a body without arguments")


@op_definition
class LoopOp(IRDLOperation):
    """Runs its body for each layer in `first .. last - 1`."""

    name = "lir.loop"
    first = prop_def(IntegerAttr[I64])
    last = prop_def(IntegerAttr[I64])
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$first `to` $last $body attr-dict-with-keyword"

    def __init__(self, first: int, last: int, body: Block):
        super().__init__(
            properties={"first": i64_attr(first), "last": i64_attr(last)}, regions=[Region(body)]
        )

    def verify_(self) -> None:
        if [a.type for a in self.body.block.args] != [IndexType()]:
            raise VerifyException("lir.loop: expected a body with one argument, the layer's index")
        check_layers(self.name, self.first, self.last)


def _check_region(what: str, block: Block) -> None:
    if block.args:
        raise VerifyException(f"{what}: expected regions without arguments")


@op_definition
class IfOp(IRDLOperation):
    """Every thread reads the condition, one i1, and runs the launches of one region."""

    name = "lir.if"
    condition = operand_def(AnyTensor)
    then = region_def("single_block")
    otherwise = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = (
        "$condition `:` type($condition) $then `else` $otherwise attr-dict-with-keyword"
    )

    def __init__(self, condition: SSAValue, then: Block, otherwise: Block):
        super().__init__(operands=[condition], regions=[Region(then), Region(otherwise)])

    def verify_(self) -> None:
        infer.check_scalar(self.name, self.condition.type)
        for region in self.regions:
            _check_region(self.name, region.block)


@op_definition
class WhileOp(IRDLOperation):
    """
    Runs `test`, whose launches make the condition, then `body` and again, while it holds.

    Every thread reads the condition, one i1, after each run of `test`.
    """

    name = "lir.while"
    condition = operand_def(AnyTensor)
    test = region_def("single_block")
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$condition `:` type($condition) $test `do` $body attr-dict-with-keyword"

    def __init__(self, condition: SSAValue, test: Block, body: Block):
        super().__init__(operands=[condition], regions=[Region(test), Region(body)])

    def verify_(self) -> None:
        infer.check_scalar(self.name, self.condition.type)
        for region in self.regions:
            _check_region(self.name, region.block)
