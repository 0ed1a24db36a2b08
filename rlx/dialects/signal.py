"""
Operations of signal processing, which HIR and MIR may hold beside the primitives.

They are rare, so they have a dialect of their own, which is loaded when a text first names it.
Complex numbers are real tensors of two blocks: `[..., 2n]` holds n real parts, then n imaginary
parts. The spectrum of a signal of n samples has the frequencies 0, 1/n, ... of the sampling rate.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import I64, IntegerAttr, TensorType, f32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from rlx.dialects import infer, shapes
from rlx.dialects.common import dims_of, spell, tensor
from rlx.dialects.definition import op_definition
from rlx.dialects.ops import AnyTensor, i64_attr

SMALLEST_POWER = 1e-10
"""What `signal.log_mel` takes the logarithm of, at least."""


class FftKind(StrEnum):
    FORWARD = "forward"
    INVERSE = "inverse"


class FftNorm(StrEnum):
    BACKWARD = "backward"
    FORWARD = "forward"
    ORTHO = "ortho"


@irdl_attr_definition
class FftKindAttr(EnumAttribute[FftKind], SpacedOpaqueSyntaxAttribute):
    name = "signal.fft_kind"


@irdl_attr_definition
class FftNormAttr(EnumAttribute[FftNorm], SpacedOpaqueSyntaxAttribute):
    name = "signal.fft_norm"


@op_definition
class FftOp(IRDLOperation):
    """
    Discrete Fourier transforms of the last dimension: `[..., 2n] -> [..., 2n]`, any n from 1.

    Forward is X[k] = sum_t x[t] exp(-2 pi i k t / n), inverse has exp(+...). `norm` says which of
    them is divided by n: the inverse (backward, the default), the forward one, or each by the
    square root of n (ortho).
    """

    name = "signal.fft"
    T: ClassVar = VarConstraint("T", AnyTensor)
    kind = prop_def(FftKindAttr)
    norm = prop_def(FftNormAttr, default_value=FftNormAttr(FftNorm.BACKWARD))
    input = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$kind $input (`norm` $norm^)? `:` type($input) attr-dict"

    def __init__(self, kind: FftKind, input: SSAValue, norm: FftNorm = FftNorm.BACKWARD):
        super().__init__(
            operands=[input],
            properties={"kind": FftKindAttr(kind), "norm": FftNormAttr(norm)},
            result_types=[input.type],
        )

    @property
    def length(self) -> int:
        """Return n, the complex numbers of a row."""
        return _complex_length(self.name, self.input.type)

    @property
    def scale(self) -> float:
        """Return the factor of the result."""
        norm, n = self.norm.data, self.length
        if norm is FftNorm.ORTHO:
            return n**-0.5
        divided = FftKind.FORWARD if norm is FftNorm.FORWARD else FftKind.INVERSE
        return 1 / n if self.kind.data is divided else 1.0

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.FLOATS)
        _complex_length(self.name, self.input.type)


@op_definition
class WelchPeaksOp(IRDLOperation):
    """
    The k strongest peaks of spectra averaged over segments: `[b * segments, 2n] -> [b, 2k]`.

    Row i of the result is of the rows i * segments, i * segments + 1, ... of the input (Welch,
    1967). The power of bin j, from 0 to n / 2, is the mean of re^2 + im^2 over them; it is not
    doubled for the other side. A bin is a peak if its power is greater than that of the bin before
    it and not less than that of the bin after it, where there are such. Peaks are in the order of
    descending power, the smaller bin first of equals; the bins that are no peaks follow in the same
    order, so that there are always k. A row of the result is (bin, power) of each in turn, both
    f32. A power that is NaN counts as 0 and is no peak.
    """

    name = "signal.welch_peaks"
    k = prop_def(IntegerAttr[I64])
    segments = prop_def(IntegerAttr[I64])
    input = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `k` $k `segments` $segments `:` type($input) `->` type($result) attr-dict"
    )

    def __init__(self, input: SSAValue, k: int, segments: int, type: Attribute | None = None):
        """Take the spectra; `type` is needed where their number has a name."""
        if type is None:
            type = welch_peaks(input.type, k, segments)
        super().__init__(
            operands=[input],
            properties={"k": i64_attr(k), "segments": i64_attr(segments)},
            result_types=[type],
        )

    @property
    def length(self) -> int:
        """Return n, the complex numbers of a spectrum."""
        return _complex_length(self.name, self.input.type)

    def verify_(self) -> None:
        k, segments = self.k.value.data, self.segments.value.data
        rows = dims_of(self.input.type)[:1]
        if rows and isinstance(rows[0], str) and segments > 1:
            # The module's table says whether the names fit (`rlx.passes.verify_dims`).
            _check_welch(self.input.type, k, segments)
            batch = dims_of(self.result.type)[:1]
            if not batch or not isinstance(batch[0], str):
                raise VerifyException(
                    f"{self.name}: expected a dimension with a name for the {rows[0]} / {segments} "
                    f"rows of the result, got {spell(self.result.type)}"
                )
            shapes.expect(self, self.result.type, tensor([batch[0], 2 * k]))
            return
        shapes.expect(self, self.result.type, welch_peaks(self.input.type, k, segments))


@op_definition
class LogMelOp(IRDLOperation):
    """
    Logarithms of the power in bands: `[..., 2n], [mels, bins] -> [..., mels]`, bins = n / 2 + 1.

    With the power p = re^2 + im^2 of each bin, or p itself given as `[..., bins]`, the result is
    log10(max(filters p, 1e-10)), where max gives NaN for NaN. It is the front end of Whisper
    (Radford et al., 2022) up to its last two steps, which primitives can express:
    (max(y, max(y) - 8) + 4) / 4. Elements are f32.
    """

    name = "signal.log_mel"
    spectrum = operand_def(AnyTensor)
    filters = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$spectrum `,` $filters `:` type($spectrum) `,` type($filters) `->` type($result) attr-dict"
    )

    def __init__(self, spectrum: SSAValue, filters: SSAValue):
        super().__init__(
            operands=[spectrum, filters], result_types=[log_mel(spectrum.type, filters.type)]
        )

    @property
    def is_complex(self) -> bool:
        """Return whether the spectrum is complex, not a power already."""
        return dims_of(self.spectrum.type)[-1] != dims_of(self.filters.type)[-1]

    def verify_(self) -> None:
        shapes.expect(self, self.result.type, log_mel(self.spectrum.type, self.filters.type))


def bins_of(n: int) -> int:
    """Return the bins of one side of a spectrum of n."""
    return n // 2 + 1


def _complex_length(what: str, type_: Attribute) -> int:
    """Return n of `[..., 2n]`. Raises VerifyException for another shape."""
    dims = dims_of(type_)
    last = dims[-1] if dims else None
    if not isinstance(last, int) or last < 2 or last % 2:
        raise VerifyException(
            f"{what}: expected [..., 2n], n real parts and then n imaginary parts with n from 1, "
            f"got {spell(type_)}"
        )
    return last // 2


def _check_welch(type_: Attribute, k: int, segments: int) -> None:
    name = WelchPeaksOp.name
    infer.check_element(name, type_, (f32,))
    bins = bins_of(_complex_length(name, type_))
    if len(dims_of(type_)) != 2:
        raise VerifyException(f"{name}: expected spectra [b * segments, 2n], got {spell(type_)}")
    if not 1 <= k <= bins:
        raise VerifyException(
            f"{name}: expected k from 1 to {bins}, the bins of {spell(type_)}, got {k}"
        )
    if segments < 1:
        raise VerifyException(f"{name}: expected a segment or more, got {segments}")


def welch_peaks(type_: Attribute, k: int, segments: int) -> TensorType[Attribute]:
    """Return the type of the peaks. Raises VerifyException where the spectra don't fit."""
    _check_welch(type_, k, segments)
    rows = dims_of(type_)[0]
    if segments == 1:
        return tensor([rows, 2 * k])
    if not isinstance(rows, int) or rows % segments:
        raise VerifyException(
            f"{WelchPeaksOp.name}: expected a multiple of {segments} segments, got {spell(type_)}"
        )
    return tensor([rows // segments, 2 * k])


def log_mel(spectrum: Attribute, filters: Attribute) -> TensorType[Attribute]:
    """Return the type of the bands. Raises VerifyException where the filters don't fit."""
    name = LogMelOp.name
    for type_ in (spectrum, filters):
        infer.check_element(name, type_, (f32,))
    dims, matrix = dims_of(spectrum), dims_of(filters)
    last = dims[-1] if dims else None
    fits = len(matrix) == 2 and isinstance(last, int) and isinstance(matrix[0], int)
    if isinstance(last, int) and fits:
        fits = last == matrix[1] or (last % 2 == 0 and bins_of(last // 2) == matrix[1])
    if not fits or last == 0:
        raise VerifyException(
            f"{name}: expected a complex spectrum [..., 2n] with filters [mels, n / 2 + 1], or a "
            f"power [..., bins] with filters [mels, bins], got {spell(spectrum)} and "
            f"{spell(filters)}"
        )
    return tensor([*dims[:-1], matrix[0]])


Signal = Dialect("signal", [FftOp, WelchPeaksOp, LogMelOp], [FftKindAttr, FftNormAttr])
