"""The selective scan of Mamba; the operation is of the dialect `recurrent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.named import NamedOp
from rlx.ops.record import FLOATS, SCAN, Array, Case, Record
from rlx.ops.samples import Draw


@irdl_op_definition
class SelectiveScanOp(NamedOp):
    """
    The state space model of Mamba (Gu and Dao, 2023), row after row.

    For x and delta `[batch..., rows, d]`, A `[d, n]`, B and C `[batch..., rows, n]` and a state s
    `[d, n]` for each batch: s = exp(delta A) s + (delta x) B, y = s C. With `skip` a D `[d]` adds
    D x to y, with `gate` a z like x then multiplies it with silu(z), with `state` there is an
    initial state `[batch..., d, n]`, zeros otherwise; operands in this order. Results are y, and
    the state at the end. d and n are numbers.
    """

    name = "recurrent.selective_scan"
    KIND: ClassVar = OpKind.SELECTIVE_SCAN
    OPTIONS: ClassVar = {"skip": False, "gate": False, "state": False}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 5 + o["skip"] + o["gate"] + o["state"])
        infer.check_element(cls.name, types[0], infer.FLOATS)
        x, a, element = dims_of(types[0]), dims_of(types[2]), element_of(types[0])
        if len(x) >= 2 and len(a) == 2 and all(isinstance(d, int) for d in (x[-1], *a)):
            (*batch, rows, d), (_, n) = x, a
            wanted = [x, x, (d, n), (*batch, rows, n), (*batch, rows, n)]
            wanted += [(d,)] * o["skip"] + [x] * o["gate"] + [(*batch, d, n)] * o["state"]
            if [tensor(w, element) for w in wanted] == list(types):
                return [types[0], tensor([*batch, d, n], element)]
        raise cls.refuse(
            "x and delta [batch..., rows, d], A [d, n], B and C [batch..., rows, n], with `skip` "
            "D [d], with `gate` z like x, with `state` [batch..., d, n], all of one element, and "
            "numbers for d and n",
            types,
        )

    @property
    def more(self) -> dict[str, SSAValue]:
        """Return the operands that options add, by option."""
        names = [name for name in self.OPTIONS if self.option(name)]
        return dict(zip(names, self.args[5:], strict=True))


def _selective_scan(
    op: SelectiveScanOp, x: Array, delta: Array, a: Array, b: Array, c: Array, *rest: Array
) -> tuple[Array, Array]:
    import numpy as np

    more = dict(zip(op.more, rest, strict=True))
    s = np.zeros((*x.shape[:-2], *a.shape), x.dtype)
    s = more.get("state", s).copy()
    y = np.zeros_like(x)
    for t in range(x.shape[-2]):
        step = delta[..., t, :, None]
        s = np.exp(step * a) * s + step * x[..., t, :, None] * b[..., t, None, :]
        y[..., t, :] = (s * c[..., t, None, :]).sum(-1)
    if "skip" in more:
        y += more["skip"] * x
    if "gate" in more:
        y *= more["gate"] / (1 + np.exp(-more["gate"]))
    return y, s


def _sample_selective_scan(draw: Draw) -> Case:
    batch, rows = draw.shape(0, 1), draw.size(0, 33)
    d, n = draw.size(high=49), draw.size(high=17)
    options: dict[str, Any] = {name: draw.chance() for name in SelectiveScanOp.OPTIONS}
    arrays = [draw.array((*batch, rows, d)), draw.array((*batch, rows, d), 0.0, 1.0)]
    arrays += [draw.array((d, n), -2.0, 0.0)]
    arrays += [draw.array((*batch, rows, n)) for _ in range(2)]
    shapes = {"skip": (d,), "gate": (*batch, rows, d), "state": (*batch, d, n)}
    arrays += [draw.array(shapes[name]) for name, wanted in options.items() if wanted]
    return Case(arrays, lambda w, v: w.add_all(SelectiveScanOp(*v, **options)))


RECORDS = (
    Record(
        SelectiveScanOp, (OpKind.SELECTIVE_SCAN,), SCAN, FLOATS, _selective_scan,
        _sample_selective_scan, kernel="rlx.lowering.selective_scan", nmse=1e-11,
    ),
)  # fmt: skip
