"""Feed-forward parts before they are rounded to bytes: the same function, of evener numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from encoders import bert_arrays, bert_config, embed, write_bert

from rlx.encoders import load_encoder
from rlx.errors import RlxError
from rlx.frontends.safetensors import SafetensorsFile, SafetensorsWeights
from rlx.models.bert import read_config
from rlx.models.bert_bytes import ByteWeights, FeedForward, even, widened

D, FFN = 24, 400
WIDE = 416


def part(rng: np.random.Generator, large: int = 0) -> tuple[np.ndarray, ...]:
    """A part's weights; of the second matrix so many numbers are large."""
    shapes = (D,), (D,), (FFN, D), (FFN,), (D, FFN)
    weight, shift, up, bias, down = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    places = rng.integers(0, D, large), rng.integers(0, FFN, large)
    down[places] = rng.uniform(30, 100, large) * rng.choice([-1, 1], large)
    return weight, shift, up, bias, down


def outputs(x: np.ndarray, made: FeedForward) -> np.ndarray:
    """With a function in the middle that is not linear."""
    made = FeedForward(*(a.astype(np.float64) for a in made))
    return np.tanh(x * made.up_factors @ made.up.T + made.bias) * made.down_factors @ made.down.T


def steps_of(down: np.ndarray) -> np.ndarray:
    return np.abs(down.astype(np.float64)).max(axis=1, keepdims=True) / 127


@pytest.mark.parametrize("large", [0, 1, 5, 40])
def test_the_function_stays(large: int):
    rng = np.random.default_rng(large)
    weight, shift, up, bias, down = part(rng, large)
    made = even(WIDE, weight, shift, up, bias, down)
    ones = np.ones(D), np.ones(FFN)
    x = rng.standard_normal((50, D))
    given = FeedForward(ones[0], up, bias, ones[1], down)
    # What differs is that numbers are whole steps: half of one at most, and as often up as down.
    error = outputs(x, made) - outputs(x, given)
    assert np.abs(error).max() < 4 * steps_of(made.down).max() * np.sqrt(FFN / 12)
    whole = made.down / steps_of(made.down)
    np.testing.assert_allclose(whole, np.rint(whole), atol=1e-4)


def test_large_numbers_no_longer_set_steps():
    rng = np.random.default_rng(3)
    *others, down = part(rng, 4)
    made = even(WIDE, *others, down)
    rows = np.abs(down).max(axis=1) > 20
    assert rows.any()
    assert (steps_of(made.down)[rows] < steps_of(down)[rows] / 3).all()
    # Those rows apart, nothing gets worse.
    assert (steps_of(made.down) <= steps_of(down) * (1 + 1e-6)).all()
    # Activations that are multiplied with the largest are divided, but not with what isn't large.
    divided, most = np.isin(others[-1], made.bias[made.down_factors < 1]), np.abs(down).max(axis=0)
    assert divided[most.argmax()]
    assert not divided[most < 20].any()


def test_features_and_columns_are_alike():
    """Where both are large, the matrix isn't made worse."""
    rng = np.random.default_rng(4)
    weight, shift, up, bias, down = part(rng)
    weight[:5] *= 100
    up[:, 3:8] *= 100
    weight[9] = shift[9] = up[:, 11] = 0
    made = even(WIDE, weight, shift, up, bias, down)
    sizes = np.hypot(weight, shift) * made.up_factors
    columns = np.sqrt(np.square(up / made.up_factors).mean(axis=0))
    np.testing.assert_allclose(*(np.delete(x, [9, 11]) for x in (sizes, columns)), rtol=1e-5)
    assert made.up_factors[[9, 11]].tolist() == [1, 1]


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 3e38, 1e-45])
def test_numbers_at_the_ends(value: float):
    rng = np.random.default_rng(5)
    weight, shift, up, bias, down = part(rng)
    for array in (down[3], weight, shift):
        array[:] = value
    if value < 1:
        down *= np.float32(value)
    made = even(WIDE, weight, shift, up, bias, down)
    assert [a.shape for a in made] == [(D,), (WIDE, D), (WIDE,), (WIDE,), (D, WIDE)]
    assert np.isfinite(np.delete(made.down, 3, axis=0)).all()
    assert not even(WIDE, weight, shift, up, bias, np.zeros_like(down)).down.any()


def test_weights_by_name(tmp_path: Path):
    arrays = bert_arrays(prefix="bert.", dtype=np.float16)
    file = SafetensorsFile.open(write_bert(tmp_path / "m", arrays) / "model.safetensors")
    config = read_config(tmp_path / "m", file)
    wide = widened(config)
    source = ByteWeights(SafetensorsWeights(file), wide)
    assert (config.ffn, wide.ffn) == (80, 96)
    layer = "bert.encoder.layer.1."
    up, factors = f"{layer}intermediate.dense.weight", f"{layer}output.dense.factors"
    assert source.info(up) == ((96, 48), "f32")
    assert source.info(f"{layer}output.dense.bias") == ((48,), "f16")
    assert source.has(factors)
    assert not source.has("encoder.layer.1.output.dense.factors")
    values, shape = source.take(up)
    assert (values.shape, shape) == ((96, 48), (96, 48))
    assert source.take(up, transpose=True)[1] == (48, 96)
    np.testing.assert_array_equal(source.raw(up).view(np.float32), values.reshape(-1))
    with pytest.raises(RlxError, match="expected a tensor 'other', which is missing"):
        source.raw("other")


@pytest.mark.usefixtures("cache")
def test_a_model_with_large_numbers(tmp_path: Path):
    """The worst 1 - cosine is 1.6e-4; with the file's own weights it is 8.5e-4."""
    arrays = bert_arrays(d=48, ffn=400, layers=3)
    for layer in range(3):
        arrays[f"encoder.layer.{layer}.output.dense.weight"][5, 17 + layer] = 8
        arrays[f"encoder.layer.{layer}.attention.output.LayerNorm.weight"][:3] = 20
    texts = [np.random.default_rng(n).integers(0, 40, n).tolist() for n in range(2, 30)]
    config = bert_config(ffn=400, layers=3)
    model = load_encoder(write_bert(tmp_path / "m", arrays, config), "int8")
    wanted = embed(arrays, config, texts)
    assert (model.encode(texts) * wanted).sum(axis=1).min() > 0.9997


@pytest.mark.usefixtures("cache")
def test_packing_makes_each_layer_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It takes as long as all else of packing, and its memory is that of a layer."""
    made: list[int] = []

    def counted(wide: int, *weights: np.ndarray) -> FeedForward:
        made.append(wide)
        return even(wide, *weights)

    monkeypatch.setattr("rlx.models.bert_bytes.even", counted)
    arrays, config = bert_arrays(9, layers=5), bert_config(layers=5)
    load_encoder(write_bert(tmp_path / "m", arrays, config), "int8")
    assert made == [96] * 5
