"""Safetensors files: what they hold, and one clear error for each way to be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from encoders import safetensors_bytes

from rlx.errors import RlxError
from rlx.flow.source import WeightInfo, WeightSource
from rlx.frontends.safetensors import SafetensorsFile, SafetensorsWeights


def random_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "half": rng.standard_normal((2, 3)).astype(np.float16),
        "brain": rng.standard_normal((4,)).astype(ml_dtypes.bfloat16),
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.float32(3.5).reshape(()),
        "ids": np.arange(6).reshape(1, 6),
    }


@pytest.mark.parametrize("pad", [0, 1, 2, 3])
def test_tensors_are_those_that_were_written(tmp_path: Path, pad: int):
    """At every alignment: the header's length need not be a multiple of anything."""
    arrays = random_arrays()
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(arrays, {"format": "pt"}, pad=pad))
    file = SafetensorsFile.open(path)
    assert file.metadata == {"format": "pt"}
    assert {name: t.shape for name, t in file.tensors.items()} == {
        name: a.shape for name, a in arrays.items()
    }
    source = SafetensorsWeights(file)
    assert isinstance(source, WeightSource)
    for name, array in arrays.items():
        if name == "ids":
            continue
        values, shape = source.take(name)
        assert values.dtype == np.float32
        assert shape == array.shape
        np.testing.assert_array_equal(values, array.astype(np.float32))
        assert source.raw(name).tobytes() == array.tobytes()
        assert source.raw(name).ctypes.data % 4 == 0
    assert source.info("brain") == WeightInfo((4,), "bf16")
    assert source.info("half") == WeightInfo((2, 3), "f16")
    turned, shape = source.take("half", transpose=True)
    np.testing.assert_array_equal(turned, arrays["half"].astype(np.float32).T)
    assert shape == (3, 2)
    assert not source.has("b")


def test_what_is_no_weight_says_so(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(random_arrays()))
    source = SafetensorsWeights(SafetensorsFile.open(path))
    with pytest.raises(RlxError, match=r"'ids': the dtype I64 is not supported: expected F32"):
        source.info("ids")
    with pytest.raises(
        RlxError, match=r"expected a tensor 'hal', which is missing; close .*'half'"
    ):
        source.take("hal")
    with pytest.raises(RlxError, match="two dimensions to transpose"):
        source.take("brain", transpose=True)


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(header: object, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


DAMAGED: dict[str, tuple[bytes, str]] = {
    "tiny": (b"\x02\0\0\0", "found one of 4 bytes"),
    "length": (file_of({"a": entry()}, length=1 << 40), "expected the length of a header"),
    "no length": (file_of({"a": entry()}, length=0), "expected the length of a header"),
    "beyond": (file_of(b"{}", b"", length=3), "expected the length of a header, 2 to 2 bytes"),
    "not json": (file_of(b"{a"), "expected a header in JSON"),
    "not utf-8": (file_of(b'{"\xff":1}'), "expected a header in JSON"),
    "gguf": (file_of(b"GGUFGGUF"), "begins with {"),
    "list": (file_of(b"[]"), "begins with {"),
    "deep": (file_of(b'{"a":' + b"[" * 100_000), "expected a header in JSON"),
    "twice": (file_of(b'{"a":1,"a":2}'), "has 'a' twice"),
    "no object": (file_of({"a": 3}), "tensor 'a': expected an object, got 3"),
    "keys": (file_of({"a": {"dtype": "F32"}}), "expected dtype, shape and data_offsets, got dtype"),
    "dtype": (file_of({"a": entry("F31")}), "expected a dtype of BOOL.*'F31'"),
    "dtypes": (file_of({"a": entry(["F32"])}), "expected a dtype of BOOL"),  # pyright: ignore: an unhashable dtype is the point
    "shape": (file_of({"a": entry(shape=[-2])}), "shape: expected natural numbers"),
    "shapes": (file_of({"a": entry(shape=2)}), "shape: expected natural numbers"),
    "truth": (file_of({"a": entry(shape=[True])}), "shape: expected natural numbers"),
    "dims": (file_of({"a": entry(shape=[1] * 9)}), "expected up to 8 dimensions"),
    "huge": (file_of({"a": entry(shape=[1 << 62, 1 << 62])}), "takes .* bytes"),
    "wide": (file_of({"a": entry(shape=[1 << 64])}), "shape: expected natural numbers"),
    "offsets": (file_of({"a": entry(offsets=[0, 16])}), "within the 8 bytes behind"),
    "backwards": (file_of({"a": entry(offsets=[8, 0])}), "within the 8 bytes behind"),
    "offset": (file_of({"a": entry(offsets=[0])}), "within the 8 bytes behind"),
    "size": (file_of({"a": entry(offsets=[0, 4])}), "takes 8 bytes, its data_offsets"),
    "cut": (file_of({"a": entry()}, bytes(7)), "cut short"),
    "more": (file_of({"a": entry()}, bytes(9)), "1 bytes are behind 'a'"),
    "hole": (
        file_of({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
        "'b': it is not directly behind 'a'",
    ),
    "overlap": (
        file_of({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "'b': it has bytes of 'a'",
    ),
    "long name": (file_of({"a" * 60_000: 3}), "tensor 'aaa"),
    "long keys": (
        file_of({"a": {"k" * 60_000: 3}}),
        "expected dtype, shape and data_offsets, got kkk",
    ),
    "long dtype": (file_of({"a": entry("F" * 60_000)}), "expected a dtype of BOOL.*'FFF"),
    "long last": (file_of({"a" * 60_000: entry()}, bytes(9)), "1 bytes are behind 'aaa"),
    "metadata": (file_of({"__metadata__": {"a": 1}}, b""), "__metadata__: expected an object"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, name: str):
    content, message = DAMAGED[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(RlxError, match=message) as caught:
        SafetensorsFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_every_cut_and_every_flipped_byte_is_an_error_or_a_file(tmp_path: Path):
    """Nothing but RlxError comes of a header in which anything was changed."""
    whole = safetensors_bytes({"a": np.ones((2, 2), np.float32), "b": np.ones(3, np.float16)})
    path = tmp_path / "x.safetensors"

    def opens(content: bytes) -> bool:
        path.write_bytes(content)
        try:
            SafetensorsFile.open(path)
        except RlxError:
            return False
        return True

    assert opens(whole)
    assert not any(opens(whole[:n]) for n in range(len(whole)))
    rng = np.random.default_rng(7)

    def changed(i: int) -> bytes:
        return whole[:i] + bytes([int(rng.integers(256))]) + whole[i + 1 :]

    for _ in range(3):
        for i in range(len(whole) - 22):
            opens(changed(i))


def test_a_folder_or_a_missing_file(tmp_path: Path):
    with pytest.raises(RlxError, match="expected a safetensors file, found a directory"):
        SafetensorsFile.open(tmp_path)
    with pytest.raises(RlxError, match="expected a readable safetensors file"):
        SafetensorsFile.open(tmp_path / "none.safetensors")
