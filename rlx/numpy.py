"""
numpy's functions for code that `rlx.jit` traces, by the names of the array API standard.

They take traced arrays, arrays, numbers and sizes, promote and broadcast as numpy 2 does, and give
traced arrays. Beside the standard's names there are numpy's own second names and functions of
machine learning (`gelu`, `softmax`, `layer_norm`, `attention`, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as _np

from rlx.jit import creation as _creation
from rlx.jit import cumulative as _cumulative
from rlx.jit import elementwise as _elementwise
from rlx.jit import functions as _functions
from rlx.jit import linalg as _linalg
from rlx.jit import manipulation as _manipulation
from rlx.jit import reductions as _reductions
from rlx.jit import sorting as _sorting

int8, int16, int32, int64 = _np.int8, _np.int16, _np.int32, _np.int64
finfo, iinfo, isdtype = _np.finfo, _np.iinfo, _np.isdtype
float16, float32, float64 = _np.float16, _np.float32, _np.float64
e, pi, inf, nan, newaxis = _np.e, _np.pi, _np.inf, _np.nan, _np.newaxis

arange = _creation.arange
array = _creation.array
asarray = _creation.asarray
empty = _creation.empty
empty_like = _creation.empty_like
eye = _creation.eye
full = _creation.full
full_like = _creation.full_like
identity = _creation.identity
linspace = _creation.linspace
meshgrid = _creation.meshgrid
one_hot = _creation.one_hot
ones = _creation.ones
ones_like = _creation.ones_like
tri = _creation.tri
zeros = _creation.zeros
zeros_like = _creation.zeros_like

can_cast = _elementwise.can_cast
power = _elementwise.power
result_type = _elementwise.result_type
where = _elementwise.where

allclose = _functions.allclose
attention = _functions.attention
clip = _functions.clip
diff = _functions.diff
elu = _functions.elu
erf = _functions.erf
gelu = _functions.gelu
hard_sigmoid = _functions.hard_sigmoid
hard_swish = _functions.hard_swish
isclose = _functions.isclose
layer_norm = _functions.layer_norm
leaky_relu = _functions.leaky_relu
log_sigmoid = _functions.log_sigmoid
log_softmax = _functions.log_softmax
mish = _functions.mish
relu = _functions.relu
rms_norm = _functions.rms_norm
rsqrt = _functions.rsqrt
sigmoid = _functions.sigmoid
silu = _functions.silu
softmax = _functions.softmax
softplus = _functions.softplus
softsign = _functions.softsign

diagonal = _linalg.diagonal
dot = _linalg.dot
einsum = _linalg.einsum
inner = _linalg.inner
matmul = _linalg.matmul
matvec = _linalg.matvec
norm = _linalg.norm
outer = _linalg.outer
tensordot = _linalg.tensordot
trace = _linalg.trace
vdot = _linalg.vdot
vecdot = _linalg.vecdot
vecmat = _linalg.vecmat
vector_norm = _linalg.vector_norm

astype = _manipulation.astype
atleast_1d = _manipulation.atleast_1d
atleast_2d = _manipulation.atleast_2d
broadcast_arrays = _manipulation.broadcast_arrays
broadcast_to = _manipulation.broadcast_to
column_stack = _manipulation.column_stack
concat = _manipulation.concat
concatenate = _manipulation.concatenate
expand_dims = _manipulation.expand_dims
flatten = _manipulation.flatten
flip = _manipulation.flip
hstack = _manipulation.hstack
matrix_transpose = _manipulation.matrix_transpose
moveaxis = _manipulation.moveaxis
ndim = _manipulation.ndim
pad = _manipulation.pad
permute_dims = _manipulation.permute_dims
ravel = _manipulation.ravel
repeat = _manipulation.repeat
reshape = _manipulation.reshape
roll = _manipulation.roll
shape = _manipulation.shape
split = _manipulation.split
squeeze = _manipulation.squeeze
stack = _manipulation.stack
swapaxes = _manipulation.swapaxes
take = _manipulation.take
take_along_axis = _manipulation.take_along_axis
tile = _manipulation.tile
transpose = _manipulation.transpose
tril = _manipulation.tril
triu = _manipulation.triu
unstack = _manipulation.unstack
vstack = _manipulation.vstack

all = _reductions.all
any = _reductions.any
argmax = _reductions.argmax
argmin = _reductions.argmin
average = _reductions.average
count_nonzero = _reductions.count_nonzero
logsumexp = _reductions.logsumexp
max = _reductions.max
mean = _reductions.mean
min = _reductions.min
nansum = _reductions.nansum
prod = _reductions.prod
ptp = _reductions.ptp
std = _reductions.std
sum = _reductions.sum
var = _reductions.var

cumprod = _cumulative.cumprod
cumsum = _cumulative.cumsum
cumulative_prod = _cumulative.cumulative_prod
cumulative_sum = _cumulative.cumulative_sum

argsort = _sorting.argsort
isin = _sorting.isin
median = _sorting.median
searchsorted = _sorting.searchsorted
sort = _sorting.sort
top_k = _sorting.top_k


def _ufunc(name: str) -> Callable[..., Any]:
    ufunc = _elementwise.ALIASES.get(name, name)

    def function(*args: object) -> Any:
        return _elementwise.apply(ufunc, *args)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Return numpy.{ufunc} of traced arrays, promoted and broadcast as numpy does."
    )
    return function


abs = _ufunc("abs")
absolute = _ufunc("absolute")
acos = _ufunc("acos")
acosh = _ufunc("acosh")
add = _ufunc("add")
arccos = _ufunc("arccos")
arccosh = _ufunc("arccosh")
arcsin = _ufunc("arcsin")
arcsinh = _ufunc("arcsinh")
arctan = _ufunc("arctan")
arctan2 = _ufunc("arctan2")
arctanh = _ufunc("arctanh")
asin = _ufunc("asin")
asinh = _ufunc("asinh")
atan = _ufunc("atan")
atan2 = _ufunc("atan2")
atanh = _ufunc("atanh")
bitwise_and = _ufunc("bitwise_and")
bitwise_invert = _ufunc("bitwise_invert")
bitwise_left_shift = _ufunc("bitwise_left_shift")
bitwise_not = _ufunc("bitwise_not")
bitwise_or = _ufunc("bitwise_or")
bitwise_right_shift = _ufunc("bitwise_right_shift")
bitwise_xor = _ufunc("bitwise_xor")
cbrt = _ufunc("cbrt")
ceil = _ufunc("ceil")
conj = _ufunc("conj")
conjugate = _ufunc("conjugate")
copysign = _ufunc("copysign")
cos = _ufunc("cos")
cosh = _ufunc("cosh")
deg2rad = _ufunc("deg2rad")
degrees = _ufunc("degrees")
divide = _ufunc("divide")
equal = _ufunc("equal")
exp = _ufunc("exp")
exp2 = _ufunc("exp2")
expm1 = _ufunc("expm1")
fabs = _ufunc("fabs")
float_power = _ufunc("float_power")
floor = _ufunc("floor")
floor_divide = _ufunc("floor_divide")
fmax = _ufunc("fmax")
fmin = _ufunc("fmin")
fmod = _ufunc("fmod")
greater = _ufunc("greater")
greater_equal = _ufunc("greater_equal")
heaviside = _ufunc("heaviside")
hypot = _ufunc("hypot")
invert = _ufunc("invert")
isfinite = _ufunc("isfinite")
isinf = _ufunc("isinf")
isnan = _ufunc("isnan")
left_shift = _ufunc("left_shift")
less = _ufunc("less")
less_equal = _ufunc("less_equal")
log = _ufunc("log")
log10 = _ufunc("log10")
log1p = _ufunc("log1p")
log2 = _ufunc("log2")
logaddexp = _ufunc("logaddexp")
logical_and = _ufunc("logical_and")
logical_not = _ufunc("logical_not")
logical_or = _ufunc("logical_or")
logical_xor = _ufunc("logical_xor")
maximum = _ufunc("maximum")
minimum = _ufunc("minimum")
mod = _ufunc("mod")
multiply = _ufunc("multiply")
negative = _ufunc("negative")
not_equal = _ufunc("not_equal")
positive = _ufunc("positive")
rad2deg = _ufunc("rad2deg")
radians = _ufunc("radians")
reciprocal = _ufunc("reciprocal")
remainder = _ufunc("remainder")
right_shift = _ufunc("right_shift")
rint = _ufunc("rint")
sign = _ufunc("sign")
signbit = _ufunc("signbit")
sin = _ufunc("sin")
sinh = _ufunc("sinh")
sqrt = _ufunc("sqrt")
square = _ufunc("square")
subtract = _ufunc("subtract")
tan = _ufunc("tan")
tanh = _ufunc("tanh")
true_divide = _ufunc("true_divide")
trunc = _ufunc("trunc")
round = around = _functions.round
pow = power
amax, amin, fix = max, min, trunc
bool = _np.bool
