"""Caches of a model: what is compiled or packed for one thing is never taken for another."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models import write_llama

import rlx.driver as driver
import rlx.model_programs as model_programs
from rlx.compiler import compile_program
from rlx.driver import Model, Precision, open_model
from rlx.errors import RlxError
from rlx.frontends.gguf import GgufFile
from rlx.lowering.target import Target
from rlx.runtime import cache_files, contents
from rlx.runtime import program as programs
from rlx.runtime.compiled import Compiled, source_digest
from rlx.runtime.contents import contents_digest
from rlx.runtime.memory import Segment
from rlx.runtime.program import Program, check_shared
from rlx.runtime.threads import Team

SIZES = {"layers": 2, "d": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 301}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_llama(tmp_path / "model.gguf", **SIZES)
    return tmp_path / "model.gguf"


@pytest.fixture
def model(path: Path) -> Model:
    return open_model(path, 64)


def test_a_programs_key_covers_what_changes_its_code(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    host = Target.host()
    write_llama(tmp_path / "eights.gguf", **SIZES, weight_type="q8_0")
    keys = [
        model.key("decode", host),
        model.key("prefill", host),
        model.key("decode", Target.named("haswell")),
        model.key("decode", replace(host, feature_string=host.feature_string + ",-avx512vnni")),
        replace(model, max_context=80).key("decode", host),
        replace(model, precision=Precision.of("fast", host)).key("decode", host),
        replace(model, kv_cache="f16").key("decode", host),
        replace(model, kv_cache="bf16").key("decode", host),
        replace(model, marks=True).key("decode", host),
        replace(model, config=replace(model.config, eps=1e-3)).key("decode", host),
        open_model(tmp_path / "eights.gguf", 64).key("decode", host),
    ]
    monkeypatch.setattr(model_programs, "source_digest", lambda: "another rlx")
    keys.append(model.key("decode", host))
    assert len(set(keys)) == len(keys)
    monkeypatch.undo()
    assert model.key("decode", host) == keys[0]


def test_the_programs_of_a_model_ask_for_its_precision(model: Model):
    host = Target.host()
    exact, fast = (replace(model, precision=Precision.of(name, host)) for name in ("exact", "fast"))
    for program in driver.PROGRAMS:
        assert "rlx.precision" not in str(exact.build(program))
        assert 'rlx.precision = "fast"' in str(fast.build(program))


def test_the_digest_of_sources_sees_every_file(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "sub" / "b.py").write_text("y = 1")
    first = source_digest(tmp_path)
    assert source_digest(tmp_path) == first
    (tmp_path / "sub" / "b.py").write_text("y = 22")
    longer = source_digest(tmp_path)
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert len({first, longer, source_digest(tmp_path)}) == 3


# Packed weights


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def cache(tmp_path: Path, objects: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder whose compiled programs are shared between tests."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "objects").symlink_to(objects)
    monkeypatch.setenv("RLX_CACHE_DIR", str(folder))
    monkeypatch.setattr(cache_files, "_warned", set())
    return folder


def answer(path: Path) -> list[int]:
    model = driver.load(path, threads=1, max_context=64)
    return list(model.generate_ids([1, 2, 3], 8, stop=False))


def packed(cache: Path) -> list[Path]:
    return sorted((cache / "packed").iterdir())


def test_damaged_weights_are_packed_again(path: Path, cache: Path):
    wanted = answer(path)
    (file,) = packed(cache)
    good = file.read_bytes()
    rng = random.Random(0)
    for at in rng.sample(range(len(good)), 8):
        damaged = bytearray(good)
        damaged[at] ^= 0x10
        file.write_bytes(damaged)
        cache_files._warned.clear()
        with pytest.warns(RuntimeWarning, match="is damaged: its weights are packed again"):
            assert answer(path) == wanted
        assert file.read_bytes() == good
    # A warning would be an error here.
    assert answer(path) == wanted


def test_a_killed_load_leaves_nothing_trusted(path: Path, cache: Path):
    wanted = answer(path)
    rng = random.Random(0)
    for _ in range(3):
        for file in packed(cache):
            file.unlink()
        script = f"import rlx\nprint(flush=True)\nrlx.load({str(path)!r}, max_context=64)"
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(rng.uniform(0.2, 0.6))
            child.kill()
        assert answer(path) == wanted
        assert len(packed(cache)) == 1


def test_a_copy_of_a_model_has_the_same_weights(path: Path, cache: Path, tmp_path: Path):
    other = tmp_path / "other.gguf"
    shutil.copy(path, other)
    assert answer(path) == answer(other)
    assert len(packed(cache)) == 1


def test_another_byte_makes_other_weights(path: Path, cache: Path):
    answer(path)
    stat = path.stat()
    with GgufFile.open(path) as file:
        at = file.tensors["blk.1.ffn_up.weight"].offset
    data = bytearray(path.read_bytes())
    data[at + 500] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    answer(path)
    assert len(packed(cache)) == 2


def digest(path: Path) -> str:
    with GgufFile.open(path) as file:
        return contents_digest(file.file.data, file.file.stat)


def test_a_digest_is_remembered_while_a_file_stays(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    counted: list[int] = []
    compute = contents._digest

    def count(data: Any) -> str:
        counted.append(len(data))
        return compute(data)

    monkeypatch.setattr(contents, "_digest", count)
    first = digest(path)
    assert digest(path) == first
    assert len(counted) == 2, "a change within the clock's tick would not show"
    monkeypatch.setattr(contents, "_SETTLED_NS", 0)
    assert digest(path) == digest(path) == first
    assert len(counted) == 3
    stat = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert contents_digest(data, os.fstat(file.fileno())) != first
    assert len(counted) == 4


def test_a_file_that_changes_while_it_is_packed_is_refused(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    pack = Program.pack

    def touch(self: Program, *args: Any) -> None:
        pack(self, *args)
        os.utime(path)

    monkeypatch.setattr(Program, "pack", touch)
    with pytest.raises(RlxError, match="changed while it was read"):
        answer(path)
    assert packed(cache) == []


def test_the_pages_of_a_models_file_are_given_back(path: Path, cache: Path):
    for _ in range(2):
        model = driver.load(path, threads=1, max_context=64)
        list(model.generate_ids([1, 2, 3], 8, stop=False))
        resident = model.resident()
        if resident.resident_weight_bytes is None:
            pytest.skip("the system does not tell")
        assert resident.resident_file_bytes == 0
        assert 0 < resident.resident_weight_bytes <= model.stats.packed_file_bytes
        assert model.stats.packed_file_bytes == packed(cache)[0].stat().st_size


def test_weights_that_other_sources_packed_are_not_read(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    answer(path)
    answer(path)
    assert len(packed(cache)) == 1
    monkeypatch.setattr(programs, "_packing", lambda: [b"another layout"])
    answer(path)
    answer(path)
    assert len(packed(cache)) == 2


# Programs


def test_programs_of_one_model_must_agree(model: Model):
    team, state = Team(1), Segment(1 << 20)
    decode = compile_program(model.build("decode"), Target.host())
    other = decode.manifest._replace(weights=decode.manifest.weights[1:])
    programs = [Program(m, decode.code, team, state) for m in (decode.manifest, other)]
    check_shared(programs[:1] * 2)
    with pytest.raises(RlxError, match="lay out weights or states differently"):
        check_shared(programs)


def test_a_compiled_program_survives_the_cache(model: Model):
    compiled = compile_program(model.build("prefill"), Target.host())
    assert Compiled.from_bytes(compiled.to_bytes()) == compiled


@pytest.mark.parametrize("path", [None, 5, b"model.gguf", [], ""])
def test_a_path_is_a_path(path: object):
    with pytest.raises(RlxError, match="path: expected that of a model, got"):
        driver.load(path)


@pytest.mark.parametrize("name", ["verify", "reuse_prefix"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_a_choice_of_two_is_a_boolean(name: str, value: object):
    with pytest.raises(RlxError, match=f"{name}: expected True or False, got"):
        driver.load("model.gguf", **{name: value})
