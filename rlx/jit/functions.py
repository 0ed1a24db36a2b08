"""Functions of machine learning that numpy lacks: activations, norms, attention."""

from __future__ import annotations

from typing import Any

from rlx.jit import core, elementwise, manipulation, reductions
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, FLOAT64, Value
from rlx.jit.elementwise import apply, on_floats
from rlx.jit.trace import fail


def _activation(kind: str, text: str) -> Any:
    def function(x: object) -> Any:
        return on_floats(kind, x, function.__name__)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = text
    return function


sigmoid = _activation("sigmoid", "Return 1 / (1 + exp(-x)).")
log_sigmoid = _activation("log_sigmoid", "Return log(sigmoid(x)).")
silu = _activation("silu", "Return x sigmoid(x) (Elfwing et al., 2018).")
erf = _activation("erf", "Return the error function.")
rsqrt = _activation("rsqrt", "Return 1 / sqrt(x).")
softplus = _activation("softplus", "Return log(1 + exp(x)).")
softsign = _activation("softsign", "Return x / (1 + |x|).")
elu = _activation("elu", "Return x, and exp(x) - 1 where x is negative.")
mish = _activation("mish", "Return x tanh(softplus(x)).")
hard_sigmoid = _activation("hard_sigmoid", "Return x / 6 + 1 / 2 within 0 and 1.")
hard_swish = _activation("hard_swish", "Return x hard_sigmoid(x).")


def relu(x: object) -> Any:
    """Return x, and 0 where x is negative."""
    return apply("maximum", x, 0)


def leaky_relu(x: object, slope: float = 0.01) -> Any:
    """Return x, and slope * x where x is negative."""
    return elementwise.where(apply("less", x, 0), apply("multiply", x, slope), x)


def gelu(x: object, approximate: str = "none") -> Any:
    """Return x P(X < x) of a normal X; "tanh" is the approximation by tanh (Hendrycks, 2016)."""
    if approximate not in ("none", "tanh"):
        raise fail(f"gelu: approximate: expected 'none' or 'tanh', got {approximate!r}")
    return on_floats("gelu" if approximate == "none" else "gelu_tanh", x, "gelu")


def _last(x: object, axis: int, name: str) -> tuple[Any, Any, int]:
    """Return floats to compute with, the axis last; the dtype of the result; the axis."""
    value = core.lift(x, what=name)
    dtype = value.dtype if value.dtype.kind == "f" else FLOAT64
    wide = core.cast_to(value, FLOAT32 if dtype == FLOAT16 else dtype)
    place = reductions.one_axis(axis, len(value.dims))
    return manipulation.moveaxis(wide, place, -1), dtype, place


def softmax(x: object, axis: int = -1) -> Any:
    """Return exp(x) / sum(exp(x)) along an axis."""
    value, dtype, place = _last(x, axis, "softmax")
    result = core.make(value, value.dtype, value.dims, "softmax", (), value)
    return core.cast_to(manipulation.moveaxis(result, -1, place), dtype)


def log_softmax(x: object, axis: int = -1) -> Any:
    """Return log(softmax(x)) along an axis."""
    return apply("subtract", x, reductions.logsumexp(x, axis, keepdims=True))


def layer_norm(
    x: object, weight: object = None, bias: object = None, eps: float = 1e-5
) -> Any:  # fmt: skip
    """Return (x - mean) / sqrt(var + eps) * weight + bias over the last axis (Ba et al., 2016)."""
    value, dtype, _ = _last(x, -1, "layer_norm")
    width = value.dims[-1:]
    sides = [
        core.full(default, value.dtype, width)
        if given is None
        else manipulation.broadcast_to(core.lift(given, value.dtype), _sizes(value)[-1:])
        for given, default in ((weight, 1), (bias, 0))
    ]
    result = core.make(value, value.dtype, value.dims, "layer_norm", (float(eps),), value, *sides)
    return core.cast_to(result, dtype)


def _sizes(value: Any) -> Any:
    return value.shape


def rms_norm(x: object, weight: object = None, eps: float = 1e-5) -> Any:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""
    value, dtype, _ = _last(x, -1, "rms_norm")
    square = reductions.mean(value * value, -1, keepdims=True)
    result = value * rsqrt(square + eps)
    return core.cast_to(
        result if weight is None else result * core.lift(weight, value.dtype), dtype
    )


def attention(
    query: object, keys: object, values: object, mask: object = None, *,
    scale: float | None = None, causal: bool = False,
) -> Any:  # fmt: skip
    """
    Return softmax(q k^T * scale + mask) v (Vaswani et al., 2017).

    `[batch..., heads, m, d], [batch..., kv_heads, n, d], [batch..., kv_heads, n, e] ->
    [batch..., heads, m, e]`. `scale` is 1 / sqrt(d) by default. A mask `[batch..., m, n]` of floats
    is added, one of bools says which keys are seen.
    """
    q, k, v = (core.lift(x, what="attention") for x in (query, keys, values))
    dtype = elementwise.result_type(q, k, v)
    wide = FLOAT32 if dtype == FLOAT16 else dtype
    q, k, v = (core.cast_to(x, wide) for x in (q, k, v))
    dims = q.trace.dims
    if not len(q.dims) == len(k.dims) == len(v.dims) >= 3 or not all(
        dims.same(a, b) for a, b in _attention_sizes(q, k, v)
    ):
        given = ", ".join(core.shape_text(x.dims) for x in (q, k, v))
        raise ValueError(
            "attention: expected query [batch..., heads, m, d], keys [batch..., kv_heads, n, d] "
            f"and values [batch..., kv_heads, n, e], got {given}"
        )
    for x in (q, k):
        dims.fix(x.dims[-3])
    width = dims.fix(q.dims[-1])
    factor = float(width**-0.5 if scale is None else scale)
    operands = [q, k, v]
    if mask is not None:
        operands.append(_mask(mask, wide, (*q.dims[:-3], q.dims[-2], k.dims[-2])))
    attributes = (factor, causal)
    shape = (*q.dims[:-1], v.dims[-1])
    result = core.make(q, wide, shape, "sdpa", attributes, *operands)
    return core.cast_to(result, dtype)


def _attention_sizes(q: Value, k: Value, v: Value) -> list[tuple[Any, Any]]:
    batch = [*zip(q.dims[:-3], k.dims[:-3], strict=True)]
    both = [*zip(k.dims[:-1], v.dims[:-1], strict=True)]
    return [*batch, *both, (q.dims[-1], k.dims[-1])]


def _mask(mask: object, dtype: Any, dims: Any) -> Any:
    value = core.lift(mask, what="attention")
    if value.dtype == BOOL:
        value = elementwise.where(value, core.lift(0.0, dtype), core.lift(float("-inf"), dtype))
    value = core.cast_to(value, dtype)
    core.common_shape(value.dims, dims)
    return core.broadcast(value, dims)


def clip(x: object, min: object = None, max: object = None) -> Any:
    """Return elements held within bounds, of which either may be None."""
    if min is not None:
        x = apply("maximum", x, min)
    return x if max is None else apply("minimum", x, max)


def round(x: object, decimals: int = 0) -> Any:
    """Return elements rounded to decimals, halves to even."""
    value = core.lift(x, what="round")
    if value.dtype.kind != "f":
        if decimals < 0:
            raise fail("round: expected decimals of 0 or more for integers")
        return value
    if decimals == 0:
        return apply("rint", value)
    factor = 10.0 ** abs(decimals)
    if decimals > 0:
        return apply("rint", value * factor) / factor
    return apply("rint", value / factor) * factor


def diff(x: object, n: int = 1, axis: int = -1) -> Any:
    """Return the differences of neighbours along an axis, n times."""
    value = core.lift(x, what="diff")
    place = reductions.one_axis(axis, len(value.dims))
    before = (slice(None),) * place
    for _ in range(n):
        high, low = (value[(*before, s)] for s in (slice(1, None), slice(None, -1)))
        value = apply("not_equal" if value.dtype == BOOL else "subtract", high, low)
    return value


def isclose(
    a: object, b: object, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Return whether |a - b| <= atol + rtol |b|, as numpy does."""
    x, y = core.lift(a), core.lift(b)
    near = apply("less_equal", apply("absolute", x - y), atol + rtol * apply("absolute", y))
    near = apply("logical_or", near & apply("isfinite", y), apply("equal", x, y))
    if equal_nan:
        near = near | (apply("isnan", x) & apply("isnan", y))
    return near


def allclose(
    a: object, b: object, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Return whether all elements are close, as an array of rank 0."""
    return reductions.all(isclose(a, b, rtol, atol, equal_nan))
