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
from contextlib import nullcontext
from functools import cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.lowering import enter
from rlx.runtime.memory import aligned_array
from rlx.runtime.once import once
from rlx.runtime.program import Program
from rlx.runtime.stack import guarded
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

    def ready(self, x: Any) -> Any:
        """Return an argument as a program reads it: contiguous, aligned, in the machine's order."""
        if self.number and type(x) is float:
            return x
        array = np.asarray(x, self.dtype)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            array = np.array(array, self.dtype, order="C")
        # Types that are equal, as `long` and `long long` are, may be two.
        return array if array.dtype is self.dtype else array.view(self.dtype)


@once
def shared_team(threads: int | None) -> Team:
    """Return the team that all functions of this process share which ask for as many threads."""
    return Team(threads)


class Call:
    """
    A program prepared for one set of shapes.

    `enter(address, args, outs, wait)` runs it on tuples of arrays, and returns 0; another number
    means that it did not: `again` runs it then, where that is possible.
    """

    def __init__(
        self,
        program: Program,
        arguments: Sequence[Argument],
        sizes: Mapping[str, int],
        more: tuple[Array, ...] = (),
    ):
        """
        Prepare a program whose inputs are `arguments`, for sizes of all its dimensions.

        `more` are arrays for the last of them, which the caller has to add to those of each call.
        Raises RlxError where memory lacks.
        """
        self.program = program
        self.more = more
        self.arguments = tuple(arguments)
        manifest = program.manifest
        self.shapes = self._result_shapes(sizes)
        self.dtypes = [np.dtype(DTYPES[io.dtype]) for io in manifest.outputs]
        pairs = zip(self.dtypes, self.shapes, strict=True)
        self.result_bytes = sum(dtype.itemsize * prod(shape) for dtype, shape in pairs)
        floats = any(argument.number for argument in arguments)
        self._numbers = np.zeros(len(arguments), np.float64) if floats else None
        self._pool: list[tuple[Array, ...]] = []
        self._kept = min(POOL, POOL_BYTES // max(self.result_bytes, 1))
        self._idle = _idle(tuple(map(_is_part, self.shapes, self.dtypes)))
        self._patient = guarded(native().enter, program.manifest.stack_bytes)
        self._complete(self._prepared(), sizes)
        _programs.add(program)

    def resized(self, sizes: Mapping[str, int]) -> Call | None:
        """
        Return the call of arguments of the same shapes for other sizes, which has the same pool.

        None where its results have other shapes. Raises RlxError where memory lacks.
        """
        if self._result_shapes(sizes) != self.shapes:
            return None
        other = Call.__new__(Call)
        other.__dict__.update(self.__dict__)
        other.result_bytes = 0
        other._complete(self._words[: self._first], sizes)
        return other

    def _result_shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        outputs = self.program.manifest.outputs
        return [tuple(sizes[d] if isinstance(d, str) else d for d in io.dims) for io in outputs]

    def _prepared(self) -> NDArray[np.int64]:
        """Return the words that `enter` reads, but for those that depend on sizes."""
        program, manifest = self.program, self.program.manifest
        numbers = self._numbers.ctypes.data if self._numbers is not None else 0
        flags = enter.C_CONTIGUOUS | enter.ALIGNED
        words = [0] * enter.ENTRIES
        for place, word in (
            (enter.CONTEXT, program.context),
            (enter.JOB, program.step_address),
            (enter.ARGS, len(self.arguments)),
            (enter.OUTS, len(manifest.outputs)),
            (enter.ARRAY_TYPE, id(np.ndarray)),
            (enter.FLOAT_TYPE, id(float)),
        ):
            words[place] = word
        for i, argument in enumerate(self.arguments):
            cell = program.input_cell(i)
            if argument.number:
                kind = enter.FLOAT32 if argument.dtype == np.float32 else enter.FLOAT64
                words += [numbers + 8 * i, 0, 0, 8, cell, kind]
            else:
                words += _entry(argument.dtype, argument.shape, flags, cell)
        for i, (dtype, shape) in enumerate(zip(self.dtypes, self.shapes, strict=True)):
            words += _entry(dtype, shape, flags | enter.WRITEABLE, program.output_cell(i))
        return np.array(words, np.int64)

    def _complete(self, prepared: NDArray[np.int64], sizes: Mapping[str, int]) -> None:
        """Add the words of sizes to those prepared, and choose who runs a program of such sizes."""
        program, manifest = self.program, self.program.manifest
        work = sum(n * prod(sizes[d] for d in names) for n, names in manifest.work)
        large = work >= SHARED_WORK
        self.team = program.team if large and program.team.threads > 1 else None
        # Other Python threads run meanwhile, unless it is over before they would.
        at_once = not large and not manifest.open_ended
        self.enter = self._patient
        if at_once:
            self.enter = guarded(native().enter_at_once, manifest.stack_bytes)
        self.wait = 0 if at_once else 1
        with program.held() if manifest.places else nullcontext():
            dims = program.words(sizes)
        self._first = first = len(prepared)
        self._words = words = np.concatenate([prepared, dims])
        self.address: int = words.ctypes.data
        words[enter.DIMS], words[enter.DIM_COUNT] = self.address + 8 * first, len(dims)
        words[enter.TEAM] = self.team.address if self.team is not None else 0

    def again(
        self, status: int, args: tuple[object, ...], outs: tuple[Array, ...], given: bool = False
    ) -> tuple[Array, ...] | None:
        """
        Run the program that `enter` did not; return the results, None for other arguments.

        They are in `outs`, or in others where these are the pool's, and not `given` by a user.
        """
        while status != enter.RAN:
            if status == enter.OTHER:
                if given or not self._forget(outs):
                    return None
                outs = self.results()
            elif status == enter.ASLEEP and self.team is not None:
                self.team.start()
            status = self._patient(self.address, args, outs, 1)
        return outs

    # Results

    def _forget(self, outs: tuple[Array, ...]) -> bool:
        """Take arrays out of the pool that a user gave another shape, or such; False for others."""
        if not any(outs is kept for kept in self._pool):
            return False
        wanted = zip(outs, self.shapes, self.dtypes, strict=True)
        if all(_is_as_made(*three) for three in wanted):
            return False
        self._pool[:] = [kept for kept in self._pool if kept is not outs]
        return True

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


def _is_as_made(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    flags = array.flags
    same = array.shape == shape and array.dtype is dtype
    return same and flags.c_contiguous and flags.aligned and flags.writeable


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


DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "ui8": np.uint8, "ui32": np.uint32, "i1": np.bool_,
}  # fmt: skip
"""numpy's types of the elements that arrays bring and take."""


def _after_fork() -> None:
    """In a forked child no thread is in a program, whatever the parent's were in."""
    for program in list(_programs):
        program.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
