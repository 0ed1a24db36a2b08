"""The instructions of a function, a method for each: integers, floats, vectors, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rlx.lowering.target import LINE, Target
from rlx.lowering.values import Index, Value, i32, i64, vec

STREAMING = "!nontemporal !0"
"""The mark of a store past the caches; a module that has it defines !0."""


class Instructions(ABC):
    """What writes instructions where a function is being written."""

    target: Target
    _words: dict[str, Value]
    """Values of bf16 by name, and the i16 that they were made of."""

    @abstractmethod
    def line(self, text: str) -> None:
        """Emit an instruction without a result."""

    @abstractmethod
    def _emit(self, type_: str, text: str) -> Value:
        """Emit an instruction; return its result."""

    @abstractmethod
    def intrinsic(
        self,
        stem: str,
        result: str,
        *args: Value,
        suffixes: Sequence[str] | None = None,
        align: int = 0,
    ) -> Value:
        """
        Call `llvm.<stem>` overloaded on `suffixes`: the result's type unless given, none for x86's.

        `align`, where not 0, is the alignment in bytes of the pointer argument.
        """

    def binary(self, opcode: str, a: Value, b: Index) -> Value:
        """Emit `opcode a, b`; an integer `b` becomes a constant of a's type."""
        if isinstance(b, int):
            b = self.constant(a.type, b)
        return self._emit(a.type, f"{opcode} {a.type} {a.name}, {b.name}")

    def constant(self, type_: str, n: int) -> Value:
        """Return an integer constant, splat over the lanes of a vector type."""
        if type_[0] != "<":
            return Value(type_, str(n))
        return Value(type_, f"splat ({Value(type_, '').element} {n})")

    # Integers

    def add(self, a: Index, b: Index) -> Value:
        a = i64(a) if isinstance(a, int) else a
        if b == 0 or (isinstance(b, Value) and b.constant == 0):
            return a
        b = b if isinstance(b, Value) else self.constant(a.type, b)
        if a.constant == 0:
            return b
        if a.constant is not None and b.constant is not None:
            return Value(a.type, str(a.constant + b.constant))
        return self.binary("add", a, b)

    def sub(self, a: Index, b: Index) -> Value:
        a = i64(a) if isinstance(a, int) else a
        b = b if isinstance(b, Value) else self.constant(a.type, b)
        if a.constant is not None and b.constant is not None:
            return Value(a.type, str(a.constant - b.constant))
        return a if b.constant == 0 else self.binary("sub", a, b)

    def mul(self, a: Index, b: Index) -> Value:
        a = i64(a) if isinstance(a, int) else a
        b = b if isinstance(b, Value) else self.constant(a.type, b)
        if a.constant is not None and b.constant is not None:
            return Value(a.type, str(a.constant * b.constant))
        if a.constant == 1:
            return b
        if b.constant == 1 or a.constant == 0:
            return a
        return self.binary("mul", a, b)

    def udiv(self, a: Value, b: Index) -> Value:
        return a if b == 1 else self.binary("udiv", a, b)

    def umin(self, a: Value, b: Index) -> Value:
        b = b if isinstance(b, Value) else self.constant(a.type, b)
        return self.select(self.icmp("ult", a, b), a, b)

    def umax(self, a: Value, b: Index) -> Value:
        b = b if isinstance(b, Value) else self.constant(a.type, b)
        return self.select(self.icmp("ugt", a, b), a, b)

    def and_(self, a: Value, b: Index) -> Value:
        return self.binary("and", a, b)

    def or_(self, a: Value, b: Index) -> Value:
        return self.binary("or", a, b)

    def xor(self, a: Value, b: Index) -> Value:
        return self.binary("xor", a, b)

    def shl(self, a: Value, b: Index) -> Value:
        return self.binary("shl", a, b)

    def lshr(self, a: Value, b: Index) -> Value:
        return self.binary("lshr", a, b)

    def ashr(self, a: Value, b: Index) -> Value:
        return self.binary("ashr", a, b)

    def icmp(self, predicate: str, a: Value, b: Index) -> Value:
        if isinstance(b, int):
            b = self.constant(a.type, b)
        return self._emit(vec(a.lanes, "i1"), f"icmp {predicate} {a.type} {a.name}, {b.name}")

    # Floats. No fast-math flags: a reduction's shape is what the generator writes.

    def fadd(self, a: Value, b: Value) -> Value:
        return self.binary("fadd", a, b)

    def fsub(self, a: Value, b: Value) -> Value:
        return self.binary("fsub", a, b)

    def fmul(self, a: Value, b: Value) -> Value:
        return self.binary("fmul", a, b)

    def fdiv(self, a: Value, b: Value) -> Value:
        return self.binary("fdiv", a, b)

    def fneg(self, a: Value) -> Value:
        return self._emit(a.type, f"fneg {a.type} {a.name}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once; twice on an x86 without FMA, where LLVM calls libm."""
        if self.target.triple.startswith("x86") and not self.target.has("fma"):
            return self.fadd(self.fmul(a, b), c)
        return self.intrinsic("fma", a.type, a, b, c)

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        return self._emit(vec(a.lanes, "i1"), f"fcmp {predicate} {a.type} {a.name}, {b.name}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        text = f"select {condition.type} {condition.name}, {a.type} {a.name}, {b.type} {b.name}"
        return self._emit(a.type, text)

    def cast(self, opcode: str, a: Value, type_: str) -> Value:
        """Emit a conversion: zext, sext, trunc, sitofp, fptosi, fpext, fptrunc, bitcast, ..."""
        value = self._emit(type_, f"{opcode} {a.type} {a.name} to {type_}")
        if opcode == "bitcast" and value.element == "bfloat" and a.element == "i16":
            self._words[value.name] = a
        return value

    # Vectors

    def splat(self, a: Value, lanes: int) -> Value:
        """Return a scalar in every lane."""
        if lanes == 1:
            return a
        type_ = vec(lanes, a.type)
        if a.name[0] not in "%@":
            return Value(type_, f"splat ({a.type} {a.name})")
        first = self.insert(Value(type_, "poison"), a, 0)
        return self.shuffle(first, first, [0] * lanes)

    def zero(self, type_: str) -> Value:
        return Value(
            type_, "zeroinitializer" if type_[0] == "<" else "0" if type_[0] == "i" else "0.0"
        )

    def extract(self, v: Value, lane: int | Value) -> Value:
        index = lane if isinstance(lane, Value) else i64(lane)
        return self._emit(v.element, f"extractelement {v.type} {v.name}, {index.type} {index.name}")

    def insert(self, v: Value, a: Value, lane: int) -> Value:
        return self._emit(v.type, f"insertelement {v.type} {v.name}, {a.type} {a.name}, i64 {lane}")

    def shuffle(self, a: Value, b: Value, mask: Sequence[int]) -> Value:
        """Return lanes chosen from `a` followed by `b`."""
        lanes = ", ".join(f"i32 {lane}" for lane in mask)
        if not any(mask):
            lanes = f"<{len(mask)} x i32> zeroinitializer"
        else:
            lanes = f"<{len(mask)} x i32> <{lanes}>"
        text = f"shufflevector {a.type} {a.name}, {b.type} {b.name}, {lanes}"
        return self._emit(vec(len(mask), a.element), text)

    def vector(self, element: str, values: Sequence[str | int]) -> Value:
        """Return a constant vector."""
        body = ", ".join(f"{element} {v}" for v in values)
        return Value(vec(len(values), element), f"<{body}>")

    def reduce(self, kind: str, v: Value) -> Value:
        """
        Return a reduction over lanes by halves, so that its shape is fixed.

        `kind` is a binary opcode (fadd, add, or, ...) or a binary intrinsic (maxnum, smax, ...).
        """
        while v.lanes > 1:
            half = v.lanes // 2
            low = self.shuffle(v, v, list(range(half))) if half > 1 else self.extract(v, 0)
            high = (
                self.shuffle(v, v, list(range(half, v.lanes))) if half > 1 else self.extract(v, 1)
            )
            if kind in ("fadd", "fmul", "add", "mul", "or", "and", "xor"):
                v = self.binary(kind, low, high)
            else:
                v = self.intrinsic(kind, low.type, low, high)
        return v

    # Memory

    def at(self, pointer: Value, index: Index, scale: int = 1) -> Value:
        """Return pointer + index * scale bytes."""
        offset = self.mul(index, scale)
        if offset.constant == 0:
            return pointer
        text = f"getelementptr i8, ptr {pointer.name}, {offset.type} {offset.name}"
        return self._emit("ptr", text)

    def load(self, type_: str, pointer: Value, align: int = 4) -> Value:
        """Load a value; `align` in bytes is what the caller can promise."""
        return self._emit(type_, f"load {type_}, ptr {pointer.name}, align {align}")

    def store(self, a: Value, pointer: Value, align: int = 4, streaming: bool = False) -> None:
        """Store a value; past the caches where `streaming`, which wants `align` to be its size."""
        hint = f", {STREAMING}" if streaming else ""
        a = self._as_bits(a)
        self.line(f"store {a.type} {a.name}, ptr {pointer.name}, align {align}{hint}")

    def load_masked(self, type_: str, pointer: Value, mask: Value, align: int = 4) -> Value:
        """Load the lanes whose mask bit is set, zero elsewhere."""
        zero = self.zero(type_)
        return self.intrinsic(
            "masked.load", type_, pointer, mask, zero, align=align, suffixes=[type_, "ptr"]
        )

    def _as_bits(self, a: Value) -> Value:
        """
        Return bf16 as integers, those that it was made of if known.

        Where LLVM takes a store or a value apart, or hands one on to another block, it makes f32 of
        it, and rounds that by a function that nobody has.
        """
        if a.element != "bfloat":
            return a
        return self._words.get(a.name) or self.cast("bitcast", a, vec(a.lanes, "i16"))

    def store_masked(self, a: Value, pointer: Value, mask: Value, align: int = 4) -> None:
        a = self._as_bits(a)
        if mask == self.vector("i1", [1] + [0] * (mask.lanes - 1)):
            # LLVM 22 writes all bytes of the wider element that a narrow lone one was cut from.
            self.store(self.extract(a, 0), pointer, align)
            return
        self.intrinsic(
            "masked.store", "void", a, pointer, mask, align=align, suffixes=[a.type, "ptr"]
        )

    def load_gathered(self, element: str, pointer: Value, offsets: Value, mask: Value) -> Value:
        """Load pointer[offset], in elements, of the lanes whose mask bit is set, zero elsewhere."""
        lanes = offsets.lanes
        size = {"double": 8, "float": 4}.get(element) or int(element[1:]) // 8
        text = f"getelementptr {element}, ptr {pointer.name}, {offsets.type} {offsets.name}"
        addresses = self._emit(vec(lanes, "ptr"), text)
        type_ = vec(lanes, element)
        return self.intrinsic(
            "masked.gather", type_, addresses, mask, self.zero(type_), align=min(size, 4),
            suffixes=[type_, addresses.type],
        )  # fmt: skip

    # Atomics. Integers are naturally aligned, `order` is LLVM's: monotonic, acquire, release, ...

    def load_atomic(self, type_: str, pointer: Value, order: str = "acquire") -> Value:
        size = int(type_[1:]) // 8
        return self._emit(type_, f"load atomic {type_}, ptr {pointer.name} {order}, align {size}")

    def store_atomic(self, a: Value, pointer: Value, order: str = "release") -> None:
        size = int(a.type[1:]) // 8
        self.line(f"store atomic {a.type} {a.name}, ptr {pointer.name} {order}, align {size}")

    def atomic_rmw(self, kind: str, pointer: Value, a: Value, order: str = "seq_cst") -> Value:
        """Emit `*pointer = *pointer kind a` (add, sub, xchg, ...); return what was there before."""
        return self._emit(a.type, f"atomicrmw {kind} ptr {pointer.name}, {a.type} {a.name} {order}")

    def prefetch(self, pointer: Value, locality: int = 3, write: bool = False) -> None:
        """Ask for a cache line, in L1 (locality 3) or L2 (2), to read or write; any address."""
        args = (pointer, i32(int(write)), i32(locality), i32(1))
        self.intrinsic("prefetch", "void", *args, suffixes=["ptr"])

    def prefetch_lines(
        self, pointer: Value, nbytes: int, locality: int = 3, write: bool = False
    ) -> None:
        """Ask for the cache lines of so many bytes, from one that starts at `pointer` on."""
        for offset in range(0, nbytes, LINE):
            self.prefetch(self.at(pointer, offset), locality, write)
