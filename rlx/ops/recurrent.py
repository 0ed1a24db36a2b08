"""
Recurrent layers: what runs over the rows of a sequence in order.

The products with the input are those of all rows at once; one kernel goes from row to row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops import selective_scan
from rlx.ops.record import FLOATS, SCAN, Array, Case, Record
from rlx.ops.samples import Draw

B = BinaryKind

# One kernel: a cell after the other, given the products with the input

UNITS = 16
"""Hidden units whose weights lie together."""

CELLS = ("lstm", "gru", "gru_before", "tanh", "relu")
"""What a step computes; `gru_before` resets the state before the product with it."""
GATES = {"lstm": 4, "gru": 3, "gru_before": 3, "tanh": 1, "relu": 1}


@irdl_op_definition
class StepsOp(NamedOp):
    """
    The steps of a recurrent layer, `[t, batch, dirs, gates * h]` being what the input gives.

    Further operands are the weights of the state in panels `[dirs, ceil(h / 16), h, gates, 16]`, a
    state `[dirs, batch, h]`, and a second one of an LSTM, or `[dirs, h]` of a GRU: the bias that is
    reset with the product. Results are the output `[t, batch, dirs, h]` and the states at the end.
    The second direction, or with `reverse` the only one, goes from the last step to the first. See
    `recurrent.lstm`, `recurrent.gru` and `recurrent.rnn`, whose gates are in the order i, f, g, o
    and r, z, n.
    """

    name = "recurrent.steps"
    KIND: ClassVar = OpKind.RNN
    OPTIONS: ClassVar = {"cell": "lstm", "reverse": False}
    CHOICES: ClassVar = {"cell": CELLS}
    LAUNCHED: ClassVar = True
    IN_PLACE: ClassVar = ((2, 1),)

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 4 if o["cell"] in ("lstm", "gru") else 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        given, h = [dims_of(t) for t in types], dims_of(types[2])[-1:]
        gates = GATES[o["cell"]]
        if len(given[0]) == 4 and isinstance(n := (*h, "")[0], int):
            t, batch, dirs, _ = given[0]
            wanted = [(t, batch, dirs, gates * n), (dirs, -(-n // UNITS), n, gates, UNITS)]
            wanted += [(dirs, batch, n)] * (2 if o["cell"] == "lstm" else 1)
            wanted += [(dirs, n)] * (o["cell"] == "gru")
            if dirs in (1, 2) and [tensor(d, element_of(types[0])) for d in wanted] == list(types):
                output = tensor([t, batch, dirs, n], element_of(types[0]))
                return [output, *[types[2]] * (2 if o["cell"] == "lstm" else 1)]
        raise cls.refuse(
            f"[t, batch, dirs, {gates} * h], panels [dirs, ceil(h / 16), h, {gates}, 16] and "
            "states [dirs, batch, h] of one element, with numbers for dirs, 1 or 2, and h",
            types,
        )


def _sigmoid(x: Array) -> Array:
    import numpy as np

    return 1 / (1 + np.exp(-x))


def _step(
    cell: str, gates: Array, r: Array, h: Array, other: Array | None
) -> tuple[Array, Array | None]:
    """One step of a cell: `[batch, gates * h]`, `[gates * h, h]`, `[batch, h]` -> the states."""
    import numpy as np

    n = h.shape[-1]
    own = [gates[:, i * n : (i + 1) * n] for i in range(GATES[cell])]
    rows = [r[i * n : (i + 1) * n] for i in range(GATES[cell])]
    if cell in ("tanh", "relu"):
        sum_ = own[0] + h @ rows[0].T
        return (np.tanh(sum_) if cell == "tanh" else np.maximum(sum_, 0)), None
    if cell == "lstm":
        assert other is not None
        i, f, g, o = (x + h @ w.T for x, w in zip(own, rows, strict=True))
        c = _sigmoid(f) * other + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c
    reset, update = (_sigmoid(own[k] + h @ rows[k].T) for k in (0, 1))
    if cell == "gru":
        new = np.tanh(own[2] + reset * (h @ rows[2].T + other))
    else:
        new = np.tanh(own[2] + (reset * h) @ rows[2].T)
    return (1 - update) * new + update * h, other


def _run(
    cell: str, reverse: bool, gates: Array, r: Array, h: Array, other: Array | None
) -> tuple[Array, ...]:
    """Run steps on `[t, batch, dirs, gates * h]` and `[dirs, gates * h, h]`."""
    import numpy as np

    t, batch, dirs, _ = gates.shape
    output = np.zeros((t, batch, dirs, h.shape[-1]), gates.dtype)
    h, other = h.copy(), None if other is None else other.copy()
    for d in range(dirs):
        for step in range(t)[:: -1 if reverse or d else 1]:
            own = None if other is None else other[d]
            h[d], own = _step(cell, gates[step, :, d], r[d], h[d], own)
            if other is not None and own is not None:
                other[d] = own
            output[step, :, d] = h[d]
    return (output, h) if cell != "lstm" or other is None else (output, h, other)


def _steps(
    op: StepsOp, gates: Array, panels: Array, h: Array, other: Array | None = None
) -> tuple[Array, ...]:
    dirs, many, n, count, _ = panels.shape
    r = panels.transpose(0, 3, 1, 4, 2).reshape(dirs, count, many * UNITS, n)[:, :, :n]
    r = r.reshape(dirs, count * n, n)
    return _run(op.option("cell"), op.option("reverse"), gates, r, h, other)


def _sample_steps(draw: Draw) -> Case:
    cell = draw.choice(CELLS)
    dirs, t, batch = draw.between(1, 2), draw.size(0, 7), draw.size(0, 8)
    n, gates = draw.size(high=33), GATES[cell]
    arrays = [draw.array((t, batch, dirs, gates * n), -2, 2)]
    weights = draw.array((dirs, -(-n // UNITS), n, gates, UNITS), -1, 1) / draw.dtype(n) ** 0.5
    arrays += [weights.astype(draw.dtype), draw.array((dirs, batch, n), -1, 1)]
    if cell == "lstm":
        arrays.append(draw.array((dirs, batch, n), -1, 1))
    if cell == "gru":
        arrays.append(draw.array((dirs, n), -1, 1))
    options: dict[str, Any] = {"cell": cell, "reverse": draw.chance()}
    return Case(arrays, lambda w, v: w.add_all(StepsOp(*v, **options)))


# Layers


class _Layer(NamedOp):
    """
    A layer whose cell is given by its options.

    Operands are x `[t, batch, i]`, weights `[dirs, gates * h, i]` and `[dirs, gates * h, h]`, with
    `bias` two biases `[dirs, 2, gates * h]` (the input's and the state's), with `state` initial
    states `[dirs, batch, h]`, which are 0 otherwise. Results are the output `[t, batch, dirs * h]`
    and the states at the end. One direction, backwards with `reverse`, or both.
    """

    STATES: ClassVar[int] = 1
    ORDERS: ClassVar[Mapping[str, Sequence[int]]] = {"": (0,)}
    """Option `order` -> where each of the kernel's gates is."""

    @property
    @abstractmethod
    def cell(self) -> str:
        """Return which cell the kernel has for it."""

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3 + o["bias"] + cls.STATES * o["state"])
        infer.check_element(cls.name, types[0], infer.FLOATS)
        x, w, r = (dims_of(t) for t in types[:3])
        if len(x) == 3 and len(w) == 3 and len(r) == 3:
            (t, batch, i), (dirs, _, _), h = x, w, r[-1]
            if isinstance(h, int) and isinstance(i, int) and dirs in (1, 2):
                total = len(next(iter(cls.ORDERS.values()))) * h
                wanted: list[tuple[Dim, ...]] = [x, (dirs, total, i), (dirs, total, h)]
                wanted += [(dirs, 2, total)] * o["bias"]
                wanted += [(dirs, batch, h)] * (cls.STATES * o["state"])
                element = element_of(types[0])
                if [tensor(d, element) for d in wanted] == list(types) and h > 0:
                    state = tensor([dirs, batch, h], element)
                    return [tensor([t, batch, dirs * h], element), *[state] * cls.STATES]
        raise cls.refuse(
            "x [t, batch, i], weights [dirs, gates * h, i] and [dirs, gates * h, h], with `bias` "
            "[dirs, 2, gates * h], with `state` states [dirs, batch, h], all of one element, and "
            "numbers for dirs, 1 or 2, i and h, above 0",
            types,
        )

    @property
    def gate_order(self) -> Sequence[int]:
        return self.ORDERS[self.chosen.get("order", "")]


def _layer(op: _Layer, x: Array, w: Array, r: Array, *more: Array) -> tuple[Array, ...]:
    import numpy as np

    dirs, total, h = r.shape
    order = [k * h + i for k in op.gate_order for i in range(h)]
    w, r, rest = w[:, order], r[:, order], list(more)
    bias = rest.pop(0)[:, :, order] if op.option("bias") else np.zeros((dirs, 2, total), x.dtype)
    states = rest or [np.zeros((dirs, x.shape[1], h), x.dtype)] * op.STATES
    # The bias of a GRU's new state is reset with its product; all others are added to the input's.
    added, other = bias.sum(axis=1), states[1] if op.STATES > 1 else None
    if op.cell == "gru":
        added[:, 2 * h :] = bias[:, 0, 2 * h :]
        other = np.repeat(bias[:, 1:, 2 * h :], x.shape[1], axis=1)
    gates = np.einsum("tbi,dgi->tbdg", x, w) + added
    output, *ends = _run(op.cell, op.option("reverse"), gates, r, states[0], other)
    return output.reshape(*output.shape[:2], dirs * h), *ends


def _ordered(w: Writer, x: SSAValue, axis: int, order: Sequence[int]) -> SSAValue:
    """Return the parts of an axis in another order."""
    if list(order) == list(range(len(order))):
        return x
    return w.concat(axis, [w.slice(x, axis, k, 1) for k in order])


def _panels(w: Writer, r: SSAValue, gates: int) -> SSAValue:
    """Return the weights of the state as `recurrent.steps` takes them, from `[dirs, g, h, h]`."""
    dirs, h = (d for d in (dims_of(r.type)[0], dims_of(r.type)[-1]) if isinstance(d, int))
    many = -(-h // UNITS)
    if h % UNITS:
        missing = tensor([dirs, gates, many * UNITS - h, h], element_of(r.type))
        r = w.concat(2, [r, w.value(0.0, missing)])
    return w.transpose(w.reshape(r, [dirs, gates, many, UNITS, h]), [0, 2, 4, 1, 3])


def _product(w: Writer, x: SSAValue, weights: SSAValue) -> SSAValue:
    """Return `[t, batch, i] x [n, i] -> [t, batch, n]`."""
    t, batch, i = dims_of(x.type)
    n = dims_of(weights.type)[0]
    numbers = [d for d in (t, batch) if isinstance(d, int)]
    if len(numbers) == 2 or 1 in numbers:
        rows = prod(numbers) if len(numbers) == 2 else next(d for d in (t, batch) if d != 1)
        return w.reshape(w.dot(w.reshape(x, [rows, i]), weights, y_t=True), [t, batch, n])
    return w.dot(x, w.spread(weights, [t, n, i]), y_t=True)


def _expand_layer(w: Writer, op: _Layer) -> Sequence[SSAValue]:
    x, weights, r, *rest = op.args
    (t, batch, i), (dirs, total, h) = dims_of(x.type), dims_of(r.type)
    assert isinstance(dirs, int)
    assert isinstance(total, int)
    assert isinstance(h, int)
    order, element = op.gate_order, element_of(x.type)
    count = len(order)
    weights = _ordered(w, w.reshape(weights, [dirs, count, h, i]), 1, order)
    projected = _product(w, x, w.reshape(weights, [dirs * total, i]))
    reset: list[SSAValue] = []
    if op.cell == "gru":
        reset = [w.value(0.0, tensor([dirs, h], element))]
    if op.option("bias"):
        bias = _ordered(w, w.reshape(rest.pop(0), [dirs, 2, count, h]), 2, order)
        own, other = (w.reshape(w.slice(bias, 1, k, 1), [dirs, count, h]) for k in (0, 1))
        if op.cell == "gru":
            reset = [w.reshape(w.slice(other, 1, 2, 1), [dirs, h])]
            none = w.value(0.0, tensor([dirs, 1, h], element))
            other = w.concat(1, [w.slice(other, 1, 0, 2), none])
        added = w.reshape(w.binary(B.ADD, own, other), [dirs * total])
        projected = w.binary(B.ADD, projected, w.spread(added, dims_of(projected.type)))
    states = list(rest) or [w.value(0.0, tensor([dirs, batch, h], element))] * op.STATES
    gates = w.reshape(projected, [t, batch, dirs, total])
    panels = _panels(w, _ordered(w, w.reshape(r, [dirs, count, h, h]), 1, order), count)
    steps = StepsOp(gates, panels, *states, *reset, cell=op.cell, reverse=op.option("reverse"))
    output, *ends = w.add_all(steps)
    return [w.reshape(output, [t, batch, dirs * h]), *ends]


def _sample_layer(op: type[_Layer]) -> Callable[[Draw], Case]:
    def sample(draw: Draw) -> Case:
        options: dict[str, Any] = {"reverse": draw.chance()}
        options |= {name: draw.chance() for name in ("bias", "state")}
        options |= {name: draw.choice(choices) for name, choices in op.CHOICES.items()}
        if "reset_after" in op.OPTIONS:
            options["reset_after"] = draw.chance()
        dirs, t, batch = draw.between(1, 2), draw.size(0, 7), draw.size(0, 8)
        i, h = draw.size(high=17), draw.size(high=33)
        total = len(next(iter(op.ORDERS.values()))) * h
        shapes = [(t, batch, i), (dirs, total, i), (dirs, total, h)]
        shapes += [(dirs, 2, total)] * options["bias"]
        shapes += [(dirs, batch, h)] * (op.STATES * options["state"])
        arrays = [draw.array(s, -0.5, 0.5) for s in shapes]
        return Case(arrays, lambda w, v: w.add_all(op(*v, **options)))

    return sample


_COMMON = {"bias": False, "state": False, "reverse": False}


@irdl_op_definition
class LstmOp(_Layer):
    """
    A layer of long short-term memory (Hochreiter and Schmidhuber, 1997).

    c = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c), where each gate is a sum of
    products of x and h and of biases. Gates are in the `order` i, f, g, o (PyTorch's) or i, o, f, g
    (ONNX's, which writes c for g). Operands are x `[t, batch, i]`, weights `[dirs, 4 h, i]` and
    `[dirs, 4 h, h]`, with `bias` `[dirs, 2, 4 h]`, with `state` h and c `[dirs, batch, h]`; results
    the output `[t, batch, dirs * h]`, h and c at the end.
    """

    name = "recurrent.lstm"
    KIND: ClassVar = OpKind.LSTM
    OPTIONS: ClassVar = {**_COMMON, "order": "ifgo"}
    CHOICES: ClassVar = {"order": ("ifgo", "iofg")}
    STATES: ClassVar = 2
    ORDERS: ClassVar = {"ifgo": (0, 1, 2, 3), "iofg": (0, 2, 3, 1)}

    @property
    def cell(self) -> str:
        return "lstm"


@irdl_op_definition
class GruOp(_Layer):
    """
    A layer of gated recurrent units (Cho et al., 2014).

    h = (1 - z) n + z h with r and z the sigmoids of their gates. With `reset_after` n = tanh(W x +
    b + r (R h + b')) (PyTorch's, and ONNX's with linear_before_reset), else tanh(W x + b + R (r h)
    + b'). Gates are in the `order` r, z, n (PyTorch's) or z, r, n (ONNX's). Operands and results
    are those of `recurrent.lstm` with three gates, without c.
    """

    name = "recurrent.gru"
    KIND: ClassVar = OpKind.GRU
    OPTIONS: ClassVar = {**_COMMON, "order": "rzn", "reset_after": True}
    CHOICES: ClassVar = {"order": ("rzn", "zrn")}
    ORDERS: ClassVar = {"rzn": (0, 1, 2), "zrn": (1, 0, 2)}

    @property
    def cell(self) -> str:
        return "gru" if self.option("reset_after") else "gru_before"


@irdl_op_definition
class RnnOp(_Layer):
    """
    A layer of the plain kind: h = tanh(W x + b + R h + b'), or relu of it (Elman, 1990).

    Operands and results are those of `recurrent.lstm` with one gate, without c.
    """

    name = "recurrent.rnn"
    KIND: ClassVar = OpKind.RNN
    OPTIONS: ClassVar = {**_COMMON, "activation": "tanh"}
    CHOICES: ClassVar = {"activation": ("tanh", "relu")}

    @property
    def cell(self) -> str:
        return str(self.option("activation"))


def _layers(op: type[_Layer], kind: OpKind) -> Record:
    sample = _sample_layer(op)
    return Record(op, (kind,), SCAN, FLOATS, _layer, sample, _expand_layer, nmse=1e-11)


RECORDS = (
    Record(
        StepsOp, (OpKind.LSTM, OpKind.GRU, OpKind.RNN), SCAN, FLOATS, _steps, _sample_steps,
        kernel="rlx.lowering.recurrent", nmse=1e-11,
    ),
    _layers(LstmOp, OpKind.LSTM),
    _layers(GruOp, OpKind.GRU),
    _layers(RnnOp, OpKind.RNN),
    *selective_scan.RECORDS,
)  # fmt: skip

Recurrent = Dialect("recurrent", [r.op for r in RECORDS], [])
