"""
Operations on sequences of rows that are packed one behind the other, without padding.

Segment i is the rows from `starts[i]` to before `starts[i + 1]`, the last one up to the end; starts
are i32 and ascend from 0. The operations are of the dialect `transformer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, ClassVar

from xdsl.dialects.builtin import bf16, i32
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.named import NamedOp
from rlx.ops.record import ATTENTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw


def _check_starts(cls: type[NamedOp], types: Sequence[Attribute]) -> None:
    """Raise VerifyException unless the last operand is the starts of segments."""
    if len(dims_of(types[-1])) != 1 or element_of(types[-1]) != i32:
        raise cls.refuse("starts of segments, [segments] i32, as the last operand", types)


def _segments(starts: Array, rows: int) -> list[slice]:
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], rows], strict=True)]


@irdl_op_definition
class SegmentAttentionOp(NamedOp):
    """
    Attention of each packed sequence on itself: softmax(q k^T * scale) v, of every head.

    `(q [rows, heads * head_dim], k, v of the same shape, starts [segments]) -> the same shape`. A
    row sees all rows of its segment, and no other. `scale 0` stands for 1 / sqrt(head_dim).
    Operands of bf16 are for a CPU that multiplies it: the weights of softmax are rounded to that
    too, sums are f32.
    """

    name = "transformer.segment_attention"
    KIND: ClassVar = OpKind.ATTENTION
    OPTIONS: ClassVar = {"head_dim": 1, "scale": 0.0}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 4)
        infer.check_element(cls.name, types[0], (*infer.FLOATS, bf16))
        _check_starts(cls, types)
        dims, head_dim = dims_of(types[0]), o["head_dim"]
        width = dims[-1] if len(dims) == 2 else None
        whole = isinstance(width, int) and head_dim >= 1 and width % head_dim == 0
        whole &= o["scale"] >= 0
        if not whole or any(t != types[0] for t in types[1:3]):
            raise cls.refuse(
                f"q, k and v of one type [rows, width], width a multiple of head_dim {head_dim}, "
                "and a scale from 0",
                types,
            )
        return types[:1]

    @property
    def scale(self) -> float:
        """Return what scores are multiplied by."""
        return self.option("scale") or 1 / sqrt(self.option("head_dim"))


def _segment_attention(
    op: SegmentAttentionOp, q: Array, k: Array, v: Array, starts: Array
) -> Array:
    import numpy as np

    head_dim, result = op.option("head_dim"), np.zeros_like(v)
    for rows in _segments(starts, len(q)):
        for first in range(0, q.shape[1], head_dim):
            of_head = rows, slice(first, first + head_dim)
            scores = q[of_head] @ k[of_head].T * op.scale
            e = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
            result[of_head] = e / e.sum(axis=1, keepdims=True) @ v[of_head]
    return result


@irdl_op_definition
class SegmentMeanOp(NamedOp):
    """
    The mean row of each packed sequence: `(x [rows, d], starts [segments]) -> [segments, d]`.

    That of a segment without rows is zeros.
    """

    name = "transformer.segment_mean"
    KIND: ClassVar = OpKind.REDUCE
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        _check_starts(cls, types)
        dims = dims_of(types[0])
        if len(dims) != 2 or not isinstance(dims[1], int):
            raise cls.refuse("rows [rows, d], d a number", types)
        return [tensor([*dims_of(types[1]), dims[1]], element_of(types[0]))]


def _segment_mean(op: SegmentMeanOp, x: Array, starts: Array) -> Array:
    import numpy as np

    result = np.zeros((len(starts), x.shape[1]), x.dtype)
    for i, rows in enumerate(_segments(starts, len(x))):
        result[i] = x[rows].sum(axis=0) / max(rows.stop - rows.start, 1)
    return result


def _starts(draw: Draw, rows: int) -> Array:
    """Return starts of segments, some of them empty."""
    import numpy as np

    cuts = draw.rng.integers(0, rows + 1, draw.between(0, min(rows, 5)))
    return np.array([0, *sorted(cuts.tolist())], np.int32)


def _sample_attention(draw: Draw) -> Case:
    rows, head_dim = draw.size(0, 257), draw.size(1, 64)
    width = head_dim * draw.between(1, 4)
    arrays = [draw.array((rows, width)) for _ in range(3)]
    scale = draw.choice((0.0, 0.3))
    return Case(
        [*arrays, _starts(draw, rows)],
        lambda w, v: w.add_all(SegmentAttentionOp(*v, head_dim=head_dim, scale=scale)),
    )


def _sample_mean(draw: Draw) -> Case:
    rows = draw.size(0, 257)
    arrays = [draw.array((rows, draw.size(0, 97))), _starts(draw, rows)]
    return Case(arrays, lambda w, v: w.add_all(SegmentMeanOp(*v)))


RECORDS = (
    Record(
        SegmentAttentionOp, (OpKind.ATTENTION,), ATTENTION, FLOATS, _segment_attention,
        _sample_attention, kernel="rlx.lowering.segment_attention",
    ),
    Record(
        SegmentMeanOp, (OpKind.REDUCE,), ROWS, FLOATS, _segment_mean, _sample_mean,
        kernel="rlx.lowering.segment_mean",
    ),
)  # fmt: skip
