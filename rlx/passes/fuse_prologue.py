"""
What makes an operand of a product from fewer bytes is computed while the product packs it.

Windows of an image, casts of narrow numbers with their scales, and repeated matrices take more
bytes than what they are made of: in a buffer of their own they would be written and read again. A
product packs its operands in any case, so that their elements are computed there, several times
where it packs them several times. So only what is cheap joins:
- Moves, casts to as many bytes or more, constants, and sums and products that nothing else uses.
- Elements that follow each other in the operand must do so in what they are made of, or be the
  same: else a block would be read across the rows of memory again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16, f32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from rlx.dialects import mir
from rlx.dialects.common import element_bytes, element_of
from rlx.dialects.kinds import BinaryKind
from rlx.passes.fuse_common import Fusion, Join, cannot_group, launch_of, matmuls, users
from rlx.passes.fusion_cost import nbytes, source

_WORTH = 16
"""What is saved is at least this part of the bytes that a product moves."""

_CHEAP = (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL)


def _may_join(op: Operation, dot: mir.DotOp, joined: AbstractSet[Operation]) -> bool:
    """Whether an operation is cheap enough to be computed where a product packs its result."""
    # Of a state it would be read at another time.
    states = mir.LoadStateOp | mir.AppendOp | mir.FirstRowsOp
    if launch_of(op) is not op or any(isinstance(v.owner, states) for v in op.operands):
        return False
    if isinstance(op, mir.ConstantOp | mir.IotaOp):
        return True
    if isinstance(op, mir.MOVES):
        return not isinstance(op, mir.ConcatOp | mir.GatherOp)
    # What runs once stays where it is, and so does what others use.
    launch = launch_of(dot)
    alone = all(user in joined or launch_of(user) is launch for user in users(op.results[0]))
    if not alone or op.attributes.get(mir.PHASE) != launch.attributes.get(mir.PHASE):
        return False
    if isinstance(op, mir.CastOp):
        return element_bytes(op.result.type) >= element_bytes(op.input.type)
    return isinstance(op, mir.BinaryOp) and op.kind.data in _CHEAP


def _makers(value: SSAValue, dot: mir.DotOp, turns: bool) -> list[Operation]:
    """Return what makes an operand, in order; transposes are among it where `turns`."""
    found: list[Operation] = []
    joined: set[Operation] = set()

    def add(value: SSAValue) -> None:
        op = value.owner
        if not isinstance(op, Operation) or op in joined or not _may_join(op, dot, joined):
            return
        if isinstance(op, mir.TransposeOp) and not turns:
            return
        joined.add(op)
        for operand in op.operands:
            add(operand)
        found.append(op)

    add(value)
    return found


def _reads_rows(value: SSAValue, makers: Sequence[Operation]) -> bool:
    """Whether elements along an operand's last axis are read along last axes, or are the same."""
    from rlx.lowering.tensor_lanes import lane_axes
    from rlx.lowering.tensor_nodes import Graph

    graph = Graph(None, source)
    for op in makers:
        graph.add(op)
    node = graph.node(value)
    for n, axis in lane_axes(node, len(node.dims) - 1):
        long = [i for i, d in enumerate(n.dims) if not d.is_one]
        if n.op == "input" and axis is not None and long and axis != long[-1]:
            return False
    return True


@dataclass
class MoveIntoDotKernel(RewritePattern):
    """Copy what makes an operand into the kernel of a product."""

    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: mir.DotOp, rewriter: PatternRewriter) -> None:
        for value in op.operands:
            for turns in (True, False):
                makers = _makers(value, op, turns)
                if not makers or not self._pays(op, value, makers):
                    continue
                join = Join([launch_of(op)], makers)
                reason = self._reason(join, value, makers)
                if reason is None or not turns:
                    self.fusion.attempt(op, [join], reason, rewriter)
                    break

    def _pays(self, dot: mir.DotOp, value: SSAValue, makers: Sequence[Operation]) -> bool:
        """Whether bytes are saved that count beside those that the product moves."""
        made = {r for op in makers for r in op.results}
        read = {v for op in makers for v in op.operands if v not in made}

        def total(values: Iterable[SSAValue]) -> int:
            return sum(nbytes(v.type, self.fusion.sizes) for v in values)

        return (total([value]) - total(read)) * _WORTH >= total([*dot.operands, dot.result])

    def _reason(self, join: Join, value: SSAValue, makers: Sequence[Operation]) -> str | None:
        if not _reads_rows(value, makers):
            return "it would be read across the rows of memory"
        reason = cannot_group(join.members, join.copied)
        if reason:
            return reason
        # Many modules, for products alone.
        from rlx.lowering.dot import refusal

        return refusal(join.launch.ops, join.launch.yielded, source)


@dataclass
class MoveCastIntoMatmulKernel(RewritePattern):
    """
    Move a cast to bf16 into the matmul kernel that is its only consumer.

    That is where nothing computes what is cast: else what does stores half the bytes.
    """

    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: mir.CastOp, rewriter: PatternRewriter) -> None:
        given = isinstance(op.input.owner, Block) and element_of(op.input.type) == f32
        readers = users(op.result)
        if not given or element_of(op.result.type) != bf16 or launch_of(op) is not op:
            return
        kernels = {launch_of(user) for user in readers if isinstance(user, mir.MatmulOp)}
        if len(kernels) != 1 or not all(isinstance(user, mir.MatmulOp) for user in readers):
            return
        (kernel,) = kernels
        others = any(source(m.input) is not op.result for m in matmuls(kernel))
        reason = "the kernel multiplies other rows too" if others else None
        reason = reason or cannot_group([op, kernel])
        self.fusion.attempt(op, [Join([op, kernel])], reason, rewriter)


@dataclass(frozen=True)
class FuseProloguePass(ModulePass):
    """
    Copy moves, casts and scales that make an operand of a product into its kernel.

    %w = mir.cast %q; %y = mir.dot %x, %w
        --> %y = mir.kernel { %0 = mir.cast %q; %1 = mir.dot %x, %0; mir.yield %1 }

    `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-prologue"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        fusion.run([MoveIntoDotKernel(fusion), MoveCastIntoMatmulKernel(fusion)], op)
