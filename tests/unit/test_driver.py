"""Cache keys: what is compiled or packed for one thing is never taken for another."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from models import write_llama

import rlx.driver as driver
from rlx.compiler import compile_program
from rlx.driver import Compiled, Model, file_identity, open_model, source_digest
from rlx.errors import RlxError
from rlx.frontends.gguf import GgufFile
from rlx.lowering.target import Target
from rlx.runtime import program as programs
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
        replace(model, precision="fast").key("decode", host),
        replace(model, kv_cache="f16").key("decode", host),
        replace(model, kv_cache="bf16").key("decode", host),
        replace(model, config=replace(model.config, eps=1e-3)).key("decode", host),
        open_model(tmp_path / "eights.gguf", 64).key("decode", host),
    ]
    monkeypatch.setattr(driver, "source_digest", lambda: "another rlx")
    keys.append(model.key("decode", host))
    assert len(set(keys)) == len(keys)
    monkeypatch.undo()
    assert model.key("decode", host) == keys[0]


def test_the_programs_of_a_model_ask_for_its_precision(model: Model):
    fast = replace(model, precision="fast")
    for program in driver.PROGRAMS:
        assert "rlx.precision" not in str(model.build(program))
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


def identity(path: Path) -> str:
    with GgufFile.open(path) as file:
        return file_identity(file)


def test_a_files_identity_covers_its_time_and_its_contents(path: Path):
    before, stat = identity(path), path.stat()
    assert identity(path) == before
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert identity(path) != before
    with GgufFile.open(path) as file:
        at = file.tensors["blk.1.ffn_up.weight"].offset
    data = bytearray(path.read_bytes())
    data[at + 5] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert identity(path) != before


def test_weights_that_other_sources_packed_are_not_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))

    def packed() -> int:
        driver.load(path, threads=1, max_context=64)
        return len(list((tmp_path / "cache/packed").iterdir()))

    assert (packed(), packed()) == (1, 1)
    monkeypatch.setattr(programs, "_packing", lambda: [b"another layout"])
    assert (packed(), packed()) == (2, 2)


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


@pytest.mark.parametrize("path", [None, 5, b"model.gguf", []])
def test_a_path_is_a_path(path: object):
    with pytest.raises(RlxError, match="path: expected that of a GGUF file"):
        driver.load(path)
