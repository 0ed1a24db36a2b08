"""Counts of compilations, and `rlx.no_compile`: what is promised to compile nothing does not."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest
from models import write_llama

import rlx
from rlx.errors import RlxError
from rlx.lowering.emitter import Module
from rlx.lowering.target import Target
from rlx.runtime.compilations import counted
from rlx.runtime.jit import compile_object

pytestmark = pytest.mark.usefixtures("cache")

ADD = """
func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}) {
  %y = mir.binary add %x, %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 2048}
    return write_llama(tmp_path_factory.mktemp("models") / "small.gguf", **shape)


def compile_something() -> bytes:
    module = Module(Target.host())
    f = module.function("f", [], exported=True)
    f.ret()
    return compile_object(module.text, module.target, "something")


def test_a_model_that_is_not_in_the_cache_is_refused(path: Path) -> None:
    with rlx.no_compile(), pytest.raises(RlxError) as caught:
        rlx.load(path, max_context=48)
    message = str(caught.value)
    assert "rlx.no_compile()" in message
    assert "prefill of small.gguf would have to be" in message
    assert "\n" not in message
    # Nothing is left of the attempt.
    assert rlx.load(path, max_context=48).stats.compilations >= 2


def test_a_model_in_the_cache_is_loaded(path: Path) -> None:
    first = rlx.load(path, max_context=64)
    with rlx.no_compile():
        second = rlx.load(path, max_context=64)
        assert second.stats.compilations == 0
        assert second.stats.compile_s == 0.0
        assert list(second.generate_ids([1, 2], 5)) == list(first.generate_ids([1, 2], 5))


def test_prompts_of_any_length_compile_nothing(path: Path) -> None:
    model = rlx.load(path)
    list(model.generate_ids([1, 2, 3], 2))
    model.generate_batch([[1, 2]], 2)
    before = model.stats.compilations
    draw = random.Random(0)
    with rlx.no_compile(), counted() as tally:
        for _ in range(60):
            ids = [draw.randrange(301) for _ in range(draw.randint(1, 2000))]
            assert list(model.generate_ids(ids, draw.randint(1, 4), stop=False))
        model.logits(ids[:40])
        model.extend([3, 4])
        model.extend([5])
        model.generate_batch([[1, 2], [3], ids[:100]], 3)
    assert tally.count == 0
    assert model.stats.compilations == before


def test_programs_with_marks_are_counted(path: Path) -> None:
    model = rlx.load(path, max_context=80)
    before = model.stats.compilations
    with rlx.no_compile(), pytest.raises(RlxError, match="prefill of small"):
        model.profile([1, 2], 1)
    model.profile([1, 2], 1)
    assert model.stats.compilations == before + 2
    # They are in the cache now.
    model.profile([1, 2], 1)
    assert model.stats.compilations == before + 2


def test_functions_are_refused_and_named() -> None:
    @rlx.jit
    def twice(x: np.ndarray) -> np.ndarray:
        return x + x

    x = np.arange(5, dtype=np.float32)
    with rlx.no_compile(), pytest.raises(RlxError, match="the function twice would have to be"):
        twice(x)
    np.testing.assert_array_equal(twice(x), x + x)
    with rlx.no_compile():
        np.testing.assert_array_equal(twice(x[:3]), x[:3] * 2)
        np.testing.assert_array_equal(twice(x, out=np.empty_like(x)), x + x)
        with pytest.raises(RlxError, match="twice"):
            twice(np.arange(3))
    assert twice.stats.compilations == 1


def test_a_function_in_the_cache_is_taken() -> None:
    def thrice(x: np.ndarray) -> np.ndarray:
        return x * np.float32(3)

    x = np.arange(5, dtype=np.float32)
    rlx.jit(thrice)(x)
    with rlx.no_compile():
        again = rlx.jit(thrice)
        np.testing.assert_array_equal(again(x), x * 3)
    assert (again.stats.compilations, again.stats.cached) == (1, 1)


def test_compiled_modules_are_counted() -> None:
    with rlx.no_compile(), pytest.raises(RlxError, match="a module would have to be"):
        rlx.compile(ADD)
    f = rlx.compile(ADD)
    assert f.stats.compilations >= 1
    count, x = f.stats.compilations, np.ones(4, np.float32)
    with rlx.no_compile():
        np.testing.assert_array_equal(f(x), x + x)
    assert f.stats.compilations == count
    assert f.stats.llvm_s > 0


def test_it_ends_with_the_block_and_with_errors() -> None:
    with rlx.no_compile():
        with rlx.no_compile():
            pass
        with pytest.raises(RlxError, match="but something would have to be"):
            compile_something()
    assert compile_something()
    with pytest.raises(ValueError, match="mine"), rlx.no_compile():
        raise ValueError("mine")
    assert compile_something()


def test_it_decorates_functions() -> None:
    @rlx.no_compile()
    def refused() -> bytes:
        return compile_something()

    for _ in range(2):
        with pytest.raises(RlxError, match="something"):
            refused()


def test_other_threads_compile() -> None:
    inside, made, counts = threading.Barrier(2), [], []

    def other() -> None:
        inside.wait()
        with counted() as tally:
            made.append(compile_something())
        counts.append(tally.count)

    thread = threading.Thread(target=other)
    thread.start()
    with rlx.no_compile(), counted() as tally:
        inside.wait()
        thread.join()
        with pytest.raises(RlxError, match="something"):
            compile_something()
    assert len(made) == 1
    assert (tally.count, counts) == (0, [1])


def test_counts_nest() -> None:
    with counted() as outer:
        compile_something()
        with counted() as inner:
            compile_something()
    assert (outer.count, inner.count) == (2, 1)
    assert outer.seconds >= inner.seconds > 0
