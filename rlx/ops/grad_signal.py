"""Gradients of spectra: of squared magnitudes, and of the logarithms of bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer, signal
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.linear import linear
from rlx.ops.record import CONTRACTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, C = BinaryKind, CompareKind


# Squared magnitudes


@irdl_op_definition
class ComplexNormSqBackwardOp(NamedOp):
    """
    The gradient of re^2 + im^2 by both parts: 2 z * upstream.

    `(z [..., 2n], upstream [..., n]) -> [..., 2n]`, n real parts and then n imaginary parts. It is
    twice the Wirtinger derivative by the conjugate.
    """

    name = "grad.complex_norm_sq"
    KIND: ClassVar = OpKind.COMPLEX_NORM_SQ_BACKWARD

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_softmax(cls.name, types[0])
        *lead, last = dims_of(types[0])
        whole = isinstance(last, int) and last % 2 == 0
        if not whole or types[1] != tensor([*lead, int(last) // 2], element_of(types[0])):
            raise cls.refuse("z [..., 2n] and an upstream [..., n]", types)
        return types[:1]


def _complex_norm_sq(op: ComplexNormSqBackwardOp, z: Array, upstream: Array) -> Array:
    from rlx.ops.derivative import pulled_back

    n = upstream.shape[-1]
    return pulled_back(lambda z: z[..., :n] ** 2 + z[..., n:] ** 2, z, upstream, 1)


def _expand_complex_norm_sq(w: Writer, op: ComplexNormSqBackwardOp) -> Sequence[SSAValue]:
    z, upstream = op.args
    both = w.concat(len(dims_of(z.type)) - 1, [upstream, upstream])
    return [w.binary(B.MUL, w.binary(B.MUL, z, 2.0), both)]


def _sample_complex_norm_sq(draw: Draw) -> Case:
    *lead, n = draw.shape(1, 2, 3)
    arrays = [draw.array((*lead, 2 * n)), draw.array((*lead, n))]
    return Case(arrays, lambda w, v: w.add_all(ComplexNormSqBackwardOp(*v)))


# Logarithms of bands


@irdl_op_definition
class LogMelBackwardOp(NamedOp):
    """
    The gradient of `signal.log_mel` by the spectrum, complex or of powers.

    `(spectrum [..., 2n] | [..., bins], filters [mels, bins], upstream [..., mels]) -> spectrum`.
    Bands whose power is not above 1e-10 give none; bins of the other side get 0.
    """

    name = "grad.log_mel"
    KIND: ClassVar = OpKind.LOG_MEL_BACKWARD

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        wanted = signal.log_mel(types[0], types[1])
        if types[2] != wanted:
            raise cls.refuse(f"an upstream of the bands' type, {wanted}", types)
        return types[:1]


def _log_mel(op: LogMelBackwardOp, spectrum: Array, filters: Array, upstream: Array) -> Array:
    import numpy as np

    from rlx.ops.derivative import pulled_back

    bins, n = filters.shape[1], spectrum.shape[-1] // 2

    def bands(x: Array) -> Array:
        if spectrum.shape[-1] != bins:
            x = x[..., :bins] ** 2 + x[..., n : n + bins] ** 2
        power = x @ filters.T
        return np.log10(np.where(np.real(power) > signal.SMALLEST_POWER, power, 1))

    return pulled_back(bands, spectrum, upstream, 1)


def _expand_log_mel(w: Writer, op: LogMelBackwardOp) -> Sequence[SSAValue]:
    spectrum, filters, upstream = op.args
    (*lead, last), (_, bins) = dims_of(spectrum.type), dims_of(filters.type)
    assert isinstance(last, int)
    assert isinstance(bins, int)
    axis, n = len(lead), last // 2
    parts: list[SSAValue] = []
    power = spectrum
    if last != bins:
        parts = [w.slice(spectrum, axis, start, bins) for start in (0, n)]
        power = w.binary(B.ADD, *(w.binary(B.MUL, p, p) for p in parts))
    bands = linear(w, power, filters, transposed=True)
    above = w.compare(C.GT, bands, signal.SMALLEST_POWER)
    slope = w.binary(B.DIV, upstream, w.binary(B.MUL, bands, log(10)))
    by_power = linear(w, w.select(above, slope, 0.0), filters)
    if not parts:
        return [by_power]
    doubled = w.binary(B.MUL, by_power, 2.0)
    zeros = [0] * (axis + 1)
    sides = (w.pad(w.binary(B.MUL, part, doubled), zeros, [*zeros[1:], n - bins]) for part in parts)
    return [w.concat(axis, list(sides))]


def _sample_log_mel(draw: Draw) -> Case:
    import numpy as np

    lead, n = [draw.between(1, 5) for _ in range(draw.between(0, 2))], draw.size(1, 64)
    bins, mels = signal.bins_of(n), draw.size(1, 33)
    filters = draw.array((mels, bins), 0.0, 1.0)
    if draw.chance(0.3):
        filters[0] = 0
    is_complex = draw.chance(0.7)
    spectrum = draw.array((*lead, 2 * n if is_complex else bins))
    arrays = [spectrum if is_complex else np.abs(spectrum), filters, draw.array((*lead, mels))]
    return Case(arrays, lambda w, v: w.add_all(LogMelBackwardOp(*v)))


RECORDS = (
    Record(
        ComplexNormSqBackwardOp,
        (OpKind.COMPLEX_NORM_SQ_BACKWARD,),
        ROWS,
        FLOATS,
        _complex_norm_sq,
        _sample_complex_norm_sq,
        _expand_complex_norm_sq,
    ),
    Record(
        LogMelBackwardOp,
        (OpKind.LOG_MEL_BACKWARD,),
        CONTRACTION,
        ("f32",),
        _log_mel,
        _sample_log_mel,
        _expand_log_mel,
    ),
)
