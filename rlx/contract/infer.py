"""The check of a graph: operands that exist, their count, and shapes that follow from operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

from rlx.contract.opkind import OpKind
from rlx.contract.shape import DType, Shape
from rlx.contract.symbols import sym
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.contract.graph import Graph, Op

ACTIVATIONS = frozenset(
    "gelu gelu_approx silu relu sigmoid tanh exp log sqrt rsqrt neg abs sin cos tan atan round"
    " recip floor ceil sign softplus elu erf hard_swish hard_sigmoid mish softsign"
    " log_sigmoid".split()
)
BINARIES = frozenset("add sub mul div max min pow mod bit_and bit_or bit_xor shl shr atan2".split())
COMPARISONS = frozenset("eq ne lt le gt ge".split())
REDUCTIONS = frozenset("sum mean max min prod".split())
MASKS_WITH_OPERAND = ("custom", "bias")

_NUM_INPUTS = {
    1: "Activation Cast Reshape Transpose Narrow Expand ResizeNearest2x Reduce Softmax Cumsum TopK"
    " Sample Pool Quantize Dequantize FakeQuantize FusedSwiGLU Fft ComplexNormSq Conjugate"
    " StopGradient Reverse Pad Slice Clamp Tile Trilu Sort ArgSort ArgMax ArgMin CumProd CumMax"
    " WelchPeaks Cholesky Det LogDet",
    2: "Binary Compare MatMul DotGeneral DenseSolve BatchedDenseSolve Gather ScatterAdd LogMel"
    " FakeQuantizeLSQ ReluBackward ActivationBackward",
    3: "Where GroupedMatMul LayerNorm RmsNorm GroupNorm LayerNorm2d Rope FusedMatMulBiasAct Fma"
    " LogMelBackward",
    4: "LoraMatMul",
    5: "SelectiveScan",
}
NUM_INPUTS = {OpKind(name): n for n, names in _NUM_INPUTS.items() for name in names.split()}
"""The number of operands of each kind that always has the same."""

_LIKE_FIRST = frozenset(
    {
        OpKind.SOFTMAX,
        OpKind.CUMSUM,
        OpKind.LAYER_NORM,
        OpKind.RMS_NORM,
        OpKind.GROUP_NORM,
        OpKind.LAYER_NORM2D,
        OpKind.ATTENTION,
        OpKind.ROPE,
        OpKind.STOP_GRADIENT,
        OpKind.CONJUGATE,
    }
)


VIEW = "op"
"""The attribute of a node that is the view of an operation of IR: the IR has checks of its own."""


def num_inputs(op: Op) -> int:
    """Return how many operands an operation takes, 0 where the kind doesn't say."""
    if VIEW in op.attributes:
        return 0
    if op.kind is OpKind.ATTENTION:
        return 3 + (op.attributes.get("mask") in MASKS_WITH_OPERAND)
    return NUM_INPUTS.get(op.kind, 0)


def verify(graph: Graph) -> list[str]:
    """Return what is wrong with the ids and counts of operands and outputs, in words."""
    return list(_structure(graph))


def verify_shapes(graph: Graph) -> list[str]:
    """Return which declared shapes don't follow from their operands, for the kinds with a rule."""
    shapes = {node.id: node.shape for node in graph.nodes}
    problems: list[str] = []
    for node in graph.nodes:
        where = f"node {node.id} {node.op.kind}"
        if any(not isinstance(d, sym) and d < 0 for d in node.shape.dims):
            problems.append(f"{where}: a dimension is negative in {node.shape}")
        count = num_inputs(node.op)
        inputs = [shapes[i] for i in node.inputs if i in shapes]
        counted = len(inputs) == len(node.inputs) and len(inputs) == (count or len(inputs))
        if not counted or VIEW in node.op.attributes:
            continue
        try:
            inferred = infer(node.op, inputs, node.shape)
        except RlxError as error:
            problems.append(f"{where}: {error}")
            continue
        if inferred is not None and not _agree(inferred, node.shape):
            given = ", ".join(map(str, inputs))
            problems.append(
                f"{where}: expected the result {inferred} of {given}, declared as {node.shape}"
            )
    return problems


def _structure(graph: Graph) -> Iterator[str]:
    seen: set[int] = set()
    known = {node.id for node in graph.nodes}
    for node in graph.nodes:
        where = f"node {node.id} {node.op.kind}"
        if node.id in seen:
            yield f"{where}: another node has the id {node.id}"
        for i in node.inputs:
            if i not in known:
                yield f"{where}: its input {i} is not a node of the graph"
            elif i not in seen:
                yield f"{where}: its input {i} does not come before it"
            elif i > node.id:
                yield f"{where}: its input {i} has a larger id than its own"
        count = num_inputs(node.op)
        if count and len(node.inputs) != count:
            yield f"{where}: expected {count} inputs, got {len(node.inputs)}"
        seen.add(node.id)
    for output in graph.outputs:
        if output not in known:
            yield f"output {output} is not a node of the graph"


def _agree(inferred: Shape, declared: Shape) -> bool:
    """Shapes agree if they are equal; what holds one element may have any rank."""
    one = inferred.num_elements() == declared.num_elements() == 1
    return inferred == declared or (one and inferred.dtype is declared.dtype)


def infer(op: Op, inputs: Sequence[Shape], declared: Shape) -> Shape | None:
    """
    Return the shape that an operation's operands give, or None where its kind has no rule.

    What the operands leave open (a cast's type, a reshape's dimensions) is taken from `declared`.
    Raises RlxError where the operands don't fit each other.
    """
    match op.kind, inputs:
        case OpKind.ACTIVATION, [x]:
            _check_name(op, ACTIVATIONS)
            return x
        case OpKind.BINARY, [a, b]:
            _check_name(op, BINARIES)
            return Shape(broadcast(a, b), a.dtype.promote(b.dtype))
        case OpKind.COMPARE, [a, b]:
            _check_name(op, COMPARISONS)
            return Shape(broadcast(a, b), DType.BOOL)
        case OpKind.WHERE, [condition, a, b]:
            chosen = Shape(broadcast(a, b), a.dtype.promote(b.dtype))
            return Shape(broadcast(condition, chosen), chosen.dtype)
        case OpKind.CAST, [x]:
            return x.with_dtype(declared.dtype)
        case OpKind.MATMUL, [a, b]:
            return matmul(a, b)
        case OpKind.RESHAPE, [x]:
            return _reshape(x, declared)
        case OpKind.EXPAND, [x]:
            return Shape(broadcast(x, declared), x.dtype)
        case OpKind.TRANSPOSE, [x]:
            return _transpose(x, op)
        case OpKind.NARROW, [x]:
            return _narrow(x, op)
        case OpKind.CONCAT, [first, *others]:
            return _concat(op, first, others)
        case OpKind.REDUCE, [x]:
            _check_name(op, REDUCTIONS)
            return _reduce(x, op)
        case OpKind.TOP_K, [x]:
            _check_rank("topk", x, 1)
            return Shape((*x.dims[:-1], _int(op, "k")))
        case OpKind.SAMPLE, [logits]:
            _check_rank("sample", logits, 1)
            return Shape(logits.dims[:-1])
        case kind, [x, *_] if kind in _LIKE_FIRST:
            return x
        case _:
            return None


def broadcast(a: Shape, b: Shape) -> tuple[int, ...]:
    """Return the dimensions in which two shapes meet by NumPy's rule; RlxError if they don't."""
    dims: list[int] = []
    for x, y in zip_longest(reversed(a.dims), reversed(b.dims), fillvalue=1):
        if not (_same(x, y) or _same(x, 1) or _same(y, 1)):
            raise RlxError(f"expected shapes that broadcast, got {a} and {b}")
        dims.append(y if _same(x, 1) else x)
    return tuple(reversed(dims))


def matmul(a: Shape, b: Shape) -> Shape:
    """`[..., m, k] x [..., k, n] -> [..., m, n]`, with leading dimensions that broadcast."""
    if a.rank < 2 or b.rank < 2:
        raise RlxError(f"expected operands of two or more dimensions, got {a} and {b}")
    if not _same(a.dims[-1], b.dims[-2]):
        raise RlxError(f"expected [..., m, k] and [..., k, n] with one k, got {a} and {b}")
    batch = broadcast(Shape(a.dims[:-2]), Shape(b.dims[:-2]))
    return Shape((*batch, a.dims[-2], b.dims[-1]), a.dtype.promote(b.dtype))


def _same(x: int, y: int) -> bool:
    return x == y and isinstance(x, sym) == isinstance(y, sym)


def _check_name(op: Op, names: frozenset[str]) -> None:
    name = op.attributes.get("function")
    if name not in names:
        raise RlxError(f"unknown function {name!r}: expected one of {', '.join(sorted(names))}")


def _check_rank(what: str, x: Shape, rank: int) -> None:
    if x.rank < rank:
        raise RlxError(f"{what}: expected at least {rank} dimensions, got {x}")


def _int(op: Op, name: str) -> int:
    value = op.attributes.get(name)
    if not isinstance(value, int):
        raise RlxError(f"expected the attribute {name} to be an integer, got {value!r}")
    return value


def _ints(op: Op, name: str) -> tuple[int, ...]:
    value = op.attributes.get(name)
    values = value if isinstance(value, tuple) else ()
    ints = tuple(v for v in values if isinstance(v, int))
    if not isinstance(value, tuple) or len(ints) != len(values):
        raise RlxError(f"expected the attribute {name} to be integers, got {value!r}")
    return ints


def _axis(op: Op, x: Shape) -> int:
    axis = _int(op, "axis")
    if not -x.rank <= axis < x.rank:
        raise RlxError(f"expected an axis of {x}, got {axis}")
    return axis % x.rank


def _reshape(x: Shape, declared: Shape) -> Shape:
    """Return `declared` if it can hold the elements of `x`."""
    # Symbols on both sides cancel; what is left must be the same number of elements.
    left, right = list(x.dims), list(declared.dims)
    for symbol in [d for d in left if isinstance(d, sym)]:
        if any(_same(symbol, d) for d in right):
            left.remove(symbol)
            right.remove(symbol)
    open_ = any(isinstance(d, sym) for d in (*left, *right))
    if not open_ and prod(left) != prod(right):
        raise RlxError(f"expected as many elements as {x} has, declared as {declared}")
    return declared.with_dtype(x.dtype)


def _transpose(x: Shape, op: Op) -> Shape:
    order = _ints(op, "order")
    if sorted(order) != list(range(x.rank)):
        raise RlxError(f"expected an order of the {x.rank} dimensions of {x}, got {list(order)}")
    return Shape((x.dims[i] for i in order), x.dtype)


def _narrow(x: Shape, op: Op) -> Shape:
    axis, start, length = _axis(op, x), _int(op, "start"), _int(op, "length")
    size = x.dims[axis]
    fits = isinstance(size, sym) or isinstance(length, sym) or start + length <= size
    if start < 0 or not fits:
        raise RlxError(f"expected a range within {x}, got {length} from {start} on axis {axis}")
    return x.with_dim(axis, length)


def _concat(op: Op, first: Shape, others: list[Shape]) -> Shape:
    axis = _axis(op, first)
    parts = [first.dims[axis]]
    for other in others:
        fits = other.rank == first.rank and other.dtype is first.dtype
        if not fits or other.with_dim(axis, 1) != first.with_dim(axis, 1):
            raise RlxError(f"expected shapes that differ on axis {axis} only: {first} and {other}")
        parts.append(other.dims[axis])
    dynamic = [p for p in parts if isinstance(p, sym)]
    if dynamic and len(parts) > 1:
        raise RlxError(f"expected sizes on axis {axis}, which have a sum, got {dynamic[0]}")
    return first.with_dim(axis, first.dims[axis] if dynamic else sum(parts))


def _reduce(x: Shape, op: Op) -> Shape:
    axes = {a % x.rank if x.rank else a for a in _ints(op, "axes")}
    if not axes <= set(range(x.rank)):
        raise RlxError(f"expected axes of {x}, got {sorted(axes)}")
    keep = bool(op.attributes.get("keep_dims"))
    dims = [1 if i in axes else d for i, d in enumerate(x.dims) if keep or i not in axes]
    return Shape(dims, x.dtype)
