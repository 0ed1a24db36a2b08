"""Norms, against what must hold of them."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import expanded, made, meaning
from xdsl.dialects.builtin import f16
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import tensor
from rlx.ops.norm import (
    AdaLayerNormOp,
    BatchNormInferenceOp,
    FusedResidualLnOp,
    FusedResidualRmsNormOp,
    GatedResidualOp,
    GroupNormOp,
    LayerNorm2dOp,
    LayerNormOp,
    RmsNormOp,
)

RNG = np.random.default_rng(7)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def plain(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(shape), np.zeros(shape)


def test_a_layer_norm_by_hand():
    x = np.array([[1.0, 3.0, 1.0, 3.0]])
    y = meaning(LayerNormOp, x, np.array([1.0, 1, 2, 2]), np.array([0.0, 0, 0, 5]), eps=0.0)
    np.testing.assert_allclose(y, [[-1, 1, -2, 7]])
    y = meaning(RmsNormOp, np.array([[3.0, 4.0]]), *plain(2), eps=0.0)
    np.testing.assert_allclose(y, np.array([[3, 4]]) / np.sqrt(12.5))


def test_the_weights_say_which_axes_are_normalised():
    x = random(3, 4, 5)
    y = meaning(LayerNormOp, x, *plain(4, 5), eps=0.0)
    np.testing.assert_allclose(y.mean((1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(y.std((1, 2)), 1)
    y = meaning(RmsNormOp, x, *plain(3, 4, 5), eps=0.0)
    np.testing.assert_allclose(np.square(y).mean(), 1)


def test_eps_is_added_to_the_variance():
    y = meaning(LayerNormOp, np.array([[-1.0, 1.0]]), *plain(2), eps=3.0)
    np.testing.assert_allclose(y, [[-0.5, 0.5]])


def test_groups_of_channels():
    x, gamma, beta = random(2, 6, 3, 4), random(6), random(6)
    y = meaning(GroupNormOp, x, gamma, beta, groups=2, eps=0.0)
    normal = (y - beta[:, None, None]) / gamma[:, None, None]
    for image in normal.reshape(2, 2, -1):
        np.testing.assert_allclose(image.mean(1), 0, atol=1e-12)
        np.testing.assert_allclose(image.std(1), 1)
    # A group of all channels of one place is a layer norm of it.
    at = x[:, :, :1, :1]
    np.testing.assert_allclose(
        meaning(GroupNormOp, at, gamma, beta), meaning(LayerNorm2dOp, at, gamma, beta)
    )


def test_the_channels_of_a_place():
    x, gamma, beta = random(2, 6, 3, 4), random(6), random(6)
    y = meaning(LayerNorm2dOp, x, gamma, beta)
    last = meaning(LayerNormOp, np.moveaxis(x, 1, -1), gamma, beta)
    np.testing.assert_allclose(y, np.moveaxis(last, -1, 1))


def test_known_statistics():
    x = np.array([[[1.0, 3.0], [0.0, 2.0]]])
    vectors = [np.array(v) for v in ([2.0, 1], [0.0, 5], [1.0, 2], [4.0, 1])]
    y = meaning(BatchNormInferenceOp, x, *vectors, eps=0.0)
    np.testing.assert_allclose(y, [[[0, 2], [3, 5]]])


def test_modulations():
    x, scale, shift = random(2, 5, 4), random(2, 1, 4), random(1, 1, 4)
    normal = meaning(LayerNormOp, x, *plain(4))
    y = meaning(AdaLayerNormOp, x, scale, shift)
    np.testing.assert_allclose(y, normal * (1 + scale) + shift)
    y = meaning(AdaLayerNormOp, x, scale, shift, norm="rms")
    np.testing.assert_allclose(y, meaning(RmsNormOp, x, *plain(4)) * (1 + scale) + shift)
    np.testing.assert_allclose(meaning(GatedResidualOp, x, 2 * x, scale), x + scale * 2 * x)


def test_norms_of_sums():
    x, r, b, gamma, beta = random(3, 4), random(3, 4), random(4), random(4), random(4)
    y = meaning(FusedResidualLnOp, x, r, b, gamma, beta)
    np.testing.assert_allclose(y, meaning(LayerNormOp, x + r + b, gamma, beta))
    y = meaning(FusedResidualRmsNormOp, x, r, gamma, beta)
    np.testing.assert_allclose(y, meaning(RmsNormOp, x + r, gamma, beta))


@pytest.mark.parametrize(
    ("op", "dims", "options", "wanted"),
    [
        (LayerNormOp, ([2, 4], [5], [5]), {}, "two weights [d...]"),
        (LayerNormOp, ([2, 4], [4]), {}, "3 operands"),
        (RmsNormOp, ([4], [2, 4], [2, 4]), {}, "two weights [d...]"),
        (GroupNormOp, ([2, 6, 3], [6], [6]), {"groups": 4}, "a multiple of 4 groups"),
        (GroupNormOp, ([2, 6, "w"], [6], [6]), {}, "of numbers"),
        (LayerNorm2dOp, ([2, 6, 3], [3], [3]), {}, "vectors [6]"),
        (BatchNormInferenceOp, ([4], [4], [4], [4], [4]), {}, "2 dimensions or more"),
        (AdaLayerNormOp, ([2, 3, 4], [2, 4], [2, 4]), {}, "modulations of its rank"),
        (GatedResidualOp, ([2, 4], [1, 4], [2, 4]), {}, "two operands of one shape"),
        (FusedResidualLnOp, ([2, 4], [4], [4], [4]), {}, "an input and a residual of one shape"),
    ],
)
def test_what_does_not_fit(op: type, dims: tuple, options: dict, wanted: str):
    with pytest.raises(VerifyException) as error:
        made(op, [tensor(d) for d in dims], **options)
    assert wanted in str(error.value)
    assert op.name in str(error.value)


def test_sixteen_bits_are_cast_first():
    with pytest.raises(VerifyException, match="cast it to f32 first"):
        made(LayerNormOp, [tensor([2, 4], f16)] * 3)


def test_sizes_of_a_batch_may_have_names():
    x = tensor(["n", "t", 8])
    assert made(LayerNormOp, [x, tensor([8]), tensor([8])]).res[0].type == x
    assert made(AdaLayerNormOp, [x, tensor(["n", 1, 8]), tensor(["n", 1, 8])]).res[0].type == x
    assert "layer_norm" in expanded(LayerNormOp, [x, tensor([8]), tensor([8])])
