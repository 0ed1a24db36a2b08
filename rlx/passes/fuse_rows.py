"""
Element-wise regions become row programs, which one generator computes in a launch.

What one launch can compute is the generator's to say (`rlx.lowering.tensor_program.refusal`). The
rules here are about whose work is whose:
- What costs next to nothing to compute is computed where it is used. Each consumer gets a copy of a
  constant, an iota, a broadcast, a slice, a transpose or a cast, which are the same to the bit
  wherever they are computed, and the buffer between them is gone.
- A value that others use too is yielded: nothing else is computed twice.
- A reshape is bytes under another shape. It costs nothing where it stands alone, so it joins only
  together with what it is the link between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from rlx.dialects import mir
from rlx.dialects.common import element_bytes
from rlx.lowering.tensor_program import COMPUTED, refusal
from rlx.passes.fuse_common import (
    MAX_OPERATIONS,
    Fusion,
    Join,
    cannot_group,
    launch_of,
    parts,
    users,
)
from rlx.passes.fusion_cost import is_leaf, is_view, source

_CHEAP = (
    mir.ConstantOp,
    mir.IotaOp,
    mir.BroadcastOp,
    mir.TransposeOp,
    mir.SliceOp,
    mir.NarrowOp,
    mir.ReverseOp,
    mir.WindowOp,
    mir.CastOp,
)


def is_row_launch(launch: Operation) -> bool:
    """Whether a launch is a row program, or an operation that may be part of one."""
    return not is_view(launch) and all(type(op) in COMPUTED for op in parts(launch))


def is_cheap(op: Operation) -> bool:
    """Whether to compute an operation again costs no more than to read what it has computed."""
    # Of a state it would be read at another time.
    states = mir.LoadStateOp | mir.AppendOp | mir.FirstRowsOp
    if not isinstance(op, _CHEAP) or any(isinstance(v.owner, states) for v in op.operands):
        return False
    # A cast to fewer bytes is there so that fewer bytes are stored.
    return not isinstance(op, mir.CastOp) or element_bytes(op.result.type) >= element_bytes(
        op.input.type
    )


def cannot_join(join: Join) -> str | None:
    """Return why launches can't be one row program; None when they can."""
    reason = cannot_group(join.members, join.copied)
    return reason or refusal(join.launch.ops, join.launch.yielded, source)


def _consumers(
    value: SSAValue, views: tuple[Operation, ...] = ()
) -> Iterator[tuple[Operation, tuple[Operation, ...]]]:
    """Yield the launches that use a value, with the views that lie between."""
    for user in users(value):
        if is_view(user) and launch_of(user) is user:
            if len(views) < MAX_OPERATIONS:
                yield from _consumers(user.results[0], (*views, user))
        else:
            yield launch_of(user), views


@dataclass
class CopyIntoConsumers(RewritePattern):
    fusion: Fusion
    into_cheap: bool
    """Whether a cheap operation may take another: they are to be copied themselves at first."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not is_cheap(op) or is_view(op) or launch_of(op) is not op:
            return
        copied: dict[Operation, list[Operation]] = {}
        for consumer, views in _consumers(op.results[0]):
            if is_row_launch(consumer) and (self.into_cheap or not is_cheap(consumer)):
                known = copied.setdefault(consumer, [op])
                known += [view for view in views if view not in known]
        joins = [Join([consumer], ops) for consumer, ops in copied.items()]
        reasons = [cannot_join(join) for join in joins]
        possible = [join for join, why in zip(joins, reasons, strict=True) if why is None]
        if joins:
            self.fusion.attempt(op, possible or joins, None if possible else reasons[0], rewriter)


@dataclass
class JoinProducer(RewritePattern):
    fusion: Fusion

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if launch_of(op) is not op or is_leaf(op) or not is_row_launch(op):
            return
        links: dict[Operation, list[Operation]] = {}
        for value in mir.captures(op):
            producer, views = _producer(value)
            if producer is not None:
                known = links.setdefault(producer, [])
                known += [view for view in views if view not in known]
        join, reason = None, None
        for producer, views in reversed(links.items()):
            join = Join([producer, op], views)
            reason = cannot_join(join)
            if reason is None:
                break
        if join is not None:
            self.fusion.attempt(op, [join], reason, rewriter)


def _producer(value: SSAValue) -> tuple[Operation | None, Sequence[Operation]]:
    """Return the row program that a value comes from, with the views that lie between."""
    views: list[Operation] = []
    while (
        isinstance(value.owner, Operation) and is_view(value.owner) and len(views) < MAX_OPERATIONS
    ):
        views.insert(0, value.owner)
        value = value.owner.operands[0]
    owner = value.owner
    if not isinstance(owner, Operation) or is_leaf(owner) or not is_row_launch(owner):
        return None, views
    return owner, views


@dataclass(frozen=True)
class FuseRowsPass(ModulePass):
    """
    Group maps, moves, reductions, softmax and layer norms into row programs.

    %m = mir.reduce max %x axes [1]; %b = mir.broadcast %m; %d = mir.binary sub %x, %b
        --> %d = mir.kernel { %0 = mir.reduce max %x axes [1]; %1 = mir.broadcast %0;
                              %2 = mir.binary sub %x, %1; mir.yield %2 }

    `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-rows"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        for into_cheap in (False, True):
            patterns = [CopyIntoConsumers(fusion, into_cheap), JoinProducer(fusion)]
            fusion.run(patterns, op, more=not into_cheap)
