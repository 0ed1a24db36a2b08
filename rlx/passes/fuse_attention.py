"""
Attention that is written as products, a scale, a mask and a softmax becomes one operation.

What lies between the two products must have no other consumer: it is never in memory afterwards.
Around them, transposes of keys and values fold into their layout, and heads that were repeated
for groups of queries are read as they are. A row of scores that a mask hides as a whole gives
zeros afterwards, where softmax gave NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from rlx.dialects import mir
from rlx.passes.attention_parts import AttentionParts, Builder, Unfit, leads_to_dot
from rlx.passes.fuse_common import Fusion, launch, launch_of, users
from rlx.passes.fusion_cost import Launch


def _with_feeders(ops: list[Operation]) -> list[Operation]:
    """Return operations and what only they use, each after its users."""
    found = dict.fromkeys(reversed(ops))
    todo = list(found)
    while todo:
        for value in todo.pop().operands:
            op = value.owner
            if not isinstance(op, mir.PRIMITIVES) or op in found or launch_of(op) is not op:
                continue
            if all(user in found for user in users(value)):
                found[op] = None
                todo.append(op)
    return list(found)


def _candidate(op: mir.SoftmaxOp) -> AttentionParts | None:
    """Return the attention that a softmax looks like the middle of."""
    consumers = [user for user in users(op.result) if isinstance(user, mir.DotOp)]
    if not consumers or not leads_to_dot(op.input) or launch_of(op) is not op:
        return None
    return AttentionParts(op, consumers[0])


@dataclass
class MakeAttention(RewritePattern):
    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: mir.SoftmaxOp, rewriter: PatternRewriter) -> None:
        found = _candidate(op)
        if found is None:
            return
        builder, reason = Builder(), None
        try:
            found.check()
            builder.attention(found)
        except Unfit as why:
            reason = str(why)
        ops = _with_feeders([*found.ops, op, found.output])
        made = builder.pruned()
        before = [launch(o) for o in ops]
        after = [Launch([o], o.results) for o in made] if reason is None else before
        others = [o for o in reversed(ops) if o is not op]
        if not self.fusion.decide(op, others, before, after, reason):
            for new in reversed(made):
                new.erase()
            return
        phase = op.attributes.get(mir.PHASE)
        for new in made:
            new.attributes |= {} if phase is None else {mir.PHASE: phase}
        rewriter.replace(found.output, made)
        for old in ops:
            if old is not found.output:
                rewriter.erase(old)


@dataclass(frozen=True)
class FuseAttentionPass(ModulePass):
    """
    Make `mir.sdpa` of attention that is written in primitives.

    %s = mir.dot %q, %k rhs_t; %m = mir.binary mul %s, %c; %p = mir.softmax %m; %y = mir.dot %p, %v
        --> %y = mir.sdpa %q, %k, %v scale c

    The scale may be a product or a quotient, of the scores or of the query. A mask may be added,
    or be a choice between the scores and minus infinity by comparing indices, which is `causal`.
    `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-attention"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        fusion.run([MakeAttention(fusion)], op)
