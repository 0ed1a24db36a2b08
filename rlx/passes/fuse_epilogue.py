"""
What consumes a product's rows element by element joins its kernel, as the epilogue.

What may follow `mir.dot` is its generator's to say (`rlx.lowering.dot.refusal`): maps of the
result, with numbers, biases and residuals, of which the kernel gets copies of the broadcasts. What
may follow `mir.matmul` is said here. The rules, with their reasons:
- A value that others use too is yielded beside the operation's result. Nothing is computed twice,
  and the operation still saves its launch and one reading of the value.
- The rows may come from outside as well (a residual), but tables and states must: an epilogue has
  a panel of the kernel's results at hand, never the whole of one. A bias `[n]` and numbers are
  read as they are: the kernel gets copies of their broadcasts.
- Of two kernels that feed an operation the later one takes it, the other's result being ready by
  then. Matmuls whose results meet in one operation have their widths in common, so the kernel can
  compute them together.
- The kernel has its results in panels of 16 features: the heads that rope turns and append stores,
  and the part of a head that rope turns, must be whole panels.
- Reads and writes of state stay in order, and a kernel appends to a state once, because its
  threads don't wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from rlx.dialects import mir
from rlx.dialects.common import Dim, dims_of, element_of
from rlx.dialects.primitives import is_splat
from rlx.passes.fuse_common import (
    Fusion,
    Join,
    cannot_group,
    dots,
    in_order,
    launch_of,
    matmuls,
    parts,
)
from rlx.passes.fusion_cost import source

_PANEL = 16

_ROW_OPERANDS: dict[type[Operation], int] = {
    mir.UnaryOp: 1,
    mir.BinaryOp: 2,
    mir.CastOp: 1,
    mir.RopeOp: 1,
    mir.AppendOp: 1,
}
"""What can end a kernel -> how many of its leading operands it reads row by row."""


def _panel_misfit(op: Operation) -> str | None:
    """Return why heads don't fall on panels of the kernel's results."""
    sizes: dict[str, Dim] = {}
    if isinstance(op, mir.RopeOp | mir.AppendOp):
        sizes["head_dim"] = op.head_dim.value.data
    if isinstance(op, mir.RopeOp):
        sizes["n_rot"] = dims_of(op.cos.type)[1]
    for name, size in sizes.items():
        if not isinstance(size, int) or size % _PANEL:
            return f"{op.name} needs a {name} that is a multiple of {_PANEL}, got {size}"
    return None


def can_fuse_epilogue(op: Operation, kernel: Operation) -> str | None:
    """Return why an operation can't end a matmul kernel (or a lone matmul); None when it can."""
    n = _ROW_OPERANDS.get(type(op))
    if n is None:
        return f"{op.name} does not work row by row"
    if isinstance(op, mir.CastOp) and element_of(op.result.type) != bf16:
        return f"a product's kernel stores f32 or bf16, not {element_of(op.result.type)}"
    inside = {r for o in parts(kernel) for r in o.results}
    rows, wholes = map(source, op.operands[:n]), map(source, op.operands[n:])
    own_rows = inside.intersection(rows)
    if not own_rows:
        return "the kernel does not compute its rows"
    if inside.intersection(wholes):
        return "it needs the whole of a value that the kernel computes"
    if any(isinstance(v.owner, mir.AppendOp | mir.RmsNormOp) for v in own_rows):
        return "it reads a state, or normalised rows, and not what the matmuls give"
    if any(isinstance(v.owner, mir.CastOp) for v in own_rows):
        return "what it reads is rounded for a product, which wants it in memory"
    return _panel_misfit(op) or cannot_group([kernel, op])


def _spread(op: Operation) -> list[Operation]:
    """Return the broadcasts and the numbers that an operation reads, each before its user."""
    found: list[Operation] = []
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, mir.BroadcastOp | mir.ConstantOp) and owner not in found:
            number = owner.operands[0].owner if owner.operands else None
            found += [number] if isinstance(number, mir.ConstantOp) else []
            found.append(owner)
    return [o for o in found if launch_of(o) is o]


def _is_bias(op: Operation) -> bool:
    """Whether an operation gives a number, or spreads one or the vector `[n]` over all rows."""
    if isinstance(op, mir.BroadcastOp):
        dims = dims_of(op.input.type)
        along = dims_of(op.result.type)[-1:] == dims[-1:] and all(d == 1 for d in dims[:-1])
        return along or is_splat(op.input.owner)
    return is_splat(op)


def _makers(op: Operation, products: Callable[[Operation], object]) -> list[Operation]:
    """Return the launches with products that make operands, the last one first."""
    owners = (v.owner for v in op.operands)
    return in_order(o for o in owners if isinstance(o, Operation) and products(o))[::-1]


@dataclass
class MoveIntoMatmulKernel(RewritePattern):
    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self,
        op: mir.UnaryOp | mir.BinaryOp | mir.CastOp | mir.RopeOp | mir.AppendOp,
        rewriter: PatternRewriter,
    ) -> None:
        if launch_of(op) is not op:
            return
        kernels = _makers(op, matmuls)
        if not kernels:
            return
        reasons = {kernel: can_fuse_epilogue(op, kernel) for kernel in kernels}
        chosen = next((k for k, reason in reasons.items() if reason is None), kernels[0])
        # Rows that are multiplied are read where they are: what makes them is not copied.
        rows = {m.input for m in matmuls(chosen)}
        copied = [o for o in _spread(op) if _is_bias(o) and rows.isdisjoint(o.results)]
        join = Join([chosen, op], copied)
        self.fusion.attempt(op, [join], reasons[chosen], rewriter)


@dataclass
class MoveIntoDotKernel(RewritePattern):
    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self,
        op: mir.UnaryOp | mir.BinaryOp | mir.CastOp | mir.CompareOp | mir.SelectOp,
        rewriter: PatternRewriter,
    ) -> None:
        if launch_of(op) is not op:
            return
        joins = [Join([kernel, op], _spread(op)) for kernel in _makers(op, dots)]
        reasons = [self._reason(join) for join in joins]
        chosen = reasons.index(None) if None in reasons else 0
        if joins:
            self.fusion.attempt(op, [joins[chosen]], reasons[chosen], rewriter)

    def _reason(self, join: Join) -> str | None:
        reason = cannot_group(join.members, join.copied)
        if reason:
            return reason
        # Many modules, for products alone.
        from rlx.lowering.dot import refusal

        return refusal(join.launch.ops, join.launch.yielded, source)


@dataclass(frozen=True)
class FuseEpiloguePass(ModulePass):
    """
    Move unary, binary, cast, rope and append into the kernel of the product that computes their
    rows.

    %y = mir.matmul %h, %w; %z = mir.binary add %x, %y
        --> %z = mir.kernel { %0 = mir.matmul %h, %w; %1 = mir.binary add %x, %0; mir.yield %1 }

    `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-epilogue"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        fusion.run([MoveIntoMatmulKernel(fusion), MoveIntoDotKernel(fusion)], op)
