"""
Calls of a program with numpy arrays at the cost of a C call.

A `Call` is a program prepared for arguments of given dtypes and shapes. Native code compares what
it is given with that, takes the arrays' addresses from their headers and runs the program
(`rlx.lowering.enter`); Python only has to find the call and the arrays for the results.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.lowering import enter
from rlx.runtime.memory import aligned_array
from rlx.runtime.program import Program
from rlx.runtime.threads import Team, native

Array: TypeAlias = NDArray[Any]

SHARED_WORK = 1 << 19
"""Operations on elements, about 20 us of one thread, from which on a team runs a program."""
POOL_BYTES = 128 << 20
"""Of arrays for results that a call keeps to give them out again."""
POOL = 3
"""Sets of results that a call keeps."""
_ALIGNED_FROM = 256
"""Bytes from which on an array for results starts at a multiple of 64."""

_programs: weakref.WeakSet[Program] = weakref.WeakSet()


class Argument(NamedTuple):
    """What an argument is: an array of a dtype and shape, or a Python float taken as `dtype`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    number: bool = False


@cache
def shared_team(threads: int | None) -> Team:
    """Return the team that all functions of this process share which ask for as many threads."""
    return Team(threads)


class Call:
    """
    A program prepared for one set of shapes.

    `enter(address, args, outs, wait)` runs it on tuples of arrays, and returns 0; another number
    means that it did not: `again` says why, and runs it where that is possible.
    """

    def __init__(
        self,
        program: Program,
        arguments: Sequence[Argument],
        sizes: Mapping[str, int],
        more: tuple[Array, ...] = (),
    ):
        """
        Prepare a program whose inputs are `arguments`, for sizes of its free dimensions.

        `more` are arrays for the last of them, which the caller has to add to those of each call.
        Raises RlxError for sizes that it can't have, and where memory lacks.
        """
        self.program = program
        self.more = more
        manifest = program.manifest
        with program.held():
            self._dims, bound = program.words(sizes)
        work = sum(n * prod(bound[d] for d in names) for n, names in manifest.work)
        self.team = program.team if work >= SHARED_WORK and program.team.threads > 1 else None
        self.shapes = [
            tuple(bound[d] if isinstance(d, str) else d for d in io.dims) for io in manifest.outputs
        ]
        self.dtypes = [np.dtype(_NUMPY[io.dtype]) for io in manifest.outputs]
        self._numbers = np.zeros(max(len(arguments), 1), np.float64)
        self._words = np.array(self._prepared(arguments), np.int64)
        self.address: int = self._words.ctypes.data
        code = native()
        self._patient = code.enter
        self.enter = code.enter_at_once if self.team is None else code.enter
        self.wait = 0 if self.team is None else 1
        self._pool: list[tuple[Array, ...]] = []
        self._kept = min(POOL, POOL_BYTES // max(self._result_bytes(), 1))
        self._idle = _idle(tuple(map(_is_part, self.shapes, self.dtypes)))
        _programs.add(program)

    def _prepared(self, arguments: Sequence[Argument]) -> list[int]:
        """Return the words that `enter` reads."""
        program, manifest = self.program, self.program.manifest
        flags = enter.C_CONTIGUOUS | enter.ALIGNED
        words = [0] * enter.ENTRIES
        for place, word in (
            (enter.CONTEXT, program.context),
            (enter.JOB, program.step_address),
            (enter.TEAM, self.team.address if self.team is not None else 0),
            (enter.DIMS, self._dims.ctypes.data),
            (enter.DIM_COUNT, len(self._dims)),
            (enter.ARGS, len(arguments)),
            (enter.OUTS, len(manifest.outputs)),
            (enter.ARRAY_TYPE, id(np.ndarray)),
            (enter.FLOAT_TYPE, id(float)),
        ):
            words[place] = word
        for i, argument in enumerate(arguments):
            cell = program.input_cell(i)
            if argument.number:
                number = self._numbers.ctypes.data + 8 * i
                kind = enter.FLOAT32 if argument.dtype == np.float32 else enter.FLOAT64
                words += [number, 0, 0, 8, cell, kind]
            else:
                words += _entry(argument.dtype, argument.shape, flags, cell)
        for i, (dtype, shape) in enumerate(zip(self.dtypes, self.shapes, strict=True)):
            words += _entry(dtype, shape, flags | enter.WRITEABLE, program.output_cell(i))
        return words

    def again(self, status: int, args: tuple[object, ...], outs: tuple[Array, ...]) -> bool:
        """Run the program that `enter` did not; False where the arguments are others."""
        while status in (enter.BUSY, enter.ASLEEP):
            if status == enter.ASLEEP and self.team is not None:
                self.team.start()
            status = self._patient(self.address, args, outs, 1)
        return status == enter.RAN

    # Results

    def _result_bytes(self) -> int:
        pairs = zip(self.dtypes, self.shapes, strict=True)
        return sum(dtype.itemsize * prod(shape) for dtype, shape in pairs)

    def results(self) -> tuple[Array, ...]:
        """Return arrays for the results that nobody else has."""
        for outs in self._pool:
            if _references(outs) <= self._idle:
                return outs
        outs = tuple(map(_empty, self.shapes, self.dtypes))
        if len(self._pool) < self._kept:
            self._pool.append(outs)
        return outs


def _entry(dtype: np.dtype[Any], shape: Sequence[int], flags: int, cell: int) -> list[int]:
    nbytes = dtype.itemsize * prod(shape)
    return [id(dtype), len(shape), flags, nbytes, cell, enter.ARRAY, *shape]


def _is_part(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array for results is a part of another one, so that it can be aligned."""
    return prod(shape) * dtype.itemsize >= _ALIGNED_FROM


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array, whose elements from some size on are as vectors like them."""
    if not _is_part(shape, dtype):
        return np.empty(shape, dtype)
    return aligned_array(shape, dtype)


def _references(outs: tuple[Array, ...]) -> int:
    """
    Return the references to a tuple, the arrays in it and what they are parts of.

    A view of an array keeps what that is a part of, not the array itself.
    """
    count = sys.getrefcount(outs)
    for array in outs:
        count += sys.getrefcount(array)
        if array.base is not None:
            count += sys.getrefcount(array.base)
    return count


@cache
def _idle(parts: tuple[bool, ...]) -> int:
    """Return what `_references` counts for a tuple of arrays that only a pool has."""
    pool = [tuple(_empty((_ALIGNED_FROM if part else 1,), np.dtype(np.uint8)) for part in parts)]
    for outs in pool:
        # As `results` asks.
        return _references(outs)
    return 0


_NUMPY = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "ui8": np.uint8, "ui32": np.uint32, "i1": np.bool_,
}  # fmt: skip


def _after_fork() -> None:
    """In a forked child no thread is in a program, whatever the parent's were in."""
    for program in list(_programs):
        program.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
