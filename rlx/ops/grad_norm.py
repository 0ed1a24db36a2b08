"""Gradients of norms: of layer, root-mean-square and group norm, by input, gamma and beta."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, R, U = BinaryKind, ReduceKind, UnaryKind

WRT = ("input", "gamma", "beta", "all")
"""By which operand; `all` gives the three of them as three results, of one pass."""


class _NormBackwardOp(NamedOp):
    """A gradient of gamma * (x - mean) / sqrt(variance + eps) + beta along some axis of gamma."""

    CENTRED: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def channels(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> int:
        """Return the axis along which gamma and beta lie. Raises VerifyException for none."""

    @abstractmethod
    def rows(self) -> Sequence[Dim]:
        """Return the shape of the input in which the last axis is what a norm is over."""

    @abstractmethod
    def array_rows(self, x: Array) -> Array:
        """Return an array in this shape."""

    @property
    def axis(self) -> int:
        return self.channels([v.type for v in self.args], self.chosen)

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        infer.check_softmax(cls.name, types[0])
        x, gamma, upstream = types
        wanted = tensor([dims_of(x)[cls.channels(types, o)]], element_of(x))
        if upstream != x or gamma != wanted:
            raise cls.refuse("x, gamma [channels] and an upstream of the type of x", types)
        return {"input": [x], "all": [x, gamma, gamma]}.get(o["wrt"], [gamma])


class _LastNormBackwardOp(_NormBackwardOp):
    """That of a norm over the last axis."""

    @classmethod
    def channels(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> int:
        return len(dims_of(types[0])) - 1

    def rows(self) -> Sequence[Dim]:
        return dims_of(self.args[0].type)

    def array_rows(self, x: Array) -> Array:
        return x


@irdl_op_definition
class LayerNormBackwardOp(_LastNormBackwardOp):
    """
    Gradients of layer norm over the last axis (Ba et al., 2016), by input, gamma, beta or all.

    `(x [..., d], gamma [d], upstream [..., d]) -> [..., d] | [d] | [d] | all three`.
    """

    name = "grad.layer_norm"
    KIND: ClassVar = OpKind.LAYER_NORM_BACKWARD_INPUT
    OPTIONS: ClassVar = {"wrt": "input", "eps": 1e-5}
    CHOICES: ClassVar = {"wrt": WRT}


@irdl_op_definition
class RmsNormBackwardOp(_LastNormBackwardOp):
    """
    Gradients of gamma * x / sqrt(mean(x^2) + eps) + beta over the last axis, as of layer norm.

    The norm is that of Zhang and Sennrich (2019).
    """

    name = "grad.rms_norm"
    CENTRED: ClassVar = False
    KIND: ClassVar = OpKind.RMS_NORM_BACKWARD_INPUT
    OPTIONS: ClassVar = {"wrt": "input", "eps": 1e-5}
    CHOICES: ClassVar = {"wrt": WRT}


@irdl_op_definition
class GroupNormBackwardOp(_NormBackwardOp):
    """
    Gradients of group norm (Wu and He, 2018), by input, gamma, beta or all.

    `(x [n, channels, d...], gamma [channels], upstream of x) -> x | gamma | gamma | all three`;
    `groups` divides the channels. Dimensions but n are numbers.
    """

    name = "grad.group_norm"
    KIND: ClassVar = OpKind.GROUP_NORM_BACKWARD_INPUT
    OPTIONS: ClassVar = {"wrt": "input", "groups": 1, "eps": 1e-5}
    CHOICES: ClassVar = {"wrt": WRT}

    @classmethod
    def channels(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> int:
        sizes = [d for d in dims_of(types[0])[1:] if isinstance(d, int)]
        groups = o["groups"]
        if len(sizes) + 1 != len(dims_of(types[0])) or not sizes or groups < 1 or sizes[0] % groups:
            raise cls.refuse(
                f"[n, channels, d...] with numbers for dimensions but n, and channels that are a "
                f"multiple of {groups} groups",
                types,
            )
        return 1

    def rows(self) -> Sequence[Dim]:
        n, *sizes = dims_of(self.args[0].type)
        groups = self.option("groups")
        return [n, groups, prod(d for d in sizes if isinstance(d, int)) // groups]

    def array_rows(self, x: Array) -> Array:
        groups = self.option("groups")
        return x.reshape(x.shape[0], groups, prod(x.shape[1:]) // groups)


# Meaning


def _norm(op: _NormBackwardOp, x: Array, gamma: Array, beta: Array) -> Array:
    """Return the norm itself, of complex numbers too."""
    import numpy as np

    rows = op.array_rows(x)
    if op.CENTRED:
        rows = rows - rows.mean(axis=-1, keepdims=True)
    variance = (rows * rows).mean(axis=-1, keepdims=True)
    normal = (rows / np.sqrt(variance + op.option("eps"))).reshape(x.shape)
    along = [-1 if i == op.axis else 1 for i in range(x.ndim)]
    return normal * gamma.reshape(along) + beta.reshape(along)


def _meaning(op: _NormBackwardOp, x: Array, gamma: Array, upstream: Array) -> Any:
    import numpy as np

    from rlx.ops.derivative import pulled_back

    beta = np.zeros_like(gamma)
    lead = op.axis if op.axis == x.ndim - 1 else 1
    functions: dict[str, Callable[[], Array]] = {
        "input": lambda: pulled_back(
            lambda x: _norm(op, x, gamma, beta), x, upstream, x.ndim - lead
        ),
        "gamma": lambda: pulled_back(lambda g: _norm(op, x, g, beta), gamma, upstream, 1),
        "beta": lambda: pulled_back(lambda b: _norm(op, x, gamma, b), beta, upstream, 1),
    }
    wrt = op.option("wrt")
    return [f() for f in functions.values()] if wrt == "all" else functions[wrt]()


# Expansion


def _expand(w: Writer, op: _NormBackwardOp) -> Sequence[SSAValue]:
    """With u = gamma * upstream and y the normal: (u - mean(u) - y * mean(u * y)) / deviation."""
    x, gamma, upstream = op.args
    dims, rows, wrt = dims_of(x.type), op.rows(), op.option("wrt")
    centred = w.reshape(x, rows) if list(rows) != list(dims) else x
    if op.CENTRED:
        centred = w.binary(B.SUB, centred, w.last(R.MEAN, centred))
    squares = w.reduce(R.MEAN, w.binary(B.MUL, centred, centred), [len(rows) - 1], keep=True)
    scale = w.unary(U.RSQRT, w.binary(B.ADD, squares, op.option("eps")))
    scale = w.spread(scale, rows)
    normal = w.binary(B.MUL, centred, scale)

    def by_input() -> SSAValue:
        u = w.binary(B.MUL, upstream, w.along(gamma, op.axis, dims))
        u = w.reshape(u, rows) if list(rows) != list(dims) else u
        rest = w.binary(B.MUL, normal, w.last(R.MEAN, w.binary(B.MUL, u, normal)))
        if op.CENTRED:
            rest = w.binary(B.ADD, rest, w.last(R.MEAN, u))
        result = w.binary(B.MUL, w.binary(B.SUB, u, rest), scale)
        return w.reshape(result, dims) if list(rows) != list(dims) else result

    def by_gamma() -> SSAValue:
        whole = w.reshape(normal, dims) if list(rows) != list(dims) else normal
        return summed(w.binary(B.MUL, upstream, whole))

    def summed(v: SSAValue) -> SSAValue:
        return w.reduce(R.SUM, v, [i for i in range(len(dims)) if i != op.axis])

    functions = {"input": by_input, "gamma": by_gamma, "beta": lambda: summed(upstream)}
    return [f() for name, f in functions.items() if wrt in (name, "all")]


# Samples


def _sample_last(op: type[_NormBackwardOp]) -> Callable[[Draw], Case]:
    def sample(draw: Draw) -> Case:
        shape = draw.shape(1, 2, 3)
        return _case(draw, op, shape, shape[-1], over=shape[-1])

    return sample


def _sample_group(draw: Draw) -> Case:
    groups, per_group = draw.between(1, 4), draw.between(1, 5)
    spatial = tuple(draw.between(1, 6) for _ in range(draw.between(0, 2)))
    shape = (draw.size(1, 17), groups * per_group, *spatial)
    over = per_group * prod(spatial)
    return _case(draw, GroupNormBackwardOp, shape, shape[1], over, groups=groups)


def _case(
    draw: Draw,
    op: type[_NormBackwardOp],
    shape: Sequence[int],
    channels: int,
    over: int,
    **options: Any,
) -> Case:
    # Over few elements, with a small eps, little of a gradient may be left but rounding.
    options |= {"wrt": draw.choice(WRT), "eps": draw.choice([1e-5, 1e-3]) if over > 8 else 1.0}
    arrays = [draw.array(shape), draw.array((channels,)), draw.array(shape)]
    return Case(arrays, lambda w, v: w.add_all(op(*v, **options)))


NMSE = 1e-11
"""Gamma and beta are sums over rows, in which terms cancel."""

RECORDS = (
    Record(
        LayerNormBackwardOp,
        (OpKind.LAYER_NORM_BACKWARD_INPUT, OpKind.LAYER_NORM_BACKWARD_GAMMA),
        ROWS,
        FLOATS,
        _meaning,
        _sample_last(LayerNormBackwardOp),
        _expand,
        nmse=NMSE,
    ),
    Record(
        RmsNormBackwardOp,
        (
            OpKind.RMS_NORM_BACKWARD_INPUT,
            OpKind.RMS_NORM_BACKWARD_GAMMA,
            OpKind.RMS_NORM_BACKWARD_BETA,
        ),
        ROWS,
        FLOATS,
        _meaning,
        _sample_last(RmsNormBackwardOp),
        _expand,
        nmse=NMSE,
    ),
    Record(
        GroupNormBackwardOp,
        (
            OpKind.GROUP_NORM_BACKWARD_INPUT,
            OpKind.GROUP_NORM_BACKWARD_GAMMA,
            OpKind.GROUP_NORM_BACKWARD_BETA,
        ),
        ROWS,
        FLOATS,
        _meaning,
        _sample_group,
        _expand,
        nmse=NMSE,
    ),
)
