"""Programs that another process compiles: the same code, and whatever happens to that process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from models import write_llama

import rlx
from rlx import beside, model_programs
from rlx.driver import Model, open_model
from rlx.lowering.target import Target, usable_cores
from rlx.model_programs import compile_one
from rlx.runtime.compilations import counted

pytestmark = pytest.mark.usefixtures("folder")

SHAPE = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 64}
HOST = Target.host()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "small.gguf", **SHAPE)


@pytest.fixture
def model(path: Path) -> Model:
    return open_model(path, 48, None, "f16", "exact")


def test_another_process_makes_the_same_code(model: Model) -> None:
    key = model.key("decode", HOST)
    with counted() as tally, beside.compiled_beside(model, "decode", HOST, key) as wait:
        found = wait()
    assert found == compile_one(model, "decode", HOST)
    assert tally.count == 1
    assert tally.seconds > 0


def test_code_of_another_key_is_not_taken(model: Model) -> None:
    """As when the file has changed meanwhile, or the other process finds other sources of rlx."""
    with (
        counted() as tally,
        beside.compiled_beside(model, "decode", HOST, "another key") as wait,
    ):
        assert wait() is None
    assert tally.count == 0


@pytest.mark.parametrize(
    "script",
    [
        "import os; os._exit(3)",
        "raise ValueError('no')",
        "print('something else')",
        "import sys, pickle; sys.stdout.buffer.write(pickle.dumps(('x', 1.0, bytes(9)))[:20])",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_process_that_fails_is_none(
    model: Model, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_SCRIPT", script)
    with beside.compiled_beside(model, "decode", HOST, "key") as wait:
        assert wait() is None


def test_a_process_that_cannot_be_started_is_none(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with beside.compiled_beside(model, "decode", HOST, "key") as wait:
        assert wait() is None


def test_the_process_ends_with_the_block(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = beside._start
    monkeypatch.setattr(beside, "_SCRIPT", "import time; time.sleep(100)")
    monkeypatch.setattr(beside, "_start", lambda r: started.append(start(r)) or started[0])
    with (
        pytest.raises(KeyboardInterrupt),
        beside.compiled_beside(model, "decode", HOST, "key"),
    ):
        raise KeyboardInterrupt
    assert started[0].returncode is not None


@pytest.mark.parametrize("breaks", [False, True])
def test_a_load_that_is_helped(path: Path, breaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = list(rlx.load(path, max_context=40).generate_ids([1, 2, 3], 5))
    monkeypatch.setattr(beside, "pays", lambda: True)
    if breaks:
        monkeypatch.setattr(beside, "_SCRIPT", "raise SystemExit(1)")
    here = []
    compile_here = model_programs.compile_one
    monkeypatch.setattr(
        model_programs,
        "compile_one",
        lambda m, name, t: here.append(name) or compile_here(m, name, t),
    )
    helped = rlx.load(path, max_context=44)
    assert here == (["prefill", "decode"] if breaks else ["prefill"])
    assert helped.stats.compilations == 2
    assert list(helped.generate_ids([1, 2, 3], 5)) == wanted
    assert rlx.load(path, max_context=44).stats.compilations == 0


def test_when_another_process_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {k: v for k, v in sys.modules.items() if k != "xdsl"}
    monkeypatch.setattr(beside.sys, "modules", modules)
    monkeypatch.setattr(beside, "usable_cores", lambda: 2)
    assert beside.pays()
    with rlx.no_compile():
        assert not beside.pays()
    with monkeypatch.context() as patch:
        patch.setattr(beside, "usable_cores", lambda: 1)
        assert not beside.pays()
    with monkeypatch.context() as patch:
        patch.setenv("RLX_DUMP", "somewhere")
        assert not beside.pays()
    for program in ("/opt/app/editor", "", None):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", program)
            assert not beside.pays()
    modules["xdsl"] = sys
    assert not beside.pays()


@pytest.mark.skipif(usable_cores() < 2, reason="one usable core")
def test_a_new_process_is_helped_and_says_so(path: Path) -> None:
    args = ["generate", str(path), "--ids", "1,2", "-n", "2", "-v"]
    command = [sys.executable, "-m", "rlx.tools.cli", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "waiting for the process that compiles decode" in done.stderr
    again = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert "waiting" not in again.stderr
    assert again.stdout == done.stdout


def test_a_request_is_plain(model: Model) -> None:
    assert pickle.loads(pickle.dumps((dict(model.precision), HOST))) == (model.precision, HOST)
