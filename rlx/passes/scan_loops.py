"""A scan as a loop: elements are read, and outputs written in place, by the number of the turn."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i64
from xdsl.ir import Block, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import Dim
from rlx.dialects.control import yielded
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind
from rlx.dialects.scan_op import ScanOp
from rlx.dialects.writer import Writer


def loop(op: ScanOp) -> tuple[Sequence[Operation], Sequence[SSAValue]]:
    """
    Return the operations of a scan as a loop, whose body is taken out of it, and its results.

    hir.scan (%c) over (%x) { ^bb0(%c, %e): ... yield %c2, %y } -->
    mir.while (%i, %c, %ys) do { %e = mir.gather %x, %i; ...; scatter_rows(%ys, %i, %y); ... }
    """
    w = Writer()
    count = len(op.inits)
    outputs = [w.value(0, r.type) for r in op.res[count:]]
    inits = [w.constant([0], [], i64), *op.inits, *outputs]
    types = [v.type for v in inits]
    end = _size(w, op.length)
    test = Block(arg_types=types)
    goes_on = mir.CompareOp(CompareKind.LT, test.args[0], end)
    test.add_ops([goes_on, mir.YieldOp(goes_on.result)])
    results = w.add_all(mir.WhileOp(inits, test, _body(op, Block(arg_types=types))))
    return w.made, results[1:]


def _size(w: Writer, dim: Dim) -> SSAValue:
    """Return a dimension's size as a value."""
    if isinstance(dim, int):
        return w.constant([dim], [], i64)
    last = w.reduce(ReduceKind.MAX, w.iota(0, [dim], i64), [0])
    # Of no elements the maximum is the least integer, and what is one above still below 0.
    return w.binary(BinaryKind.ADD, last, 1)


def _body(op: ScanOp, block: Block) -> Block:
    """Move the body of a scan into the body of its loop."""
    from rlx.ops.scattering import ScatterRowsOp  # Few programs have a scan.

    w, old, count = Writer(), op.body.block, len(op.inits)
    turn, carried = block.args[0], block.args[1 : 1 + count]
    elements = [w.gather(x, turn, 0) for x in op.xs]
    block.add_ops(w.made)
    for argument, value in zip(old.args, [*carried, *elements], strict=True):
        argument.replace_all_uses_with(value)
    last = yielded(old)
    for inner in list(old.ops):
        inner.detach()
        if inner is not last:
            block.add_op(inner)
    after = Writer()
    made = [
        after.add(ScatterRowsOp(stack, turn, y))
        for stack, y in zip(block.args[1 + count :], last.arguments[count:], strict=True)
    ]
    following = after.binary(BinaryKind.ADD, turn, 1)
    block.add_ops([*after.made, mir.YieldOp(following, *last.arguments[:count], *made)])
    last.erase()
    return block
