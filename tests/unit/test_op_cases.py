"""What the cases of operations are held to: the checks themselves find what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernels import PAGE, Fenced
from op_cases import Batch, assert_near, drawn, of_any_size

from rlx.ops.registry import all_records, record_of


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (np.float32([1, 2]), [1, 2.0001]),
        (np.float64([1, 2]), [1, 2 + 1e-9]),
        (np.float32([1, np.nan]), [1, 2]),
        (np.float32([1, 2]), [1, np.nan]),
        (np.float32([1, np.inf]), [1, 2]),
        (np.float32([1, -np.inf]), [1, 1e300]),
        (np.int32([1, 2]), [1, 3]),
        (np.float32([1, 2]), [[1, 2]]),
    ],
)
def test_what_is_not_near(got: np.ndarray, want: list[float]):
    with pytest.raises(AssertionError):
        assert_near(got, np.array(want), 1e-12, "here")


def test_what_is_near():
    wide = np.linspace(1, 2, 50) / 3
    assert_near(wide.astype(np.float32), wide, 1e-12, "here")
    assert_near(wide.astype(np.float16), wide, 1e-12, "here")
    assert_near(np.float32([1, np.inf, np.nan]), np.array([1, 1e300, np.nan]), 1e-12, "here")


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize(
    "access",
    [
        "ctypes.memmove(address, b'x', 1)",
        "ctypes.string_at(address, 21)",
    ],
)
def test_a_fence_ends_who_crosses_it(access: str):
    program = f"""
import ctypes, numpy as np
from kernels import Fenced
fenced = Fenced(np.arange(5, dtype=np.float32))
address = fenced.array.ctypes.data
assert ctypes.string_at(address, 20) == fenced.array.tobytes()
{access}
"""
    folder = Path(__file__).parent
    assert subprocess.run([sys.executable, "-c", program], cwd=folder).returncode == -signal.SIGSEGV


def test_a_wrong_result_is_found():
    batch = Batch([drawn(record_of("tensor.clamp"), "f32", 1)])
    batch.check(["host"])
    batch.wanted["y0_0"][0] += 1
    with pytest.raises(AssertionError, match=r"tensor.clamp 1 f32: host, result y0_0"):
        batch.check(["host"])


def test_dimensions_get_names():
    d = of_any_size(drawn(record_of("tensor.trilu"), "f32", 0), 1)
    assert d is not None
    assert "#hir.dims<d0, " in str(Batch([d]).module)
    assert of_any_size(drawn(record_of("tensor.tile"), "f32", 1), 1) is None


def test_a_join_along_a_name_is_no_case():
    concat = next(r for r in all_records() if r.name == "mir.concat")
    cases = [of_any_size(drawn(concat, "f32", seed), 1) for seed in range(24)]
    assert any(case is None for case in cases)
    assert any(case is not None for case in cases)


def test_a_name_that_has_to_be_a_number_is_no_case():
    reshape = next(r for r in all_records() if r.name == "mir.reshape")
    assert of_any_size(drawn(reshape, "f64", 201), 1) is None


def test_arrays_behind_a_fence_are_the_same():
    x = np.random.default_rng(0).standard_normal((3, 5))
    fenced = Fenced(x)
    np.testing.assert_array_equal(fenced.array, x)
    assert (fenced.array.ctypes.data + x.nbytes) % PAGE == 0
