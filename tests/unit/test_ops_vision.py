"""Operations on images, against numbers worked out by hand and what must hold of them."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import expanded, made, meaning
from xdsl.dialects.builtin import f32, i8
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import tensor
from rlx.dialects.named import Option
from rlx.ops.conv_blocks import (
    DepthwiseConv1dCausalOp,
    FusedConvBiasActOp,
    PartitionedConvOp,
)
from rlx.ops.convolution import ConvOp, ConvTransposeOp
from rlx.ops.pool import GlobalPoolOp, Im2colOp, PoolOp
from rlx.ops.resize import ResizeNearest2xOp, ResizeOp
from rlx.ops.vision import AxialRope2dOp

RNG = np.random.default_rng(4)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


# Convolution


def test_convolution_of_one_channel():
    x, w = np.array([[[1.0, 2, 3, 4, 5]]]), np.array([[[1.0, 0, -1]]])
    np.testing.assert_array_equal(meaning(ConvOp, x, w), [[[-2, -2, -2]]])
    padded = meaning(ConvOp, x, w, low=(1,), stride=(2,))
    np.testing.assert_array_equal(padded, [[[-2, -2, 4]]])
    apart = meaning(ConvOp, x, w, low=(0,), high=(1,), dilation=(2,))
    np.testing.assert_array_equal(apart, [[[-4, 2]]])


def test_convolution_is_numpys_correlation():
    x, w = random(1, 1, 30), random(1, 1, 7)
    y = meaning(ConvOp, x, w, low=(3,))
    np.testing.assert_allclose(y[0, 0], np.correlate(x[0, 0], w[0, 0], "same"))


def test_groups_are_convolutions_side_by_side():
    x, w, b = random(2, 6, 5, 4), random(4, 3, 2, 3), random(4)
    whole = meaning(ConvOp, x, w, b, groups=2, low=(1, 0))
    parts = [
        meaning(ConvOp, x[:, 3 * g : 3 * g + 3], w[2 * g : 2 * g + 2], b[2 * g : 2 * g + 2],
                low=(1, 0))
        for g in range(2)
    ]  # fmt: skip
    np.testing.assert_allclose(whole, np.concatenate(parts, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"stride": (2, 1), "low": (1, 2)},
        {"low": (0, 3), "high": (2, 0), "dilation": (2, 1), "groups": 2},
        {"stride": (3, 3)},
    ],
)
def test_transposed_convolution_is_the_adjoint(options: dict[str, Option]):
    """<conv(x), y> is <x, conv_transpose(y)>; what no window reaches is `extra`."""
    w = random(4, 4 // (2 if "groups" in options else 1), 3, 2)
    x = random(2, 4, 9, 8)
    seen = meaning(ConvOp, x, w, **options)
    y = random(*seen.shape)
    least = meaning(ConvTransposeOp, y, w, **options)
    extra = tuple(n - m for n, m in zip(x.shape[2:], least.shape[2:], strict=True))
    back = meaning(ConvTransposeOp, y, w, extra=extra, **options)
    np.testing.assert_allclose((seen * y).sum(), (x * back).sum())


def test_a_transposed_convolution_by_hand():
    x, w = np.array([[[1.0, 2]]]), np.array([[[10.0, 20, 30]]])
    np.testing.assert_array_equal(meaning(ConvTransposeOp, x, w), [[[10, 40, 70, 60]]])
    strided = meaning(ConvTransposeOp, x, w, stride=(2,), low=(1,), extra=(1,))
    np.testing.assert_array_equal(strided, [[[20, 50, 40, 60]]])


def test_what_follows_a_convolution():
    x, w, b, r = random(1, 2, 4), random(3, 2, 2), random(3), random(1, 3, 3)
    y = meaning(FusedConvBiasActOp, x, w, b, r, act="relu")
    np.testing.assert_allclose(y, np.maximum(meaning(ConvOp, x, w, b) + r, 0))


def test_the_past_of_a_channel():
    x, w = counted(1, 3, 2), np.array([[1.0, 10], [100, 1000]])
    y = meaning(DepthwiseConv1dCausalOp, x, w)
    np.testing.assert_array_equal(y, [[[0, 1000], [20, 3100], [42, 5300]]])
    before = meaning(DepthwiseConv1dCausalOp, x, w, np.array([[[5.0, 7]]]))
    np.testing.assert_array_equal(before[:, 0], [[5, 1700]])


def test_a_long_convolution():
    x, response = random(2, 50), random(7)
    y = meaning(PartitionedConvOp, x, response, block=8)
    np.testing.assert_allclose(y[1], np.convolve(x[1], response))
    with pytest.raises(VerifyException, match="blocks from 1"):
        made(PartitionedConvOp, [tensor([50]), tensor([7])], block=0)
    with pytest.raises(VerifyException, match="of numbers"):
        made(PartitionedConvOp, [tensor(["t"]), tensor([7])])


@pytest.mark.parametrize(
    ("types", "options", "wanted"),
    [
        (([1, 2, 5], [3, 1, 2]), {}, "multiples of 1 groups"),
        (([1, 2, 5], [3, 1, 2]), {"groups": 2}, "multiples of 2 groups"),
        (([1, 2, 5], [2, 2, 9]), {}, "axes that hold a window of [9]"),
        (([1, 2, 5], [2, 2, 2]), {"stride": (1, 1)}, "a number for each of 1 axes"),
        (([1, 2, 5], [2, 2, 2]), {"stride": (0,)}, "strides and dilations from 1"),
        (([1, 2], [2, 2]), {}, "[n, channels, d...]"),
        (([1, 2, 5], [2, 2, 2], [3]), {}, "a bias [o]"),
        (([1, 2, "t"], [2, 2, 2]), {}, "numbers for d"),
    ],
)
def test_what_is_no_convolution(
    types: tuple[list[int], ...], options: dict[str, Option], wanted: str
):
    with pytest.raises(VerifyException) as error:
        made(ConvOp, [tensor(dims) for dims in types], **options)
    assert wanted in str(error.value)
    assert "vision.conv" in str(error.value)


def test_a_convolution_of_single_elements_is_a_product():
    names = expanded(ConvOp, [tensor([1, 8, 5, 5]), tensor([4, 8, 1, 1])])
    assert [n for n in names if n != "reshape"] == ["dot"]


def test_a_transposed_convolution_without_overlap_is_a_product():
    types = [tensor([1, 8, 5, 5]), tensor([8, 4, 2, 2])]
    names = expanded(ConvTransposeOp, types, stride=(2, 2))
    assert set(names) == {"reshape", "transpose", "dot"}
    assert names.count("dot") == 1


def test_a_batch_may_have_a_name():
    op = made(ConvOp, [tensor(["n", 8, 5, 5]), tensor([4, 8, 3, 3])])
    assert op.res[0].type == tensor(["n", 4, 3, 3])


# Pools


def test_pools_by_hand():
    x = np.array([[[1.0, -3, 5, 2, 4]]])
    np.testing.assert_array_equal(meaning(PoolOp, x, size=(2,)), [[[1, 5]]])
    np.testing.assert_array_equal(meaning(PoolOp, x, size=(3,), stride=(1,), low=(1,)),
                                  [[[1, 5, 5, 5, 4]]])  # fmt: skip
    mean = meaning(PoolOp, x, size=(2,), kind="mean", stride=(2,), low=(1,))
    np.testing.assert_array_equal(mean, [[[1, 1, 3]]])
    counted_too = meaning(PoolOp, x, size=(2,), kind="mean", stride=(2,), low=(1,), padded=True)
    np.testing.assert_array_equal(counted_too, [[[0.5, 1, 3]]])
    total = meaning(PoolOp, x.astype(np.int32), size=(2,), kind="sum", dilation=(2,), stride=(1,))
    np.testing.assert_array_equal(total, [[[6, -1, 9]]])


def test_a_maximum_of_padding_is_the_least_value():
    x = np.array([[[1, 2]]], np.int8)
    y = meaning(PoolOp, x, size=(2,), stride=(1,), low=(2,), high=(0,))
    np.testing.assert_array_equal(y, [[[-128, 1, 2]]])


def test_pools_of_whole_images():
    x = random(2, 3, 4, 5)
    for kind in ("max", "mean", "sum"):
        wanted = getattr(x, kind)(axis=(2, 3))[..., None, None]
        np.testing.assert_allclose(meaning(GlobalPoolOp, x, kind=kind), wanted)


def test_a_mean_of_integers_is_refused():
    with pytest.raises(VerifyException, match="expected elements of f32, f64"):
        made(PoolOp, [tensor([1, 1, 4], i8)], kind="mean", size=(2,))


def test_columns_times_weights_are_a_convolution():
    x, w = random(2, 3, 6, 5), random(4, 3, 2, 3)
    options = {"stride": (2, 1), "low": (1, 1), "dilation": (1, 2)}
    columns = meaning(Im2colOp, x, size=(2, 3), **options)
    y = meaning(ConvOp, x, w, **options)
    np.testing.assert_allclose(w.reshape(4, -1) @ columns, y.reshape(2, 4, -1))


# Other sizes


def test_a_linear_resize_by_hand():
    x = np.array([[[[1.0, 2], [3, 4]]]])
    y = meaning(ResizeOp, x, sizes=(4, 4), mode="linear")
    wanted = [
        [1, 1.25, 1.75, 2],
        [1.5, 1.75, 2.25, 2.5],
        [2.5, 2.75, 3.25, 3.5],
        [3, 3.25, 3.75, 4],
    ]
    np.testing.assert_allclose(y[0, 0], wanted)
    corners = meaning(ResizeOp, x, sizes=(4, 4), mode="linear", coordinates="align_corners")
    np.testing.assert_allclose(corners[0, 0], 1 + np.add.outer(np.arange(4) * 2, np.arange(4)) / 3)


def test_a_cubic_resize_by_hand():
    x = counted(1, 1, 4, 4) + 1
    y = meaning(ResizeOp, x, sizes=(8, 8), mode="cubic")
    wanted = [
        0.47265625,
        0.76953125,
        1.24609375,
        1.875,
        2.28125,
        2.91015625,
        3.38671875,
        3.68359375,
    ]
    np.testing.assert_allclose(y[0, 0, 0], wanted)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"coordinates": "asymmetric"}, [0, 0, 1, 1, 2]),
        ({"rounding": "half_down"}, [0, 0, 1, 2, 2]),
        ({"rounding": "floor"}, [0, 0, 1, 1, 2]),
        ({"rounding": "ceil"}, [0, 1, 1, 2, 2]),
        ({"coordinates": "align_corners", "rounding": "half_up"}, [0, 1, 1, 2, 2]),
        ({"coordinates": "align_corners", "rounding": "half_down"}, [0, 0, 1, 1, 2]),
    ],
)
def test_the_nearest_element(options: dict[str, Option], wanted: list[int]):
    x = np.array([[[0, 1, 2]]], np.int32)
    np.testing.assert_array_equal(meaning(ResizeOp, x, sizes=(5,), **options)[0, 0], wanted)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_the_same_size_changes_nothing(mode: str, coordinates: str):
    x = random(1, 2, 3, 4)
    y = meaning(ResizeOp, x, sizes=(3, 4), mode=mode, coordinates=coordinates)
    np.testing.assert_allclose(y, x)


def test_twice_as_large():
    x = counted(1, 1, 2, 2)
    y = meaning(ResizeNearest2xOp, x)
    np.testing.assert_array_equal(y[0, 0], [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]])


def test_no_size_is_zero():
    with pytest.raises(VerifyException, match="sizes from 1"):
        made(ResizeOp, [tensor([1, 1, 4], f32)], sizes=(0,))


# Rotation


def test_patches_are_rotated_by_their_place():
    height, width, head_dim = 3, 2, 8
    x = np.tile(random(head_dim), (1, height * width, 2))
    y = meaning(AxialRope2dOp, x, height=height, width=width, head_dim=head_dim, base=100.0)
    np.testing.assert_allclose(y[0, 0], x[0, 0])
    np.testing.assert_allclose(y[0, :, :head_dim], y[0, :, head_dim:])
    pairs, turned = (a[0, :, :head_dim].reshape(-1, 4, 2) @ [1, 1j] for a in (x, y))
    angles = np.angle(turned / pairs)
    np.testing.assert_allclose(np.abs(turned), np.abs(pairs))
    # Patch 5 is in row 2 and column 1: the columns' two speeds, then the rows'.
    np.testing.assert_allclose(angles[5], [1, 0.1, 2, 0.2])
