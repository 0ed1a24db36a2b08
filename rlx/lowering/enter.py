"""
LLVM IR for the call of a program from Python: the guard that reads the arrays' headers itself.

Going through Python, to check an array and to learn its address costs more than a small kernel
takes. `enter` gets the tuples of arguments and of results as they are. It compares what it finds
there with what a call was prepared for, and runs the program if all is the same.

A prepared call is an array of 8-byte words: first those below, then an entry for each argument and
each result, of `ENTRY` words and one for each dimension.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.lowering import abi
from rlx.lowering.emitter import Function, Module
from rlx.lowering.sync import STARTED, lock, try_lock, unlock
from rlx.lowering.values import Value, i64

CONTEXT, JOB, TEAM = 0, 1, 2
"""The program's context, its step, and the team that runs it: 0 for the calling thread alone."""
DIMS, DIM_COUNT = 3, 4
"""Address and number of the words that `abi.DIMS` and what follows take."""
ARGS, OUTS = 5, 6
"""How many arguments and results there are."""
ARRAY_TYPE, FLOAT_TYPE = 7, 8
"""Addresses of the types of numpy's arrays and of Python's floats."""
ENTRIES = 9

DTYPE, RANK, FLAGS, NBYTES, CELL, KIND = range(6)
"""
Of an entry: address of the dtype, dimensions, flags that must be set, size, where its address goes,
and what it is.
"""
ENTRY = 6
ARRAY, FLOAT32, FLOAT64 = range(3)
"""Kinds: an array; a Python float, whose value is put where `DTYPE` says."""

RAN, OTHER, BUSY, ASLEEP = range(4)
"""What `enter` returns: it ran; the arguments differ; another thread is in it; no team runs yet."""

C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400
"""Flags of numpy's arrays (NumPy's C API, ndarray flags)."""


class Layout(NamedTuple):
    """
    Where CPython and numpy keep things, in bytes; numpy's is part of its stable binary interface.

    After an object's header an array has: data, i32 rank, dimensions, strides, base, dtype, flags.
    """

    header: int
    """Of an object; its type is the last word of it."""
    items: int
    """From a tuple's address to its first item; its length follows the header."""


def emit_enter(module: Module, layout: Layout) -> None:
    """
    Define and export `i64 enter(ptr call, ptr args, ptr outs, i64 wait)`.

    `args` and `outs` are tuples. Without `wait` it returns `BUSY` where a thread is in the program;
    else it waits for it. The module has `run`, of `sync.emit_team`.
    """
    params = [("ptr", "call"), ("ptr", "args"), ("ptr", "outs"), ("i64", "wait")]
    f = module.function("enter", params, result="i64", exported=True)
    call, args, outs, wait = f.params
    enter = _Enter(f, call, layout)
    middle, fits = enter.check(args, ARGS, i64(ENTRIES * 8))
    _, fits_too = enter.check(outs, OUTS, middle)
    fits = f.and_(fits, fits_too)

    def run() -> list[Value]:
        return f.if_(
            enter.apart(args, outs, middle), lambda: enter.locked(args, outs, wait), differs
        )

    def differs() -> list[Value]:
        return [i64(OTHER)]

    f.ret(f.if_(fits, run, differs)[0])


class _Enter:
    """`enter` while it is written."""

    def __init__(self, f: Function, call: Value, layout: Layout):
        self.f = f
        self.call = call
        self.layout = layout

    def word(self, index: int, type_: str = "i64") -> Value:
        return self.f.load(type_, self.f.at(self.call, index, 8), align=8)

    def field(self, entry: Value, index: int, type_: str = "i64") -> Value:
        return self.f.load(type_, self.f.at(entry, index * 8), align=8)

    def item(self, objects: Value, index: Value) -> Value:
        first = self.f.at(objects, self.layout.items)
        return self.f.load("ptr", self.f.at(first, index, 8), align=8)

    def of_array(self, array: Value, field: int, type_: str = "ptr") -> Value:
        align = 4 if type_ == "i32" else 8
        return self.f.load(type_, self.f.at(array, self.layout.header + field), align=align)

    def next(self, entry: Value) -> Value:
        """Return how many bytes an entry has."""
        return self.f.mul(self.f.add(self.field(entry, RANK), ENTRY), 8)

    def check(self, objects: Value, count: int, start: Value) -> tuple[Value, Value]:
        """Return where the entries from `start` on end, and whether the objects are as they say."""
        f, wanted = self.f, self.word(count)
        length = f.load("i64", f.at(objects, self.layout.header), align=8)

        def one(i: Value, state: list[Value]) -> list[Value]:
            entry = f.at(self.call, state[0])
            fits = self._fits(entry, self.item(objects, i))
            return [f.add(state[0], self.next(entry)), f.and_(state[1], fits)]

        def all_() -> list[Value]:
            return f.for_(0, wanted, 1, [start, Value("i1", "true")], one)

        def none() -> list[Value]:
            return [start, Value("i1", "false")]

        end, fits = f.if_(f.icmp("eq", length, wanted), all_, none)
        return end, fits

    def _fits(self, entry: Value, object_: Value) -> Value:
        f, kind = self.f, self.field(entry, KIND)
        type_ = f.load("i64", f.at(object_, self.layout.header - 8), align=8)

        def array() -> list[Value]:
            is_array = f.icmp("eq", type_, self.word(ARRAY_TYPE))
            no = [Value("i1", "false")]
            return f.if_(is_array, lambda: [self._array_fits(entry, object_)], lambda: no)

        def number() -> list[Value]:
            return [f.icmp("eq", type_, self.word(FLOAT_TYPE))]

        return f.if_(f.icmp("eq", kind, ARRAY), array, number)[0]

    def _array_fits(self, entry: Value, array: Value) -> Value:
        f = self.f
        dtype = f.icmp("eq", self.of_array(array, 40, "i64"), self.field(entry, DTYPE))
        rank = f.cast("zext", self.of_array(array, 8, "i32"), "i64")
        wanted = self.field(entry, FLAGS)
        flags = f.cast("zext", self.of_array(array, 48, "i32"), "i64")
        fits = f.and_(dtype, f.icmp("eq", f.and_(flags, wanted), wanted))
        fits = f.and_(fits, f.icmp("eq", rank, self.field(entry, RANK)))

        def dimensions() -> list[Value]:
            sizes = self.of_array(array, 16)

            def one(d: Value, same: list[Value]) -> list[Value]:
                size = f.load("i64", f.at(sizes, d, 8), align=8)
                known = f.load("i64", f.at(f.at(entry, ENTRY * 8), d, 8), align=8)
                return [f.and_(same[0], f.icmp("eq", size, known))]

            return f.for_(0, rank, 1, [Value("i1", "true")], one)

        return f.if_(fits, dimensions, lambda: [Value("i1", "false")])[0]

    def apart(self, args: Value, outs: Value, middle: Value) -> Value:
        """Return whether no result shares memory with an argument or another result."""
        f = self.f

        def result(j: Value, state: list[Value]) -> list[Value]:
            entry = f.at(self.call, state[0])
            here = self._span(entry, self.item(outs, j))

            def beside(objects: Value, count: Value, start: Value, clear: Value) -> Value:
                def one(i: Value, inner: list[Value]) -> list[Value]:
                    other = f.at(self.call, inner[0])
                    there = self._span(other, self.item(objects, i))
                    # So that nothing meets an array without elements.
                    first, end = f.umax(here[0], there[0]), f.umin(here[1], there[1])
                    meets = f.icmp("ult", first, end)
                    is_array = f.icmp("eq", self.field(other, KIND), ARRAY)
                    bad = f.and_(meets, is_array)
                    clear = f.select(bad, Value("i1", "false"), inner[1])
                    return [f.add(inner[0], self.next(other)), clear]

                return f.for_(0, count, 1, [start, clear], one)[1]

            clear = beside(args, self.word(ARGS), i64(ENTRIES * 8), state[1])
            clear = beside(outs, j, middle, clear)
            return [f.add(state[0], self.next(entry)), clear]

        return f.for_(0, self.word(OUTS), 1, [middle, Value("i1", "true")], result)[1]

    def _span(self, entry: Value, object_: Value) -> tuple[Value, Value]:
        """Return the addresses from the start to the end of an array's bytes."""
        start = self.of_array(object_, 0, "i64")
        return start, self.f.add(start, self.field(entry, NBYTES))

    def locked(self, args: Value, outs: Value, wait: Value) -> list[Value]:
        f = self.f
        context = self.word(CONTEXT, "ptr")
        word = f.at(context, abi.LOCK, 8)

        def go() -> list[Value]:
            state = self._run(args, outs, context)
            unlock(f, word)
            return [state]

        def patiently() -> list[Value]:
            lock(f, word)
            return [Value("i1", "true")]

        taken = f.if_(f.icmp("ne", wait, 0), patiently, lambda: [try_lock(f, word)])[0]
        return f.if_(taken, go, lambda: [i64(BUSY)])

    def _run(self, args: Value, outs: Value, context: Value) -> Value:
        f = self.f
        middle = self._bind(args, ARGS, i64(ENTRIES * 8))
        self._bind(outs, OUTS, middle)
        dims = self.word(DIMS, "ptr")

        def copy(i: Value, _: list[Value]) -> list[Value]:
            size = f.load("i64", f.at(dims, i, 8), align=8)
            f.store(size, f.at(f.at(context, abi.DIMS * 8), i, 8), align=8)
            return []

        f.for_(0, self.word(DIM_COUNT), 1, [], copy)
        job, team = self.word(JOB, "ptr"), self.word(TEAM)

        def alone() -> list[Value]:
            f.call_pointer(job, "void", context, i64(0), i64(1))
            return [i64(RAN)]

        def together() -> list[Value]:
            address = self.word(TEAM, "ptr")
            started = f.load_atomic("i64", f.at(address, STARTED))

            def run() -> list[Value]:
                f.call("run", "void", address, job, context)
                return [i64(RAN)]

            return f.if_(f.icmp("ne", started, 0), run, lambda: [i64(ASLEEP)])

        return f.if_(f.icmp("eq", team, 0), alone, together)[0]

    def _bind(self, objects: Value, count: int, start: Value) -> Value:
        """Put the addresses of arrays, and the values of numbers, where the program reads them."""
        f = self.f

        def one(i: Value, state: list[Value]) -> list[Value]:
            entry, object_ = f.at(self.call, state[0]), self.item(objects, i)
            cell, kind = self.field(entry, CELL, "ptr"), self.field(entry, KIND)

            def array() -> list[Value]:
                f.store(self.of_array(object_, 0), cell, align=8)
                return []

            def number() -> list[Value]:
                value = self.of_array(object_, 0, "double")
                place = self.field(entry, DTYPE, "ptr")
                f.store(place, cell, align=8)

                def narrow() -> list[Value]:
                    f.store(f.cast("fptrunc", value, "float"), place, align=4)
                    return []

                def wide() -> list[Value]:
                    f.store(value, place, align=8)
                    return []

                return f.if_(f.icmp("eq", kind, FLOAT32), narrow, wide)

            f.if_(f.icmp("eq", kind, ARRAY), array, number)
            return [f.add(state[0], self.next(entry))]

        return f.for_(0, self.word(count), 1, [start], one)[0]
