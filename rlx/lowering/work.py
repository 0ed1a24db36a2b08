"""How much a step computes, about: what decides whether waking other threads is worth it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from xdsl.ir import Attribute, Operation

from rlx.contract.opkind import OpKind
from rlx.dialects import lir, mir
from rlx.dialects.common import dims_of
from rlx.lowering.tensor_nodes import CHEAP

HEAVY = 8
"""What a transcendental function or a division takes, beside an addition."""
ROW_PASSES = 16
"""What a softmax or a norm takes for an element."""
OTHER = 32
"""What an operation with a kernel of its own takes for an element of its operand or result."""


def work_of(
    launches: Iterable[tuple[int, lir.LaunchOp]], kernels: dict[str, lir.KernelOp]
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the sum over launches, with how often each runs, by the dimensions in its terms."""
    total: Counter[tuple[str, ...]] = Counter()
    for turns, launch in launches:
        for op in kernels[launch.kernel.root_reference.data].body.block.ops:
            if not isinstance(op, mir.YieldOp):
                number, names = _work(op)
                total[names] += turns * number
    return tuple((n, names) for names, n in total.items() if n)


def _work(op: Operation) -> tuple[int, tuple[str, ...]]:
    result = op.results[0].type
    match op:
        case mir.UnaryOp() | mir.BinaryOp():
            return _elements(result, times=1 if op.kind.data in CHEAP else HEAVY)
        case mir.AppendOp():
            return _elements(op.input.type)
        case mir.FirstRowsOp():
            # The same bytes, fewer rows.
            return 0, ()
        case mir.MatmulOp():
            return _elements(result, dims_of(op.input.type)[-1])
        case mir.DotOp():
            lhs = dims_of(op.lhs.type)
            depth = lhs[-2] if op.transposed[0] else lhs[-1]
            return _elements(result, depth)
        case mir.SdpaOp():
            return _elements(result, dims_of(op.keys.type)[-2], times=2)
        case _ if mir.kind_of(op) is OpKind.ATTENTION:
            return _elements(result, dims_of(op.operands[1].type)[0], times=2)
        case mir.SoftmaxOp() | mir.LayerNormOp() | mir.RmsNormOp():
            return _elements(result, times=ROW_PASSES)
        case mir.ReduceOp():
            return _elements(op.input.type)
        case _ if isinstance(op, (*mir.MAPS, *mir.MOVES, mir.ConstantOp, mir.IotaOp)):
            return _elements(result)
        case _:
            # A seed is small, whatever is made of it; of a table or a state a few rows are read.
            read = op.operands if isinstance(op, mir.NamedOp) else op.operands[:1]
            work = [_elements(v.type, times=OTHER) for v in (*read, *op.results[:1])]
            return max(work, key=lambda term: (len(term[1]), term[0]))


def _elements(type_: Attribute, *more: int | str, times: int = 1) -> tuple[int, tuple[str, ...]]:
    dims = (*dims_of(type_), *more)
    names = tuple(sorted(d for d in dims if isinstance(d, str)))
    return times * prod(d for d in dims if isinstance(d, int)), names
