"""
The types in which values are kept between operations, by a precision policy.

Arithmetic stays in f32. A policy says for each group of operations how wide their results are
stored: where that is 16 bits, the value is cast down and up again, so that after fusion the buffer
between two kernels holds 16 bits. The pair rounds wherever it stands: it is part of the program's
meaning, and nothing may take it for an identity.

Groups and policies are the contract's: `compute` is products and attention, `reduction` is
reductions, softmax and norms, `elementwise` and `data_movement` what they say. What comes into the
program or leaves it, what a layer or a loop hands on, constants, weights and state are the
boundary, which stays as it is declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from rlx.dialects import mir
from rlx.dialects.common import element_of
from rlx.dialects.infer import STORED
from rlx.errors import RlxError

Group: TypeAlias = Literal["compute", "reduction", "elementwise", "data_movement"]

GROUPS: dict[Group, tuple[type[Operation], ...]] = {
    "compute": (mir.MatmulOp, mir.DotOp, mir.SdpaOp, mir.AttentionOp),
    "reduction": (mir.ReduceOp, mir.SoftmaxOp, mir.LayerNormOp, mir.RmsNormOp),
    "elementwise": (mir.UnaryOp, mir.BinaryOp, mir.SelectOp, mir.RopeOp),
    "data_movement": (
        mir.TransposeOp,
        mir.SliceOp,
        mir.NarrowOp,
        mir.PadOp,
        mir.ReverseOp,
        mir.ConcatOp,
        mir.GatherOp,
        mir.EmbeddingOp,
        mir.LastRowsOp,
    ),
}
"""The operations of each group. A reshape stores nothing, nor does a broadcast that is fused."""


@dataclass(frozen=True)
class Policy:
    """The stored type of each group's results, and whether what reductions read stays f32."""

    compute: str = "f32"
    reduction: str = "f32"
    elementwise: str = "f32"
    data_movement: str = "f32"
    exact_reductions: bool = False


POLICIES: dict[str, Policy] = {
    "always-f32": Policy(),
    "always-f16": Policy("f16", "f16", "f16", "f16"),
    "auto-mixed-conservative": Policy("f16", "f32", "f16", "f16", exact_reductions=True),
    "auto-mixed": Policy("f16", "f32", "f16", "f16"),
    "auto-mixed-bf16": Policy("bf16", "f32", "bf16", "bf16"),
}
"""The contract's policies: AlwaysF32 and so on; Custom is an option of the pass."""


def group_of(op: Operation) -> Group | None:
    """Return the group whose results an operation's are, None for the boundary."""
    return next((group for group, ops in GROUPS.items() if isinstance(op, ops)), None)


def _is_exact(user: Operation, policy: Policy) -> bool:
    """Whether a consumer reads a value as it was computed."""
    # A cast is an edge between types already; what ends a region hands its values to the boundary.
    if isinstance(user, mir.CastOp) or user.has_trait(IsTerminator):
        return True
    return policy.exact_reductions and group_of(user) == "reduction"


def _round(value: SSAValue, element: Attribute, policy: Policy) -> None:
    """Give the consumers of a value what is left of it after it was stored as `element`."""
    users = [use for use in value.uses if not _is_exact(use.operation, policy)]
    owner = value.owner
    if not users or not isinstance(owner, Operation):
        return
    down = mir.CastOp(value, element)
    up = mir.CastOp(down.result, f32)
    for op in (down, up):
        if (phase := owner.attributes.get(mir.PHASE)) is not None:
            op.attributes[mir.PHASE] = phase
        op.result.name_hint = value.name_hint
    Rewriter.insert_op([down, up], InsertPoint.after(owner))
    for use in users:
        use.operation.operands[use.index] = up.result


@dataclass(frozen=True)
class SetPrecisionPass(ModulePass):
    """
    Store the results of operations in f16 or bf16 where a policy says so.

    %y = mir.unary exp %x; use %y
        --> %y = mir.unary exp %x; %0 = mir.cast %y -> bf16; %1 = mir.cast %0 -> f32; use %1

    `policy` is one of always-f32, always-f16, auto-mixed-conservative, auto-mixed, auto-mixed-bf16
    and custom, which takes the types of `compute`, `reduction`, `elementwise` and `data_movement`,
    each f32, f16 or bf16. Run it before the fusions: in a kernel nothing is stored.
    """

    name = "set-precision"
    policy: str = "custom"
    compute: str = "f32"
    reduction: str = "f32"
    elementwise: str = "f32"
    data_movement: str = "f32"

    def chosen(self) -> Policy:
        """Return the policy; raises RlxError for names that are not known."""
        custom = Policy(self.compute, self.reduction, self.elementwise, self.data_movement)
        if self.policy != "custom" and custom != Policy():
            raise RlxError(
                f"set-precision: the types of groups go with policy=custom, got '{self.policy}'"
            )
        policy = {**POLICIES, "custom": custom}.get(self.policy)
        if policy is None:
            known = ", ".join([*POLICIES, "custom"])
            raise RlxError(f"set-precision: expected a policy of {known}, got '{self.policy}'")
        for group in GROUPS:
            if getattr(policy, group) not in STORED:
                known = ", ".join(STORED)
                raise RlxError(
                    f"set-precision: expected {group} to be one of {known}, "
                    f"got '{getattr(policy, group)}'"
                )
        return policy

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        policy = self.chosen()
        for inner in list(op.walk()):
            group = group_of(inner)
            if group is None or isinstance(inner.parent_op(), mir.KernelOp):
                continue
            element = STORED[getattr(policy, group)]
            for value in inner.results:
                if element != f32 and element_of(value.type) == f32:
                    _round(value, element, policy)
