"""
What is computed twice is computed once, across the regions of branches and loops.

A value may be used in the regions below it, so one from outside replaces a duplicate inside, and
never the other way. Kernels, branches and loops are compared as wholes too; the inside of a kernel
is left as fusion made it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import IsTerminator, MemoryEffectKind, get_effects

from rlx.dialects import mir
from rlx.passes.algebra_rules import COMMUTATIVE
from rlx.passes.state_views import state_views

Known = MutableMapping[Hashable, Operation]


def _key(op: Operation, names: Mapping[SSAValue, int]) -> Hashable:
    """
    Return what two operations that compute the same have in common.

    `names` numbers the values defined in the region that is compared, which has no name outside.
    """
    operands = [names.get(v, v) for v in op.operands]
    if isinstance(op, mir.BinaryOp) and op.kind.data in COMMUTATIVE:
        operands.sort(key=hash)
    inner = dict(names)
    regions: list[Hashable] = []
    for region in op.regions:
        for block in region.blocks:
            for value in (*block.args, *(r for o in block.ops for r in o.results)):
                inner[value] = len(inner)
            regions.append(tuple(a.type for a in block.args))
            regions += [_key(o, inner) for o in block.ops]
    return (
        op.name,
        tuple(operands),
        tuple(op.result_types),
        frozenset(op.properties.items()),
        frozenset(op.attributes.items()),
        tuple(regions),
    )


def _effects(op: Operation) -> set[MemoryEffectKind] | None:
    """Return the kinds of an operation's effects, None where they are not known."""
    effects = get_effects(op)
    return None if effects is None else {e.kind for e in effects}


@dataclass
class _Eliminator:
    views: set[SSAValue]
    known: Known = field(default_factory=lambda: ChainMap[Hashable, Operation]())
    reads: Known = field(default_factory=lambda: ChainMap[Hashable, Operation]())
    """What was read from a state since the last write."""

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            self.operation(op)

    def operation(self, op: Operation) -> None:
        effects = _effects(op)
        writes = effects is None or MemoryEffectKind.WRITE in effects
        if isinstance(op, mir.CONTROL):
            self._regions(op, writes)
        if writes:
            self.reads = ChainMap()
        if writes or not op.results or op.has_trait(IsTerminator):
            return
        reading = bool(effects) or not self.views.isdisjoint(mir.captures(op))
        table = self.reads if reading else self.known
        first = table.setdefault(_key(op, {}), op)
        if first is not op:
            for new, old in zip(first.results, op.results, strict=True):
                new.name_hint = new.name_hint or old.name_hint
            Rewriter.replace_op(op, [], first.results)

    def _regions(self, op: Operation, writes: bool) -> None:
        """Go through branches, or a loop, whose first turn may see what the last one wrote."""
        known, reads = self.known, self.reads
        for region in op.regions:
            self.known = ChainMap({}, *_maps(known))
            self.reads = ChainMap({}, *([] if writes else _maps(reads)))
            self.block(region.block)
        self.known, self.reads = known, reads


def _maps(table: Known) -> list[Known]:
    assert isinstance(table, ChainMap)
    return [*table.maps]


@dataclass(frozen=True)
class CsePass(ModulePass):
    """
    Replace an operation that computes what an earlier one does by that one's results.

    %0 = mir.load_weight @w; %1 = mir.load_weight @w; mir.binary add %0, %1
        --> %0 = mir.load_weight @w; mir.binary add %0, %0

    Operations of different phases stay apart. What reads a state is merged only where nothing was
    appended in between.
    """

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        views = state_views(op)
        for function in op.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _Eliminator(views).block(function.body.block)
