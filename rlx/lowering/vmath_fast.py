"""
Fast forms of functions of f32, for programs that ask for `precision="fast"`; others are exact.

f16 and bf16 are computed in f32. f64 is exact, and so is every kind that isn't here. A kind is
here where its fast form takes at most 0.8 of the exact one's time. Times are nanoseconds for
sixteen elements out of L1, exact and fast, of one thread on a Xeon (Sapphire Rapids).

The largest errors against long double over the samples of `test_vmath_fast`, in ulp, with AVX-512,
AVX2 and SSE2; `exact` where an instruction set has no fast form:

| function  | AVX-512 | AVX2  | SSE2  | time: AVX-512 | AVX2      | SSE2      | and      |
|-----------|---------|-------|-------|---------------|-----------|-----------|----------|
| exp       | 64      | 21    | 64    | 5.6, 3.9      | 10.4, 5.3 | 37, 18    | (1), (2) |
| log       | 9.8     | 4.8   | 4.8   | 10.6, 4.8     | 13.3, 6.6 | 39, 23    |          |
| sin, cos  | 1.5e-7  | 1.5e-7| 1.6e-7| 15.2, 6.5     | 19.2, 6.2 | 59, 20    | (3)      |
| tanh      | 35      | 14    | 14    | 7.5, 4.8      | 13.9, 6.9 | 34, 17    |          |
| erf       | 17      | 6     | 7     | 6.2, 4.2      | 15.3, 7.1 | 70, 19    |          |
| gelu      | 3.4e-7  | 9e-7  | 9e-7  | 11.2, 5.1     | 25.7, 8.8 | 75, 25    | (4)      |
| gelu_tanh | 12      | 12    | 12    | 14.3, 7.6     | 22.5, 8.2 | 61, 24    | (5)      |
| sigmoid   | 64      | 21    | 64    | 11.6, 5.8     | 20.1, 6.9 | 51, 20    | (1), (2) |
| silu      | 64      | 21    | 64    | 13.2, 6.4     | 22.0, 7.3 | 56, 21    | (1), (2) |
| pow       | 24      | 64    | exact | 26.7, 12.3    | 40.8, 23.3|           | (1)      |
| div       | 0.53    | exact | exact | 4.8, 2.7      |           |           | (6)      |
| recip     | 0.53    | 2.0   | exact | 4.6, 2.1      | 4.8, 3.0  |           | (7)      |
| sqrt      | 0.8     | exact | exact | 5.4, 3.0      |           |           |          |
| rsqrt     | 1.03    | 3.1   | exact | 9.1, 2.5      | 9.6, 4.1  |           | (7)      |

1. It grows with the exponent of the result: 18 ulp from 1e-9 to 1e9.
2. Results below 1.7e-38 are within 1.7e-38, silu's at arguments below -87 within 1.5e-36.
3. An absolute error. From 25000 on the exact forms take over.
4. An absolute error up to 4, then 3 ulp; 16 ulp from -1.5 on.
5. From -3 on; below, the absolute error is below 1e-7.
6. Of divisors of at least 1.2e-38, or 0, and dividends of 1e-30 and more, or 0; smaller ones may
   give 14 bits, or infinity. Quotients that f32 has are exact. 0 may lose its sign.
7. With AVX2 a subnormal counts as 0, as does a reciprocal of 1.2e-38 and less.

NaN passes through, zero and infinity give what they do in `vmath`, but that gelu may give 0 for -0.
log and pow of subnormals are right. No result depends on how many lanes a vector has or on what is
beside it. Those of div and the roots may differ between makes of CPUs.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value
from rlx.lowering.vmath_base import has_fma, wide
from rlx.lowering.vmath_fast_exp import exp, gelu_tanh, log, pow, sigmoid, silu
from rlx.lowering.vmath_fast_pieces import erf, gelu, tanh
from rlx.lowering.vmath_fast_roots import div, recip, rsqrt, sqrt
from rlx.lowering.vmath_fast_trig import cos, sin

FAST: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "log": log,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "erf": erf,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "pow": pow,
    "recip": recip,
    "rsqrt": rsqrt,
    "div": div,
    "sqrt": sqrt,
}
"""Kind -> generator of a fast form, of f32."""


def fast(f: Function, kind: str, v: Value) -> Callable[..., Value] | None:
    """Return the generator of a kind's fast form; None where the exact one is to be taken."""
    if not f.module.fast or v.element != "float" or not _pays(f, kind):
        return None
    return FAST.get(kind)


def _pays(f: Function, kind: str) -> bool:
    """Return whether the CPU has the instructions that make a fast form fast."""
    if kind in ("div", "sqrt"):
        return wide(f)
    if kind in ("recip", "rsqrt"):
        return f.target.avx2
    return has_fma(f) or kind != "pow"
