"""Gradients, losses and fused blocks: what the table of all operations does not show of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from op_cases import Batch, Drawn, type_of
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, f32, f64, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.dialects.test import TestOp as Values
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import signal
from rlx.dialects.common import Dim, DimDef, tensor
from rlx.dialects.kinds import FLOAT_UNARY, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.primitives import GatherOp, UnaryOp
from rlx.dialects.writer import Writer
from rlx.ops.convolution import ConvOp
from rlx.ops.dot_general import DotGeneralOp
from rlx.ops.fused import FusedAttentionBlockOp, FusedTransformerLayerOp
from rlx.ops.grad_attention import AttentionBackwardOp, RopeBackwardOp
from rlx.ops.grad_indexing import GatherBackwardOp
from rlx.ops.grad_modulation import AdaLayerNormBackwardOp, GatedResidualBackwardOp
from rlx.ops.grad_norm import GroupNormBackwardOp, LayerNormBackwardOp, RmsNormBackwardOp
from rlx.ops.grad_quant import FakeQuantizeBackwardOp, FakeQuantizeLsqBackwardOp
from rlx.ops.grad_signal import LogMelBackwardOp
from rlx.ops.grad_unary import DERIVATIVES, UnaryBackwardOp
from rlx.ops.grad_vision import ConvBackwardOp, MaxPoolBackwardOp
from rlx.ops.loss import SoftmaxCrossEntropyBackwardOp, SoftmaxCrossEntropyOp
from rlx.ops.norm import AdaLayerNormOp, GatedResidualOp, GroupNormOp, LayerNormOp, RmsNormOp
from rlx.ops.pool import PoolOp
from rlx.ops.products import FusedMatmulBiasActOp, FusedSwigluOp, LoraMatmulOp
from rlx.ops.record import Case, Surroundings
from rlx.ops.registry import record_of
from rlx.ops.transformer import MASKS, AttentionOp, RopeOp
from rlx.reference import Reference

RNG = np.random.default_rng(5)
Build = Callable[[Writer, Sequence[SSAValue]], Sequence[SSAValue]]


def numbers(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(dtype)


def program(arrays: Sequence[np.ndarray], build: Build) -> ModuleOp:
    block, w = Block(arg_types=[type_of(a) for a in arrays]), Writer()
    results = list(build(w, block.args))
    block.add_ops([*w.made, ReturnOp(*results)])
    main = FuncOp("main", ([a.type for a in block.args], [r.type for r in results]), Region(block))
    main.arg_attrs, main.res_attrs = named("x", len(arrays)), named("y", len(results))
    module = ModuleOp([main])
    module.verify()
    return module


def named(prefix: str, count: int) -> ArrayAttr[DictionaryAttr]:
    names = [StringAttr(f"{prefix}{i}") for i in range(count)]
    return ArrayAttr([DictionaryAttr({"rlx.name": name}) for name in names])


def run(arrays: Sequence[np.ndarray], build: Build) -> list[np.ndarray]:
    """Return what a program means, in float64."""
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    return list(Reference(program(arrays, build), {}).run(inputs).values())


def op(cls: type[Any], **options: Any) -> Build:
    return lambda w, v: w.add_all(cls(*v, **options))


def without(operand: int, build: Build) -> Build:
    """Leave an operand out, which a gradient does not ask for."""
    return lambda w, v: build(w, [*v[:operand], *v[operand + 1 :]])


# A gradient is that of the operation it is for: a small step changes the sum as it says


STRIDES = {"stride": (2, 1), "low": (1, 0), "high": (0, 2), "dilation": (1, 2)}
POOL = {"size": (2, 3), "stride": (1, 2), "low": (1, 0)}
WINDOW = {"mask": "sliding_window", "window": 2}
Q, K, V = (2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 4)


def cases() -> list[Any]:
    """Operands, how many of them get gradients, the operation and its gradient."""
    x, v = numbers(3, 7), numbers(7)
    image = numbers(2, 6, 5, 7)
    attention = [numbers(*s) for s in (Q, K, V)]
    masks = {"custom": RNG.uniform(0, 1, (2, 6)), "bias": numbers(2, 4, 5, 6)}
    kept = {"none": {}, "causal": {}, "sliding_window": {"window": 2}}
    angles = numbers(5, 2)
    tables = [np.cos(angles), np.sin(angles)]
    found = [
        *(
            (f"norm {forward.name}", [x, v, v], 3, op(forward), without(2, op(norm, wrt="all")))
            for forward, norm in (
                (LayerNormOp, LayerNormBackwardOp), (RmsNormOp, RmsNormBackwardOp),
            )
        ),
        (
            "group_norm", [image, numbers(6), numbers(6)], 3,
            op(GroupNormOp, groups=2), without(2, op(GroupNormBackwardOp, groups=2, wrt="all")),
        ),
        (
            "conv", [image, numbers(4, 3, 2, 3)], 2,
            op(ConvOp, groups=2, **STRIDES), op(ConvBackwardOp, groups=2, wrt="all", **STRIDES),
        ),
        ("max_pool", [image], 1, op(PoolOp, kind="max", **POOL), op(MaxPoolBackwardOp, **POOL)),
        (
            "ada_layer_norm", [numbers(2, 3, 7), numbers(2, 1, 7), numbers(1, 3, 7)], 3,
            op(AdaLayerNormOp), op(AdaLayerNormBackwardOp),
        ),
        (
            "gated_residual", [x, numbers(1, 7)], 2,
            lambda w, v: w.add_all(GatedResidualOp(w.value(0.0, v[0].type), *v)),
            op(GatedResidualBackwardOp),
        ),
        ("log_mel", [np.float32(numbers(2, 8)), np.float32(RNG.uniform(0.1, 1, (4, 3)))], 1,
            lambda w, v: [w.add(signal.LogMelOp(*v))], op(LogMelBackwardOp)),
        ("gather", [x, np.array([2, 0, 2])], 1,
            lambda w, v: [w.add(GatherOp(*v, 1))], op(GatherBackwardOp, axis=1)),
        *(
            (
                f"attention {mask}", [*attention, *([masks[mask]] if mask in masks else [])], 3,
                op(AttentionOp, mask=mask, softcap=1.5, **kept.get(mask, {})),
                op(AttentionBackwardOp, mask=mask, softcap=1.5, **kept.get(mask, {})),
            )
            for mask in MASKS
        ),
        *(
            (
                f"loss {reduction}", [x, labels], 1,
                op(SoftmaxCrossEntropyOp, reduction=reduction),
                op(SoftmaxCrossEntropyBackwardOp, reduction=reduction),
            )
            for reduction in ("none", "mean", "sum")
            for labels in (np.array([0, 6, -1]), RNG.uniform(0, 1, (3, 7)))
        ),
        *(
            (
                f"rope {style}", [numbers(2, 5, 10), *tables], 1,
                op(RopeOp, head_dim=5, style=style),
                without(0, op(RopeBackwardOp, head_dim=5, style=style)),
            )
            for style in ("half", "pairs")
        ),
    ]  # fmt: skip
    return [pytest.param(*rest, id=name) for name, *rest in found]


@pytest.mark.parametrize(("arrays", "moved", "forward", "backward"), cases())
def test_a_gradient_says_what_a_small_step_changes(
    arrays: list[np.ndarray], moved: int, forward: Build, backward: Build
):
    (y,) = run(arrays, forward)
    upstream = np.asarray(RNG.uniform(-2, 2, y.shape)).astype(arrays[0].dtype)
    gradients = run([*arrays, upstream], backward)
    assert len(gradients) == moved
    for i, by_operand in enumerate(gradients):
        assert by_operand.shape == arrays[i].shape
        step = RNG.uniform(-1, 1, arrays[i].shape)
        h = 1e-2 if arrays[i].dtype == np.float32 else 1e-6
        sides = []
        for sign in (1, -1):
            moved_to = [a + sign * h * step if j == i else a for j, a in enumerate(arrays)]
            moved_to = [a.astype(b.dtype) for a, b in zip(moved_to, arrays, strict=True)]
            sides.append((run(moved_to, forward)[0] * upstream).sum())
        change = (sides[0] - sides[1]) / (2 * h)
        wanted = (by_operand * step).sum()
        close = 1e-3 if h > 1e-3 else 1e-7
        np.testing.assert_allclose(change, wanted, rtol=close, atol=close)


# Element-wise functions


def test_every_function_has_a_derivative():
    assert set(DERIVATIVES) == set(FLOAT_UNARY)
    x = np.concatenate([np.linspace(-3.85, 3.85, 14), [-30.3, 30.3]])
    positive = np.linspace(0.2, 4, 16)
    kinds = list(DERIVATIVES)
    inputs = [
        positive if k in (UnaryKind.SQRT, UnaryKind.RSQRT, UnaryKind.LOG) else x for k in kinds
    ]
    h = 1e-6

    def functions(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return [w.add(UnaryOp(kind, a)) for kind, a in zip(kinds, v, strict=True)]

    def gradients(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        ones = w.value(1.0, v[0].type)
        return [w.add(UnaryBackwardOp(a, ones, of=k.value)) for k, a in zip(kinds, v, strict=True)]

    sides = [run([a + s * h for a in inputs], functions) for s in (1, -1)]
    for kind, above, below, got in zip(kinds, *sides, run(inputs, gradients), strict=True):
        np.testing.assert_allclose(
            got, (above - below) / (2 * h), rtol=1e-6, atol=1e-7, err_msg=kind
        )


@pytest.mark.parametrize(
    ("kind", "x", "slope"),
    [
        ("relu", 0.0, 0.0), ("abs", 0.0, 0.0), ("elu", 0.0, 1.0), ("hard_sigmoid", -3.0, 0.0),
        ("hard_sigmoid", 3.0, 0.0), ("hard_swish", -3.0, 0.0), ("hard_swish", 3.0, 1.0),
        ("sign", 2.0, 0.0), ("round", 0.5, 0.0),
    ],
)  # fmt: skip
def test_a_kink_has_the_slope_that_is_written_down(kind: str, x: float, slope: float):
    arrays = [np.full(5, x, np.float32), np.full(5, 3, np.float32)]
    case = Case(arrays, op(UnaryBackwardOp, of=kind))
    batch = Batch([Drawn(record_of("grad.unary"), "f32", 0, case)])
    np.testing.assert_array_equal(batch.wanted["y0_0"], np.full(5, 3 * slope))
    batch.check(["host"], (1,))


def test_norms_of_one_or_two_elements_have_next_to_no_gradient():
    for cls, d in ((LayerNormBackwardOp, 1), (LayerNormBackwardOp, 2), (RmsNormBackwardOp, 1)):
        arrays = [np.sign(numbers(9, d)) * 2 + np.arange(d), numbers(d), numbers(9, d)]
        (by_input,) = run(arrays, op(cls, eps=1e-6))
        assert np.abs(by_input).max() < 1e-4


# Losses


def test_a_label_of_no_class_leaves_its_row_out():
    logits, labels = numbers(4, 5), np.array([1, -100, 4, 5])
    losses = run([logits, labels], op(SoftmaxCrossEntropyOp))[0]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(losses[[0, 2]], -np.log(shares[[0, 2], [1, 4]]))
    np.testing.assert_array_equal(losses[[1, 3]], 0)
    (mean,) = run([logits, labels], op(SoftmaxCrossEntropyOp, reduction="mean"))
    np.testing.assert_allclose(mean, losses.sum() / 2)
    backward = op(SoftmaxCrossEntropyBackwardOp, reduction="mean")
    gradient = run([logits, labels, np.array(1.0)], backward)[0]
    np.testing.assert_array_equal(gradient[[1, 3]], 0)


def test_no_label_at_all_has_no_mean_and_no_gradient():
    arrays = [numbers(3, 5).astype(np.float32), np.full(3, -1, np.int32)]
    forward = Case(arrays, op(SoftmaxCrossEntropyOp, reduction="mean"))
    backward = Case(
        [*arrays, np.float32(1)[...]], op(SoftmaxCrossEntropyBackwardOp, reduction="mean")
    )
    records = [
        record_of("loss.softmax_cross_entropy"),
        record_of("loss.softmax_cross_entropy_backward"),
    ]
    batch = Batch(
        [Drawn(r, "f32", 0, c) for r, c in zip(records, (forward, backward), strict=True)]
    )
    assert np.isnan(batch.wanted["y0_0"])
    np.testing.assert_array_equal(batch.wanted["y1_0"], 0)
    batch.check(["host"], (1,))


def test_logits_may_be_far_apart():
    arrays = [np.array([[1000.0, -1000.0, 990.0]], np.float32), np.array([2])]
    batch = Batch(
        [
            Drawn(
                record_of("loss.softmax_cross_entropy"),
                "f32",
                0,
                Case(arrays, op(SoftmaxCrossEntropyOp)),
            )
        ]
    )
    np.testing.assert_allclose(batch.wanted["y0_0"], np.log(1 + np.exp(10)))
    batch.check(["host"], (1,))


# Attention


def test_a_window_that_reaches_far_enough_is_causal():
    arrays = [numbers(*s) for s in (Q, K, V)]
    causal = run(arrays, op(AttentionOp, mask="causal"))[0]
    near = run(arrays, op(AttentionOp, mask="sliding_window", window=9))[0]
    alone = run(arrays, op(AttentionOp, mask="sliding_window", window=0))[0]
    np.testing.assert_allclose(near, causal)
    # Query i sees the key at its own position, i + n - m, alone.
    np.testing.assert_allclose(alone, np.repeat(arrays[2], 2, axis=1)[:, :, 1:])


def test_rope_turns_pairs_of_either_style():
    x, angle = numbers(1, 4), np.array([[0.3, 0.7]])
    tables = [np.cos(angle), np.sin(angle)]
    half = run([x, *tables], op(RopeOp, head_dim=4, style="half"))[0]
    order = [0, 2, 1, 3]
    pairs = run([x[:, order], *tables], op(RopeOp, head_dim=4, style="pairs"))[0]
    np.testing.assert_allclose(pairs, half[:, order])
    turned = (x[0, 0] + 1j * x[0, 2]) * np.exp(0.3j)
    np.testing.assert_allclose(half[0, [0, 2]], [turned.real, turned.imag])


# Dimensions with names


SEQ = (DimDef("seq", 1, 40),)


def with_names(
    cls: type[NamedOp], shapes: Sequence[Sequence[Dim]], size: int, **options: Any
) -> Batch:
    """Return a case of an operation whose dimension `seq` has a size that is known when it runs."""
    types = [tensor(s, f32) for s in shapes]
    arrays = [
        numbers(*(size if d == "seq" else int(d) for d in s), dtype=np.float32) for s in shapes
    ]
    around = Surroundings(dims=SEQ, sizes={"seq": size}, types=types)
    return Batch([Drawn(record_of(cls.name), "f32", 0, Case(arrays, op(cls, **options), around))])


S = "seq"
NAMED: list[Any] = [
    (UnaryBackwardOp, [(3, S), (3, S)], {"of": "gelu"}),
    (LayerNormBackwardOp, [(S, 7), (7,), (S, 7)], {"wrt": "all"}),
    (RmsNormBackwardOp, [(2, S, 7), (7,), (2, S, 7)], {"wrt": "all"}),
    (GroupNormBackwardOp, [(S, 4, 3), (4,), (S, 4, 3)], {"wrt": "all", "groups": 2}),
    (SoftmaxCrossEntropyOp, [(S, 9), (S, 9)], {"reduction": "mean"}),
    (SoftmaxCrossEntropyBackwardOp, [(S, 9), (S, 9), (S,)], {}),
    (AttentionOp, [(4, S, 8), (2, S, 8), (2, S, 8)], {"mask": "causal"}),
    (AttentionOp, [(4, S, 8), (2, S, 8), (2, S, 8)], {"mask": "sliding_window", "window": 3}),
    (AttentionOp, [(2, 2, S, 8), (2, 2, S, 8), (2, 2, S, 8), (2, S)], {"mask": "custom"}),
    (AttentionOp, [(2, 2, 3, 8), (2, 1, S, 8), (2, 1, S, 8), (2, 2, 3, S)], {"mask": "bias"}),
    (AttentionOp, [(2, S, 8)] * 3, {"mask": "causal", "softcap": 2.0}),
    (AttentionBackwardOp, [(2, S, 8)] * 4, {"mask": "sliding_window", "window": 5}),
    (RopeOp, [(2, S, 12), (S, 2), (S, 2)], {"head_dim": 6}),
    (RopeBackwardOp, [(S, 2), (S, 2), (S, 12)], {"head_dim": 6, "style": "pairs"}),
    (AdaLayerNormBackwardOp, [(2, S, 7), (2, 1, 7), (2, 1, 7), (2, S, 7)], {}),
    (GatedResidualBackwardOp, [(S, 7), (1, 7), (S, 7)], {}),
    (FusedMatmulBiasActOp, [(S, 5), (5, 6), (6,)], {"act": "gelu"}),
    (LoraMatmulOp, [(2, S, 5), (5, 6), (5, 2), (2, 6)], {"scale": 0.5}),
    (FusedSwigluOp, [(S, 10)], {}),
    (DotGeneralOp, [(S, 5, 3), (3, 4, S)],
     {"lhs_batch": (0,), "rhs_batch": (2,), "lhs_contract": (2,), "rhs_contract": (0,)}),
    (FusedAttentionBlockOp, [(S, 6), (6, 24), (8, 6), (S,), (S, 2), (S, 2)],
     {"heads": 2, "rope": True}),
]  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize(("cls", "shapes", "options"), NAMED)
def test_dimensions_may_have_names(
    cls: type[NamedOp], shapes: Sequence[Sequence[Dim]], options: dict[str, Any]
):
    batch = with_names(cls, shapes, 13, **options)
    batch.check_text()
    batch.check(["host"])


# What does not fit


def value(*dims: Dim, element: Attribute = f32) -> SSAValue:
    return Values(result_types=[tensor(dims, element)]).results[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UnaryBackwardOp(value(3), value(4)), "an upstream of the type of the operand"),
        (lambda: LayerNormBackwardOp(value(3, 4), value(3), value(3, 4)), r"gamma \[channels\]"),
        (lambda: LayerNormBackwardOp(value(), value(3), value()), "a dimension or more"),
        (
            lambda: GroupNormBackwardOp(value(2, 5, 3), value(5), value(2, 5, 3), groups=2),
            "a multiple of 2 groups",
        ),
        (
            lambda: SoftmaxCrossEntropyOp(value(3, 4), value(4, element=i64)),
            r"labels \[\.\.\.\] of i32 or i64",
        ),
        (lambda: SoftmaxCrossEntropyOp(value(3, 4), value(3, 4, element=f64)), "labels"),
        (
            lambda: SoftmaxCrossEntropyBackwardOp(value(3, 4), value(3, 4), value(3, 4)),
            "an upstream of the type of the loss",
        ),
        (lambda: ConvBackwardOp(value(1, 2, 5), value(3, 2, 3), value(1, 3, 4)), "an upstream of"),
        (lambda: MaxPoolBackwardOp(value(1, 2, 5), value(1, 2, 5), size=(2, 2)), "in `size`"),
        (
            lambda: AttentionOp(value(2, 3, 4), value(2, 3, 4), value(2, 3, 4), mask="bias"),
            "expected 4 operands",
        ),
        (
            lambda: AttentionOp(*[value(2, 3, 4)] * 3, value(3, 3), mask="custom"),
            "a mask tensor<3xf32> of kind custom",
        ),
        (lambda: AttentionOp(*[value(2, 3, 4)] * 3, softcap=-1.0), "a softcap and a window from 0"),
        (
            lambda: AttentionBackwardOp(value(4, "m", 3), *[value(2, 5, 3)] * 2, value(4, "m", 3)),
            "a number of queries where heads share keys",
        ),
        (lambda: RopeOp(value(3, 10), value(3, 4), value(3, 4), head_dim=5), "r at most 2"),
        (lambda: FakeQuantizeBackwardOp(value(3), value(3), bits=5), "8, 4, 2 bits, got 5"),
        (
            lambda: FakeQuantizeLsqBackwardOp(value(3, 2), value(2), value(3, 2), axis=0),
            r"a scale tensor<3xf32>",
        ),
        (lambda: GatherBackwardOp(value("n", 2), value(3, element=i64), value(3, 2)), "a number"),
        (
            lambda: DotGeneralOp(value(3, 4), value(4, 5), lhs_contract=(0,), rhs_contract=(0,)),
            r"pairs of axes of one size.*lhs_contract \[0\]",
        ),
        (lambda: DotGeneralOp(value(3, "n"), value(4)), r"a dimension alone, to join"),
        (lambda: LoraMatmulOp(*[value(3, 3)] * 3, value(3, 4)), r"a \[k, r\] and b \[r, n\]"),
        (lambda: FusedSwigluOp(value(3, 5)), r"\[\.\.\., 2n\]"),
        (
            lambda: FusedAttentionBlockOp(
                value(3, 4), value(4, 10), value(4, 4), value(3), heads=2
            ),
            "whole heads, 2",
        ),
        (
            lambda: FusedTransformerLayerOp(value(3, 4), *[value(4)] * 8, value(3)),
            r"a weight \[k, n\]",
        ),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(make: Callable[[], NamedOp], message: str):
    with pytest.raises(VerifyException, match=message):
        make()
