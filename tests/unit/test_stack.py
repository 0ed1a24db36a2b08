"""Stacks: what kernels take of them is known, and what a thread has no room for runs elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_llama

import rlx
from rlx.errors import RlxError
from rlx.lowering.emitter import Module
from rlx.lowering.frames import stack_bytes
from rlx.lowering.target import Target
from rlx.runtime import stack
from rlx.runtime.jit import assembly
from rlx.runtime.threads import Team

pytestmark = pytest.mark.usefixtures("cache")

known = pytest.mark.skipif(sys.platform != "linux", reason="where the size of a stack is known")

SMALL = 64 << 10
"""Bytes of stack on which Python works, and a product of matrices does not."""


def on_a_small_stack(body: Any) -> Any:
    """Return what a function returns, or raises, on a thread with a small stack."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(body())
        except Exception as error:
            found.append(error)

    before = threading.stack_size(SMALL)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return found[0]


def test_the_frames_of_a_module():
    module = Module(Target.host())
    names = ["leaf", "deep", "other", "top"]
    leaf, deep, other, top = (module.function(name, [("ptr", "x")]) for name in names)
    leaf.alloca(100_000)
    deep.scratch("rows", 300_000)
    deep.scratch("rows", 200_000)
    for f, callees in ((deep, ["leaf"]), (other, ["leaf"]), (top, ["other", "deep", "elsewhere"])):
        for callee in callees:
            f.call(callee, "void", f.params[0])
    for f in (leaf, deep, other, top):
        f.ret()
    frames = 3 * (4 << 10) + 2 * 64
    assert 0 <= stack_bytes(module.text) - (400_000 + frames) < 512
    assert stack_bytes("") == 0


def test_a_frame_holds_what_registers_do_not():
    module = Module(Target.named("generic"))
    f = module.function("f", [("ptr", "x")], exported=True)
    values = [f.load("ptr", f.at(f.params[0], 8 * i)) for i in range(1000)]
    f.call("elsewhere", "void", f.params[0])
    for i, value in enumerate(values):
        f.store(value, f.at(f.params[0], 8 * i))
    f.ret()
    module.declare("elsewhere", "void", ["ptr"])
    found = re.search(r"subq\s+\$(\d+), %rsp", assembly(module.text, module.target))
    assert found is not None
    assert 7000 < int(found[1]) < stack_bytes(module.text)


def test_a_program_says_what_it_takes():
    x = np.ones((64, 256), np.float32)
    product = rlx.jit(lambda x: x @ x.T)
    product(x)
    found = stack_bytes(product.ir("llvm", x))
    assert SMALL < found < stack.NEEDED - (256 << 10)


def test_a_program_that_takes_too_much_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rlx.compiler.MOST", SMALL)
    with pytest.raises(RlxError, match=r"its kernels take \d+ bytes .* expected at most 65536"):
        rlx.compile(PRODUCT)


@known
def test_threads_know_the_room_that_they_have():
    assert stack.has_room()
    assert on_a_small_stack(lambda: (stack.has_room(SMALL), stack.has_room())) == (True, False)
    before = threading.stack_size(SMALL)
    try:
        assert stack.elsewhere(stack.has_room)
        assert threading.stack_size() == SMALL
    finally:
        threading.stack_size(before)


def test_elsewhere_is_as_here():
    def fail() -> None:
        raise RlxError("said there")

    with pytest.raises(RlxError, match="said there"):
        stack.elsewhere(fail)
    with rlx.no_compile(), pytest.raises(RlxError, match=r"inside rlx.no_compile\(\)"):
        stack.elsewhere(lambda: rlx.jit(lambda x: x + 12345)(np.ones(3)))


def test_a_thread_that_is_refused_is_one_error(monkeypatch: pytest.MonkeyPatch):
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RlxError, match=r"stack is too small .*refused .*: allow 4 MB with"):
        stack.elsewhere(int)


def test_an_interrupt_waits_for_native_code(monkeypatch: pytest.MonkeyPatch):
    done: list[int] = []
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, *_: Any) -> None:
        monkeypatch.setattr(threading.Thread, "join", join)
        raise KeyboardInterrupt

    def work() -> None:
        time.sleep(0.05)
        done.append(1)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stack.elsewhere(work)
    assert done == [1]


# Too small a stack ends the process: each runs in one of its own.

PROGRAM = """
import sys, threading, numpy as np, rlx

def work():
    x = np.ones((64, 256), np.float32)
    product, softmax = rlx.jit(lambda x: x @ x.T), rlx.jit(lambda x: rlx.numpy.softmax(x))
    for _ in range(3):
        assert (product(x) == 256).all()
        assert abs(softmax(x) * 256 - 1).max() < 1e-5
    function = rlx.compile(open(sys.argv[2]).read())
    for _ in range(3):
        assert (function(x) == 256).all()
    model = rlx.load(sys.argv[1])
    print(*model.generate_ids([1, 2, 3, 4], 6, stop=False))

def workers():
    x = np.ones((512, 512), np.float32)
    assert (rlx.jit(lambda x: x @ x)(x) == 512).all()
    model = rlx.load(sys.argv[1])
    print(*model.generate_ids([1, 2, 3, 4], 6, stop=False))

threading.stack_size(64 << 10)
"""
PRODUCT = """
func.func @main(%x: tensor<64x256xf32>) -> tensor<64x64xf32> {
  %y = mir.transpose %x [1, 0] : tensor<64x256xf32> -> tensor<256x64xf32>
  %z = mir.dot %x, %y : tensor<64x256xf32>, tensor<256x64xf32> -> tensor<64x64xf32>
  func.return %z : tensor<64x64xf32>
}
"""


@known
@pytest.mark.parametrize(
    "run",
    [
        "workers()",
        "thread = threading.Thread(target=work); thread.start(); thread.join()",
    ],
)
def test_an_application_with_small_stacks(tmp_path: Path, run: str):
    path = write_llama(
        tmp_path / "m.gguf", layers=1, d=32, ffn=64, heads=2, kv_heads=1, vocab=301, ctx=64
    )
    (tmp_path / "f.mlir").write_text(PRODUCT)
    args = [sys.executable, "-c", PROGRAM + run, str(path), str(tmp_path / "f.mlir")]
    wanted = list(rlx.load(path).generate_ids([1, 2, 3, 4], 6, stop=False))
    done = subprocess.run(args, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [*map(int, done.stdout.split())] == wanted


@known
def test_a_team_runs_jobs_elsewhere(monkeypatch: pytest.MonkeyPatch):
    ran: list[threading.Thread] = []

    class Code:
        def run(self, *_: object) -> None:
            ran.append(threading.current_thread())

    monkeypatch.setattr("rlx.runtime.threads.native", Code)
    team = Team(1)
    team.run(0, 0)
    assert ran == [threading.current_thread()]
    assert on_a_small_stack(lambda: team.run(0, 0)) is None
    assert ran[1].name == "rlx-stack"
