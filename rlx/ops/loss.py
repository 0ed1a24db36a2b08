"""Losses of classification, and their gradients, on logits whose last axis is of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, C, R, U = BinaryKind, CompareKind, ReduceKind, UnaryKind

REDUCTIONS = ("none", "mean", "sum")


def _check(cls: type[NamedOp], types: Sequence[Attribute]) -> None:
    """Logits `[..., classes]` come with labels `[...]`, or with weights of their own shape."""
    logits, labels = types[:2]
    infer.check_softmax(cls.name, logits)
    whole = element_of(labels) in (i32, i64)
    wanted = dims_of(logits)[:-1] if whole else dims_of(logits)
    if dims_of(labels) != wanted or not (whole or labels == logits):
        raise cls.refuse(
            "logits [..., classes] with labels [...] of i32 or i64, or weights of the classes "
            "[..., classes] of the element of the logits",
            types,
        )


def _loss_type(logits: Attribute, reduction: str) -> Attribute:
    dims = dims_of(logits)[:-1] if reduction == "none" else ()
    return tensor(dims, element_of(logits))


# Forward


@irdl_op_definition
class SoftmaxCrossEntropyOp(NamedOp):
    """
    -log softmax(logits)[label], or -sum(weights * log softmax(logits)) for given weights.

    `(logits [..., classes], labels [...] i32 or i64 | weights [..., classes]) -> [...]`, or `[]`
    for the sum or the mean over all rows. A label that is of no class leaves its row out: its loss
    is 0, and the mean is that of the others (NaN of none).
    """

    name = "loss.softmax_cross_entropy"
    KIND: ClassVar = OpKind.SOFTMAX_CROSS_ENTROPY_WITH_LOGITS
    OPTIONS: ClassVar = {"reduction": "none"}
    CHOICES: ClassVar = {"reduction": REDUCTIONS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        _check(cls, types)
        return [_loss_type(types[0], o["reduction"])]


def _weights(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Return a row of weights for each label, of zeros where it is of no class; and which count."""
    import numpy as np

    if labels.dtype.kind == "f":
        return labels, np.ones(logits.shape[:-1])
    weights, counted = np.zeros(logits.shape), np.zeros(logits.shape[:-1])
    for row in np.ndindex(labels.shape):
        if 0 <= labels[row] < logits.shape[-1]:
            weights[(*row, labels[row])], counted[row] = 1, 1
    return weights, counted


def _of_rows(logits: Array, weights: Array) -> Array:
    """Return the loss of each row."""
    import numpy as np

    shifted = logits - np.real(logits).max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(weights * log_p).sum(axis=-1)


def _softmax_cross_entropy(op: NamedOp, logits: Array, labels: Array) -> Array:
    weights, counted = _weights(logits, labels)
    loss = _of_rows(logits, weights)
    match op.option("reduction"):
        case "mean":
            return loss.sum() / counted.sum()
        case "sum":
            return loss.sum()
        case _:
            return loss


@dataclass(frozen=True)
class _Rows:
    """What the loss and its gradient share, with all rows spread over the classes."""

    shifted: SSAValue
    """Logits less the greatest of their row."""
    exp: SSAValue
    total: SSAValue
    """The sum of a row's exponentials, `[...]`."""
    is_label: SSAValue | None = None
    counted: SSAValue | None = None
    """Of labels: which class is theirs `[..., classes]`, and whether there is one `[...]`."""

    @staticmethod
    def write(w: Writer, logits: SSAValue, labels: SSAValue) -> _Rows:
        dims = dims_of(logits.type)
        axis = len(dims) - 1
        shifted = w.binary(B.SUB, logits, w.last(R.MAX, logits))
        exp = w.unary(U.EXP, shifted)
        total = w.reduce(R.SUM, exp, [axis])
        element = element_of(labels.type)
        if element not in (i32, i64):
            return _Rows(shifted, exp, total)
        label = w.spread(w.reshape(labels, [*dims[:-1], 1]), dims)
        is_label = w.compare(C.EQ, w.iota(axis, dims, element), label)
        return _Rows(shifted, exp, total, is_label, w.reduce(R.MAX, is_label, [axis]))

    def count(self, w: Writer) -> SSAValue:
        """Return the number of rows that count, `[]`."""
        ones = w.value(1.0, self.total.type)
        if self.counted is not None:
            ones = w.select(self.counted, ones, 0.0)
        return w.reduce(R.SUM, ones, range(len(dims_of(self.total.type))))


def _expand_softmax_cross_entropy(w: Writer, op: SoftmaxCrossEntropyOp) -> Sequence[SSAValue]:
    logits, labels = op.args
    rows = _Rows.write(w, logits, labels)
    log_total = w.unary(U.LOG, rows.total)
    axis = len(dims_of(logits.type)) - 1
    if rows.is_label is None or rows.counted is None:
        # By way of the sum of the weights, so that a row is read once more, not twice.
        scores = w.reduce(R.SUM, w.binary(B.MUL, labels, rows.shifted), [axis])
        weight = w.reduce(R.SUM, labels, [axis])
        loss = w.binary(B.SUB, w.binary(B.MUL, weight, log_total), scores)
    else:
        score = w.reduce(R.SUM, w.select(rows.is_label, rows.shifted, 0.0), [axis])
        loss = w.select(rows.counted, w.binary(B.SUB, log_total, score), 0.0)
    reduction = op.option("reduction")
    if reduction == "none":
        return [loss]
    total = w.reduce(R.SUM, loss, range(axis))
    return [w.binary(B.DIV, total, rows.count(w)) if reduction == "mean" else total]


def _sample_labels(draw: Draw, shape: Sequence[int]) -> Array:
    if draw.chance():
        return draw.array(shape, 0.0, 1.0)
    labels = draw.ids(shape[:-1], shape[-1], draw.choice(["i32", "i64"]))
    if labels.size and draw.chance(0.3):
        labels.reshape(-1)[0] = draw.choice([-100, -1, shape[-1]])
    return labels


def _sample_softmax_cross_entropy(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3)
    labels = _sample_labels(draw, shape)
    reduction = draw.choice(REDUCTIONS)
    return Case(
        [draw.array(shape), labels],
        lambda w, v: w.add_all(SoftmaxCrossEntropyOp(*v, reduction=reduction)),
    )


# Backward


@irdl_op_definition
class SoftmaxCrossEntropyBackwardOp(NamedOp):
    """
    The gradient of `loss.softmax_cross_entropy` by the logits, of rows that count.

    `(logits [..., classes], labels | weights, upstream) -> [..., classes]`, where upstream is the
    gradient by the loss and has its shape. It is (softmax * sum(weights) - weights) * upstream.
    """

    name = "loss.softmax_cross_entropy_backward"
    KIND: ClassVar = OpKind.SOFTMAX_CROSS_ENTROPY_WITH_LOGITS_BACKWARD
    OPTIONS: ClassVar = {"reduction": "none"}
    CHOICES: ClassVar = {"reduction": REDUCTIONS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        _check(cls, types)
        wanted = _loss_type(types[0], o["reduction"])
        if types[2] != wanted:
            raise cls.refuse(f"an upstream of the type of the loss, {wanted}", types)
        return [types[0]]


def _softmax_cross_entropy_backward(
    op: NamedOp, logits: Array, labels: Array, upstream: Array
) -> Array:
    import numpy as np

    from rlx.ops.derivative import pulled_back

    weights, counted = _weights(logits, labels)
    if op.option("reduction") == "mean":
        upstream = upstream / counted.sum()
    upstream = np.where(counted, upstream, 0)
    return pulled_back(lambda x: _of_rows(x, weights), logits, upstream, 1)


def _expand_softmax_cross_entropy_backward(
    w: Writer, op: SoftmaxCrossEntropyBackwardOp
) -> Sequence[SSAValue]:
    logits, labels, upstream = op.args
    rows = _Rows.write(w, logits, labels)
    dims = dims_of(logits.type)

    def spread(x: SSAValue) -> SSAValue:
        return w.spread(w.reshape(x, [*dims[:-1], 1]), dims)

    if op.option("reduction") == "mean":
        upstream = w.binary(B.DIV, upstream, rows.count(w))
    upstream = w.spread(upstream, dims[:-1])
    if rows.is_label is None or rows.counted is None:
        weight = w.reduce(R.SUM, labels, [len(dims) - 1])
        share = w.binary(B.MUL, weight, upstream)
        own = w.binary(B.MUL, labels, spread(upstream))
    else:
        share = upstream = w.select(rows.counted, upstream, 0.0)
        own = w.select(rows.is_label, spread(upstream), 0.0)
    # Divided by the total first: once for each row.
    share = w.binary(B.DIV, share, rows.total)
    return [w.binary(B.SUB, w.binary(B.MUL, rows.exp, spread(share)), own)]


def _sample_softmax_cross_entropy_backward(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3)
    labels = _sample_labels(draw, shape)
    reduction = draw.choice(REDUCTIONS)
    upstream = draw.array(shape[:-1] if reduction == "none" else ())
    return Case(
        [draw.array(shape), labels, upstream],
        lambda w, v: w.add_all(SoftmaxCrossEntropyBackwardOp(*v, reduction=reduction)),
    )


RECORDS = (
    Record(
        SoftmaxCrossEntropyOp,
        (OpKind.SOFTMAX_CROSS_ENTROPY, OpKind.SOFTMAX_CROSS_ENTROPY_WITH_LOGITS),
        ROWS,
        FLOATS,
        _softmax_cross_entropy,
        _sample_softmax_cross_entropy,
        _expand_softmax_cross_entropy,
    ),
    Record(
        SoftmaxCrossEntropyBackwardOp,
        (OpKind.SOFTMAX_CROSS_ENTROPY_WITH_LOGITS_BACKWARD,),
        ROWS,
        FLOATS,
        _softmax_cross_entropy_backward,
        _sample_softmax_cross_entropy_backward,
        _expand_softmax_cross_entropy_backward,
        # A probability near 1, less 1.
        nmse=1e-11,
    ),
)

Loss = Dialect("loss", [r.op for r in RECORDS], [])
