"""A compiled program in memory: its arena, its context, and the calls that run its phases."""

from __future__ import annotations

import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError
from rlx.lowering import abi, checksum
from rlx.lowering.manifest import Manifest
from rlx.runtime.cache import ObjectCache
from rlx.runtime.jit import Engine
from rlx.runtime.memory import Block, Segment
from rlx.runtime.packed import LAYOUT, Fill, stored
from rlx.runtime.recorder import Recorder
from rlx.runtime.threads import Team, native

CALL_SECONDS = 0.03
"""How long one native call may take, about, so that Ctrl-C is answered."""
PART_GROWTH = 4
"""How many times the parts of a native call the next one may have."""

Raw = Callable[[str], NDArray[np.uint8]]
"""Gives the bytes of a weight in its file, by key."""


class Program:
    """
    One program, ready to run its phases on a team of threads.

    `weights` and `state` are segments that programs of one model share. With `poison` the arena
    starts as NaN, so that a read of a byte that nothing has written shows. A program with marks
    tells them to its `recorder`.
    """

    def __init__(
        self,
        manifest: Manifest,
        code: bytes,
        team: Team,
        state: Segment,
        poison: bool = False,
        recorder: Recorder | None = None,
    ):
        self.manifest = manifest
        self.recorder = recorder
        self.team = team
        self.alone = False
        """Whether steps are for the calling thread alone, not for all of the team."""
        self._engine = Engine(code)
        self._jobs = {name: self._engine.address(name) for name in (abi.PROLOGUE, abi.STEP)}
        self._poison = poison
        self._arena = Segment(max(manifest.arena_bytes, 64), poison=poison)
        self._state = state
        self._weights: Block | None = None
        self._process = os.getpid()
        self._inputs = np.zeros(max(len(manifest.inputs), 1), np.int64)
        self._outputs = np.zeros(max(len(manifest.outputs), 1), np.int64)
        self._context = np.zeros(abi.DIMS + len(manifest.free) + len(manifest.places), np.int64)
        self.context: int = self._context.ctypes.data
        """Its address."""
        # Asking an array for its address takes longer than to make it.
        self._cells = self._inputs.ctypes.data, self._outputs.ctypes.data
        self._input_index = {io.name: i for i, io in enumerate(manifest.inputs)}
        self._output_index = {io.name: i for i, io in enumerate(manifest.outputs)}
        for word, address in (
            (abi.TEAM, team.address),
            (abi.ARENA, self._arena.address),
            (abi.STATE, state.address),
            (abi.INPUTS, self._cells[0]),
            (abi.OUTPUTS, self._cells[1]),
            (abi.STEPS, 1),
            (abi.UNTIL, manifest.parts),
            (abi.MARKS_AT, recorder.address if recorder is not None else 0),
        ):
            self._context[word] = address
        if recorder is not None:
            recorder.use_clock(ctypes.CFUNCTYPE(ctypes.c_int64)(self._engine.address(abi.CLOCK)))
        self._bound: dict[str, NDArray[np.generic]] = {}
        self._stops = np.zeros(1, np.int32)

    def pack(self, raw: Raw, weights: Block) -> None:
        """
        Fill a segment with the packed weights, from their bytes in the file.

        It goes layer by layer, for what a source makes of its file takes memory.
        """
        layers = defaultdict[int, dict[int, str]](dict)
        count = 0
        for weight in self.manifest.weights:
            for layer, key in enumerate(weight.keys(), weight.first):
                layers[layer][count] = key
                count += 1
        addresses = np.zeros(count or 1, np.int64)
        self._context[abi.WEIGHTS] = weights.address
        self._context[abi.SOURCES] = addresses.ctypes.data
        for _, keys in sorted(layers.items()):
            data = [raw(key) for key in keys.values()]
            # Packing leaves out what has no address.
            addresses[:] = 0
            addresses[[*keys]] = [array.ctypes.data for array in data]
            self.team.run(self._engine.address(abi.PACK), self.context)
            # Before the next one's are made.
            data.clear()
        self._context[abi.SOURCES] = 0

    def checksums(self, address: int, nbytes: int) -> bytes:
        """Return the checksums of so many bytes of memory, a multiple of `checksum.ROUND`."""
        sums = np.zeros(-(-nbytes // checksum.CHUNK), np.int64)
        words = np.array([address, nbytes // checksum.ROUND, sums.ctypes.data], np.int64)
        self.team.run(self._engine.address(abi.CHECKSUMS), words.ctypes.data)
        return sums.tobytes()

    def start(self, weights: Block, alone: bool = False) -> None:
        """Run the prologue, with the packed weights in place."""
        self._weights = weights
        self._context[abi.WEIGHTS] = weights.address
        self.team.run(self._jobs[abi.PROLOGUE], self.context, alone)

    @contextmanager
    def on_state(self, address: int) -> Generator[None]:
        """Run on a state of another address, with the layout of the program's own."""
        self._context[abi.STATE] = address
        try:
            yield
        finally:
            self._context[abi.STATE] = self._state.address

    @property
    def step_address(self) -> int:
        return self._jobs[abi.STEP]

    def input_cell(self, index: int) -> int:
        """Return the address of the word that holds an input's address."""
        return self._cells[0] + 8 * index

    def output_cell(self, index: int) -> int:
        return self._cells[1] + 8 * index

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep other threads, those in native code too, from running or changing the program."""
        lock, code = self.context + 8 * abi.LOCK, native()
        try:
            # Ctrl-C while it waits is answered when it has returned, with the lock.
            code.lock(lock)
            yield
        finally:
            code.unlock(lock)

    def after_fork(self) -> None:
        """
        In a forked child: free the lock, which a thread of the parent may hold.

        It may have been in the midst of a step, which left counters in the arena. The prologue runs
        on the calling thread, as a hook is no place to start others.
        """
        held = self._context[abi.LOCK]
        self._context[abi.LOCK] = 0
        if held and self._weights is not None:
            self._renew_arena(self._arena.nbytes, alone=True)

    def words(self, sizes: Mapping[str, int]) -> NDArray[np.int64]:
        """
        Return what the context's words from `abi.DIMS` on are for sizes of all dimensions.

        The arena grows where it must, so a program that several threads call is `held`, if it has
        places without a bound.
        """
        manifest = self.manifest
        offsets = self._lay_out(sizes) if manifest.places else []
        return np.array([*(sizes[n] for n in manifest.free), *offsets], np.int64)

    def _lay_out(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the places of buffers without a bound, in a larger arena where they need it."""
        manifest = self.manifest
        offsets, end = manifest.layout(sizes)
        if end > self._arena.nbytes:
            self._renew_arena(end + end // 4)
        return offsets

    def _renew_arena(self, nbytes: int, alone: bool = False) -> None:
        before, self._arena = self._arena, Segment(nbytes, poison=self._poison)
        self._context[abi.ARENA] = self._arena.address
        # What the prologue makes lies at the arena's start.
        assert self._weights is not None
        try:
            self.start(self._weights, alone)
        except BaseException:
            # Ctrl-C, before the new one has what later calls read there.
            self._arena = before
            self._context[abi.ARENA] = before.address
            raise

    def bind_input(self, name: str, array: NDArray[np.generic]) -> None:
        """Let an input be read from an array, at the address that it has now."""
        self._inputs[self._input_index[name]] = array.ctypes.data
        self._bound[f"input {name}"] = array

    def bind_output(self, name: str, array: NDArray[np.generic]) -> None:
        """Let an output be written to an array, as large as the next step's dimensions say."""
        self._outputs[self._output_index[name]] = array.ctypes.data
        self._bound[f"output {name}"] = array

    def bind_steps(self, ids: NDArray[np.int32], stops: Sequence[int]) -> None:
        """Record the tokens of several steps in `ids`, and stop after one of `stops`."""
        self._stops = np.array([*stops, 0], np.int32)
        self._bound["ids"] = ids
        self._context[abi.IDS] = ids.ctypes.data
        self._context[abi.STOPS] = self._stops.ctypes.data
        self._context[abi.STOP_COUNT] = len(stops)

    def step(self, sizes: Mapping[str, int], steps: int = 1, in_calls: bool = False) -> int:
        """
        Run a step, or up to `steps` where the program carries a token on; return how many it took.

        With `in_calls` a single step is several native calls of about `CALL_SECONDS`, where it
        takes longer than one of them: Ctrl-C is answered between them, and the step is left undone.
        Raises RlxError for a dimension that is missing or out of its bounds.
        """
        manifest = self.manifest
        if self._process != os.getpid():
            # A thread of the parent may have been in the midst of a step: its counters stand still.
            self._renew_arena(self._arena.nbytes)
            self._process = os.getpid()
        words = self.words(manifest.bind(sizes))
        self._context[abi.DIMS : abi.DIMS + len(words)] = words
        self._context[abi.STEPS] = steps
        self._context[abi.TAKEN] = 0
        if self.recorder is not None:
            self.recorder.begin()
        if in_calls and self.recorder is None:
            self._run_in_calls()
        else:
            self._run(0, manifest.parts)
        taken = int(self._context[abi.TAKEN]) if manifest.carries else 1
        if self.recorder is not None:
            after = self._context[abi.DIMS : abi.DIMS + len(words)]
            self.recorder.take(manifest, taken, words, after)
        return taken

    def _run(self, first: int, end: int) -> None:
        """Run parts of a step."""
        self._context[abi.FROM], self._context[abi.UNTIL] = first, end
        self.team.run(self._jobs[abi.STEP], self.context, self.alone)

    def _run_in_calls(self) -> None:
        """Run a step in calls of as many of its parts as take `CALL_SECONDS`."""
        done, count, parts = 0, 1, self.manifest.parts
        while done < parts:
            end = min(done + count, parts)
            before = time.perf_counter()
            self._run(done, end)
            pace = (end - done) * CALL_SECONDS / max(time.perf_counter() - before, 1e-9)
            # The first part, what comes before the layers, says little of them.
            most = PART_GROWTH * count if done else 1
            done, count = end, max(1, min(int(pace), most))


PACKING = (
    "formats", "pack", "byte_rows", "checksum",
    "vmath_cast", "vmath_base", "vmath_basic", "vmath_int",
)  # fmt: skip
"""The files of `rlx/lowering` that say what packed weights are."""


def packed_weights(program: Program, contents: str, pack: Fill, what: str = "") -> Block:
    """
    Return a program's packed weights: mapped from the cache folder, or packed now and kept there.

    `contents` is a digest of the weights' file, and `what` it is for people; where they lie in the
    segment, and what says how they are packed, are parts of the key.
    """
    size = program.manifest.weight_segment_bytes
    if size == 0:
        return Segment(64)
    return stored(packed_key(program.manifest, contents), size, program.checksums, pack, what)


def packed_key(manifest: Manifest, contents: str) -> str:
    """Return the key of a program's packed weights, with their layout."""
    key = ObjectCache.key("packed", contents, repr(manifest.weights))
    return key + LAYOUT + ObjectCache.key(*_packing())[:12]


def _packing() -> list[bytes]:
    """Return the sources of packing: files that others have written are not to be read."""
    folder = Path(abi.__file__).parent
    return [(folder / f"{name}.py").read_bytes() for name in PACKING]


def check_shared(programs: Sequence[Program]) -> None:
    """Raise RlxError unless the programs of a model agree on weights and states."""
    first, *others = (p.manifest for p in programs)
    for other in others:
        if (other.weights, other.states) != (first.weights, first.states):
            raise RlxError(
                f"programs {first.name} and {other.name} lay out weights or states differently"
            )
