"""
The SSA check that xDSL lacks: every use sees a definition that comes before it.

Control flow is structured: a region has one block. So a value is visible after its definition in
its block and in the regions nested there, up to a region that is isolated from above.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsolatedFromAbove

from rlx.passes.diagnostics import IrError, location_of


def check_ssa(module: ModuleOp) -> None:
    """Raise IrError at the first operation that uses a value where it is not visible."""
    _check_op(module, set())


def _check_op(op: Operation, visible: set[SSAValue]) -> None:
    """Check an operation and its regions against the values visible before it."""
    for operand in op.operands:
        if operand not in visible:
            raise IrError(op, f"{op.name} uses {_explain(op, operand)}")
    inner: set[SSAValue] = set() if _is_isolated(op) else visible
    for region in op.regions:
        if region.first_block is not region.last_block:
            raise IrError(op, f"{op.name}: expected a region of one block, got several")
        if region.first_block is not None:
            _check_block(region.first_block, inner)


def _check_block(block: Block, visible: set[SSAValue]) -> None:
    """Check a block's operations in order; `visible` is the same set afterwards as before."""
    visible.update(block.args)
    for op in block.ops:
        _check_op(op, visible)
        visible.update(op.results)
    visible.difference_update(block.args)
    for op in block.ops:
        visible.difference_update(op.results)


def _is_isolated(op: Operation) -> bool:
    return op.has_trait(IsolatedFromAbove, value_if_unregistered=False)


def _explain(op: Operation, operand: SSAValue) -> str:
    """Say why an operand is not visible at an operation."""
    name = f"%{operand.name_hint}" if operand.name_hint else "a value"
    barrier = _isolated_between(op, operand.owner)
    if barrier is not None:
        return f"{name} from outside {barrier.name}, which is isolated from above"
    owner = operand.owner
    if isinstance(owner, Block):
        assert isinstance(operand, BlockArgument)
        return f"{name}, an argument of a block that does not enclose it"
    place = f" ({location})" if (location := location_of(owner)) is not None else ""
    if owner.parent is not None and owner.parent.find_ancestor_op_in_block(op) is not None:
        return f"{name} before its definition by {owner.name}{place}"
    return f"{name} outside the region that defines it, by {owner.name}{place}"


def _isolated_between(op: Operation, owner: Operation | Block) -> Operation | None:
    """Return the isolated operation that hides the block of `owner` from `op`, if it is one."""
    home = owner if isinstance(owner, Block) else owner.parent
    found: Operation | None = None
    block = op.parent
    while block is not None and block is not home:
        parent = block.parent_op()
        if parent is not None and _is_isolated(parent):
            found = parent
        block = parent.parent if parent is not None else None
    return found if block is not None else None


@dataclass(frozen=True)
class VerifySsaPass(ModulePass):
    """Check that every use of a value sees its definition; the module stays as it is."""

    name = "verify-ssa"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_ssa(op)
