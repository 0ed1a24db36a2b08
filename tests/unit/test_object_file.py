"""What object code calls is known before it runs: what the process lacks is refused."""

from __future__ import annotations

import ctypes

import pytest

from rlx.errors import RlxError
from rlx.lowering.target import Target
from rlx.runtime.jit import Engine, compile_object
from rlx.runtime.object_file import undefined

ELF = "linux" in Target.host().triple
TEXT = """
declare i64 @{name}(i64)
define i64 @f(i64 %x) {{
  %y = call i64 @{name}(i64 %x)
  ret i64 %y
}}
"""


def code(name: str) -> bytes:
    return compile_object(TEXT.format(name=name), Target.host())


@pytest.mark.skipif(not ELF, reason="reads ELF alone")
def test_a_function_that_nobody_has_is_refused() -> None:
    assert undefined(code("nobody_has_this")) == ["nobody_has_this"]
    with pytest.raises(RlxError, match="calls nobody_has_this, which this process does not have"):
        Engine(code("nobody_has_this"))


def test_functions_of_the_process_are_called() -> None:
    engine = Engine(code("labs"))
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.address("f"))(-5) == 5


@pytest.mark.skipif(not ELF, reason="reads ELF alone")
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.8, 0.99])
def test_an_object_that_is_cut_is_one_error(share: float) -> None:
    data = code("labs")
    with pytest.raises(RlxError, match="expected an object file, found a damaged one"):
        undefined(data[: int(len(data) * share)])


def test_other_formats_are_not_read() -> None:
    assert undefined(b"") == undefined(b"\xcf\xfa\xed\xfe" + bytes(100)) == []
