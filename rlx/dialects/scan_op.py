"""The loop of HIR along an axis: what it carries, what it goes over, what it stacks."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import Dim, dims_of, element_of, spell, tensor
from rlx.dialects.control import YieldOp
from rlx.dialects.definition import op_definition
from rlx.dialects.ops import AnyTensor


@op_definition
class ScanOp(IRDLOperation):
    """
    Runs `body` on the elements along the first axis of `xs`, in order, and carries values.

    The body takes the carried values and an element of each of `xs`, and uses outer values
    directly; it yields the next carried values, then outputs. The results are the carried values at
    the end, and the outputs stacked along a new first axis. All first axes have one length, which
    is known at run time only where it has a name; there is one at least.
    """

    name = "hir.scan"
    inits = var_operand_def(AnyTensor)
    xs = var_operand_def(AnyTensor)
    res = var_result_def(AnyTensor)
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = (
        "`(` $inits `)` `over` `(` $xs `)` $body attr-dict-with-keyword `:` `(` type($inits) `)`"
        " `over` `(` type($xs) `)` `->` `(` type($res) `)`"
    )

    def __init__(
        self,
        inits: Sequence[SSAValue],
        xs: Sequence[SSAValue],
        body: Block,
        length: Dim | None = None,
    ):
        """Take a body that ends in its yield; `length` is needed where there are no `xs`."""
        n = dims_of(xs[0].type)[0] if length is None else length
        last = body.last_op
        outputs = last.operands[len(inits) :] if isinstance(last, YieldOp) else ()
        super().__init__(
            operands=[inits, xs],
            regions=[Region(body)],
            result_types=[[*(v.type for v in inits), *(stacked(v.type, n) for v in outputs)]],
        )

    @property
    def length(self) -> Dim:
        """Return how many elements the loop goes over."""
        along = [*self.xs.types, *self.res.types[len(self.inits) :]]
        return dims_of(along[0])[0]

    def verify_(self) -> None:
        inits, outputs = list(self.inits.types), list(self.res.types)[len(self.inits) :]
        along = [dims_of(t) for t in (*self.xs.types, *outputs)]
        if not along or any(d[:1] != along[0][:1] or not d for d in along):
            given = ", ".join(map(spell, [*self.xs.types, *outputs])) or "none"
            raise VerifyException(
                f"{self.name}: expected xs and outputs with first axes of one length, got {given}"
            )
        wanted = [*inits, *(element(t) for t in self.xs.types)]
        self._check("arguments", [a.type for a in self.body.block.args], wanted)
        last = self.body.block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException(f"{self.name}: expected the body to end in mir.yield")
        wanted = [*inits, *(element(t) for t in outputs)]
        self._check("yields", [v.type for v in last.arguments], wanted)
        self._check("results", list(self.res.types)[: len(inits)], inits)

    def _check(self, what: str, given: Sequence[Attribute], wanted: Sequence[Attribute]) -> None:
        if list(given) != list(wanted):
            a, b = (f"({', '.join(map(spell, types))})" for types in (wanted, given))
            raise VerifyException(f"{self.name}: expected the {what} {a}, got {b}")


def element(type_: Attribute) -> Attribute:
    """Return the type of an element along the first axis."""
    return tensor(dims_of(type_)[1:], element_of(type_))


def stacked(type_: Attribute, length: Dim) -> Attribute:
    """Return the type of values along a new first axis."""
    return tensor([length, *dims_of(type_)], element_of(type_))
