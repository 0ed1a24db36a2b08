"""Segments, views and addresses."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest

from rlx.runtime.memory import HUGE_PAGE, POISON, Segment, address_of, aligned_array, rss_anon

needs_rss = pytest.mark.skipif(rss_anon() is None, reason="no RssAnon on this system")
MB = 1 << 20


@pytest.mark.parametrize("nbytes", [0, 1, 64, 4097, 3 * HUGE_PAGE + 5])
@pytest.mark.parametrize("huge", [False, True])
def test_a_segment_is_zeroed_and_aligned(nbytes: int, huge: bool) -> None:
    segment = Segment(nbytes, huge=huge)
    assert segment.nbytes == nbytes
    assert segment.address % mmap.PAGESIZE == 0
    assert not segment.view(0, np.uint8, [nbytes]).any()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_sparse_segment_may_be_larger_than_memory() -> None:
    with open("/proc/sys/vm/overcommit_memory") as f:
        if f.read().strip() == "2":
            pytest.skip("this system sets memory aside for all that is asked for")
    segment = Segment(1 << 42, sparse=True)
    segment.view((1 << 42) - 1, np.uint8, [1])[0] = 7
    assert segment.view((1 << 42) - 2, np.uint8, [2]).tolist() == [0, 7]
    segment.close()


def test_views_share_the_segment_at_its_address() -> None:
    segment = Segment(4096)
    view = segment.view(64, np.float32, (3, 5))
    assert view.shape == (3, 5)
    assert view.ctypes.data == segment.address + 64
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    view[:] = values
    np.testing.assert_array_equal(segment.view(64, np.float32, [15]), values.ravel())
    assert ctypes.string_at(segment.address + 64, 60) == values.tobytes()


def test_a_view_stays_within_the_segment() -> None:
    with pytest.raises((TypeError, ValueError)):
        Segment(64).view(32, np.float32, [9])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_poison_reads_as_nan(dtype: type) -> None:
    segment = Segment(1000, poison=True)
    assert np.isnan(segment.view(0, dtype, [1000 // np.dtype(dtype).itemsize])).all()
    assert (segment.view(0, np.uint8, [1000]) == POISON).all()


def test_a_view_outlives_close() -> None:
    segment = Segment(MB)
    view = segment.view(0, np.int64, [MB // 8])
    segment.close()
    segment.close()
    view[:] = 7
    assert view.sum() == 7 * MB // 8
    with pytest.raises(ValueError, match="closed"):
        segment.view(0, np.int64, [1])


@needs_rss
def test_a_segment_takes_memory_where_it_is_touched() -> None:
    before = rss_anon()
    segment = Segment(64 * MB)
    assert rss_anon() - before < 4 * MB
    segment.view(0, np.uint8, [32 * MB]).fill(1)
    assert 30 * MB < rss_anon() - before < 36 * MB
    segment.close()
    assert rss_anon() - before < 4 * MB


def test_the_address_of_a_read_only_mapping(tmp_path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"some bytes")
    with path.open("rb") as f:
        mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    assert ctypes.string_at(address_of(mapping), 10) == b"some bytes"
    mapping.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_its_own_copy() -> None:
    segment = Segment(64)
    view = segment.view(0, np.int64, [8])
    view[:] = 1
    pid = os.fork()
    if not pid:
        view[:] = 2
        os._exit(0)
    os.waitpid(pid, 0)
    assert view.tolist() == [1] * 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rss_anon_counts_bytes() -> None:
    before = rss_anon()
    # Not from numpy, which may give memory that this process had before.
    segment = Segment(16 * MB)
    segment.view(0, np.uint8, [16 * MB])[:] = 1
    assert 15 * MB < rss_anon() - before < 20 * MB
    segment.close()


def test_aligned_arrays_start_at_lines():
    for shape, dtype in (
        ((3, 5), np.float32),
        ((), np.int64),
        ((1, 4, 2), np.float64),
        ((7,), np.bool_),
    ):
        array = aligned_array(shape, dtype)
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable
