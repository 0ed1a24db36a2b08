"""Products in which each row has a matrix of its own choice: a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.named import NamedOp
from rlx.ops.record import CONTRACTION, FLOATS, Array, Case, Record
from rlx.ops.samples import Draw


@irdl_op_definition
class GroupedMatmulOp(NamedOp):
    """
    Row i times matrix ids[i]: `(x [m, k], w [e, k, n], ids [m]) -> [m, n]`, f32 or f64.

    ids are i32 or i64; one beyond the matrices means the first or the last, and without any of them
    all is 0. Rows of a matrix are multiplied together, in the order that they come in, so that each
    matrix is read once for some hundred rows (Shazeer et al., 2017).
    """

    name = "contraction.grouped_matmul"
    KIND: ClassVar = OpKind.GROUPED_MATMUL
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        infer.check_element(f"{cls.name} ids", types[2], (i32, i64))
        x, w, ids = (dims_of(t) for t in types)
        fits = len(x) == 2 and len(w) == 3 and x[1] == w[1] and x[:1] == ids
        if not fits or element_of(types[0]) != element_of(types[1]):
            raise cls.refuse("x [m, k], w [e, k, n] of one element type and ids [m]", types)
        return [tensor([x[0], w[2]], element_of(types[0]))]


def _grouped_matmul(op: GroupedMatmulOp, x: Array, w: Array, ids: Array) -> Array:
    import numpy as np

    result = np.zeros((len(x), w.shape[2]), x.dtype)
    for i, expert in enumerate(ids):
        if len(w):
            result[i] = x[i] @ w[min(max(int(expert), 0), len(w) - 1)]
    return result


def _sample_grouped_matmul(draw: Draw) -> Case:
    m, e, k, n = draw.size(0, 257), draw.size(1, 8), draw.size(1, 64), draw.size(1, 97)
    ids = draw.rng.integers(-1, e + 1, m).astype(draw.choice(["i4", "i8"]))
    arrays = [draw.array((m, k)), draw.array((e, k, n)), ids]
    return Case(arrays, lambda w, v: w.add_all(GroupedMatmulOp(*v)))


RECORDS = (
    Record(
        GroupedMatmulOp,
        (OpKind.GROUPED_MATMUL,),
        CONTRACTION,
        FLOATS,
        _grouped_matmul,
        _sample_grouped_matmul,
        kernel="rlx.lowering.dot_grouped",
    ),
)

Contraction = Dialect("contraction", [r.op for r in RECORDS], [])
