"""
A small typed builder of LLVM IR text.

Text goes straight to LLVM's own parser: 10,000 instructions cost 3 ms to write and 13 ms to parse.
A `Value` is a type and a spelling, so integer constants need no instruction and fold when built.

Loops and branches take Python functions for their bodies and thread carried values through phis:

    total = f.for_(0, n, 1, [f.splat(zero, 16)], lambda i, acc: [f.fadd(acc[0], load(i))])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from rlx.lowering.target import Target
from rlx.lowering.values import Index, Value, i32, i64, mangle, vec

Lines: TypeAlias = "list[str | Lines]"
"""Lines of text in order; a list among them holds lines that are written later."""


@dataclass
class Gap:
    """A place among instructions where more may be written later: see `Function.gap`."""

    lines: Lines
    block: str


class Module:
    """A module under construction: functions, and the declarations they turned out to need."""

    def __init__(self, target: Target, fast: bool = False, few_rows: bool = False):
        self.target = target
        self.fast = fast
        """Whether functions of f32 may be those of `vmath_fast`."""
        self.few_rows = few_rows
        """Whether each row times a packed weight is to be what it is alone, to the bit."""
        self.streams = False
        """Whether a store goes past the caches, whose mark is an entry of the module."""
        self._declared: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._functions: list[Function] = []

    def function(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        result: str = "void",
        exported: bool = False,
        noalias: bool = False,
    ) -> Function:
        """Start a function; `params` are (type, name) pairs. `noalias` marks every pointer so."""
        function = Function(self, name, params, result, exported, noalias)
        self._functions.append(function)
        return function

    def defines(self, name: str) -> bool:
        return any(f.name == name for f in self._functions)

    def once(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        body: Callable[[Function], None],
        result: str = "void",
    ) -> str:
        """Define an internal helper the first time its name is asked for; return the name."""
        if all(f.name != name for f in self._functions):
            body(self.function(name, params, result, noalias=True))
        return name

    def declare(self, name: str, result: str, params: Sequence[str]) -> None:
        self._declared[name] = f"declare {result} @{name}({', '.join(params)})"

    def table(self, name: str, element: str, values: Sequence[str], align: int = 64) -> Value:
        """Return a pointer to a constant array, defined once for each name."""
        body = ", ".join(f"{element} {v}" for v in values)
        self._globals[name] = (
            f"@{name} = private unnamed_addr constant [{len(values)} x {element}] [{body}], "
            f"align {align}"
        )
        return Value("ptr", f"@{name}")

    @property
    def text(self) -> str:
        """Return the module as LLVM IR."""
        parts = [f'target triple = "{self.target.triple}"', *self._globals.values()]
        defined = {f.name for f in self._functions}
        parts += [text for name, text in self._declared.items() if name not in defined]
        parts += [f.text for f in self._functions]
        parts.append(f"attributes #0 = {{ {self.target.attributes} }}")
        parts += ["!0 = !{i32 1}"] if self.streams else []
        return "\n\n".join(parts) + "\n"


class Function:
    """A function under construction, with an insertion point at the end of its last block."""

    def __init__(
        self,
        module: Module,
        name: str,
        params: Sequence[tuple[str, str]],
        result: str,
        exported: bool,
        noalias: bool,
    ):
        self.module = module
        self.target = module.target
        self.name = name
        self.params = [Value(type_, f"%{param}") for type_, param in params]
        self._lines: Lines = ["entry:"]
        self._allocas: list[str] = []
        self._scratch: dict[str, int] = {}
        self._block = "entry"
        self._next = 0
        attribute = " noalias" if noalias else ""
        args = ", ".join(
            f"{p.type}{attribute if p.type == 'ptr' else ''} {p.name}" for p in self.params
        )
        linkage = "" if exported else "internal "
        self._head = f"define {linkage}{result} @{name}({args}) #0 {{"

    @property
    def text(self) -> str:
        scratch = [
            f"  %scratch.{name} = alloca [{size} x i8], align 64"
            for name, size in self._scratch.items()
        ]
        first, *rest = _flat(self._lines)
        return "\n".join([self._head, first, *self._allocas, *scratch, *rest, "}"])

    # Raw instructions

    def _name(self) -> str:
        self._next += 1
        return f"%v{self._next}"

    def _emit(self, type_: str, text: str) -> Value:
        value = Value(type_, self._name())
        self._lines.append(f"  {value.name} = {text}")
        return value

    def line(self, text: str) -> None:
        """Emit an instruction without a result."""
        self._lines.append(f"  {text}")

    def _start_block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def _label(self, stem: str) -> str:
        self._next += 1
        return f"{stem}{self._next}"

    def gap(self) -> Gap:
        """Leave a place here, whose code runs before all that follows it."""
        gap = Gap([], self._block)
        after = self._label("after")
        self._lines.append(gap.lines)
        self.line(f"br label %{after}")
        self._start_block(after)
        return gap

    @contextmanager
    def writing_in(self, gap: Gap) -> Generator[None]:
        """Write at the end of a gap, loops and branches too, then go on where it was left."""
        outer = self._lines, self._block
        self._lines, self._block = gap.lines, gap.block
        yield
        gap.block = self._block
        self._lines, self._block = outer

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
        return self._emit(type_, f"{opcode} {a.type} {a.name} to {type_}")

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
        hint = ", !nontemporal !0" if streaming else ""
        self.module.streams |= streaming
        a = self._as_bits(a)
        self.line(f"store {a.type} {a.name}, ptr {pointer.name}, align {align}{hint}")

    def load_masked(self, type_: str, pointer: Value, mask: Value, align: int = 4) -> Value:
        """Load the lanes whose mask bit is set, zero elsewhere."""
        zero = self.zero(type_)
        return self.intrinsic(
            "masked.load", type_, pointer, mask, zero, align=align, suffixes=[type_, "ptr"]
        )

    def _as_bits(self, a: Value) -> Value:
        """Return bf16 as integers: where LLVM takes a store apart it rounds each by a function."""
        return self.cast("bitcast", a, vec(a.lanes, "i16")) if a.element == "bfloat" else a

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

    def alloca(self, size: int, align: int = 64) -> Value:
        """Return `size` bytes on the stack, allocated once at the function's entry."""
        name = self._name()
        self._allocas.append(f"  {name} = alloca [{size} x i8], align {align}")
        return Value("ptr", name)

    def scratch(self, name: str, size: int) -> Value:
        """Return stack memory that all who ask by this name share: the most anyone asked for."""
        self._scratch[name] = max(size, self._scratch.get(name, 0))
        return Value("ptr", f"%scratch.{name}")

    # Calls

    def call(self, name: str, result: str, *args: Value) -> Value:
        """Call a function by name; a name that this module doesn't define is declared."""
        self.module.declare(name, result, [a.type for a in args])
        text = f"call {result} @{name}({', '.join(f'{a.type} {a.name}' for a in args)})"
        if result == "void":
            self.line(text)
            return Value("void", "")
        return self._emit(result, text)

    def call_pointer(self, pointer: Value, result: str, *args: Value) -> Value:
        text = f"call {result} {pointer.name}({', '.join(f'{a.type} {a.name}' for a in args)})"
        if result == "void":
            self.line(text)
            return Value("void", "")
        return self._emit(result, text)

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
        if suffixes is None:
            suffixes = [] if stem.startswith("x86.") else [result]
        name = ".".join([f"llvm.{stem}", *map(mangle, suffixes)])
        self.module.declare(name, result, [a.type for a in args])
        pointer = next((i for i, a in enumerate(args) if a.element == "ptr"), -1)
        attribute = f" align {align}" if align else ""
        spelled = [
            f"{a.type}{attribute if i == pointer else ''} {a.name}" for i, a in enumerate(args)
        ]
        text = f"call {result} @{name}({', '.join(spelled)})"
        if result == "void":
            self.line(text)
            return Value("void", "")
        return self._emit(result, text)

    # Control flow

    def ret(self, a: Value | None = None) -> None:
        self.line(f"ret {a.type} {a.name}" if a else "ret void")

    def for_(
        self,
        start: Index,
        stop: Index,
        step: int,
        init: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """
        Emit `for i in range(start, stop, step)` with carried values; return them after the loop.

        A trip count that is known to be 0 or 1 emits no loop.
        """
        lo, hi = (i64(v) if isinstance(v, int) else v for v in (start, stop))
        if (
            lo.constant is not None
            and hi.constant is not None
            and hi.constant <= lo.constant + step
        ):
            if hi.constant <= lo.constant:
                return list(init)
            return list(body(lo, list(init)))
        return self.while_(
            [lo, *init],
            lambda v: self.icmp("slt", v[0], hi),
            lambda v: [self.add(v[0], step), *body(v[0], v[1:])],
        )[1:]

    def while_(
        self,
        init: Sequence[Value],
        condition: Callable[[list[Value]], Value],
        body: Callable[[list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Emit a loop over carried values while `condition` holds; return them as they end."""
        head, inside, done = (self._label(s) for s in ("loop", "body", "done"))
        before = self._block
        self.line(f"br label %{head}")
        self._start_block(head)
        phis = [Value(v.type, self._name()) for v in init]
        mark = len(self._lines)
        test = condition(phis)
        self.line(f"br i1 {test.name}, label %{inside}, label %{done}")
        self._start_block(inside)
        after = list(body(phis))
        self._lines[mark:mark] = [
            f"  {phi.name} = phi {phi.type} [ {v.name}, %{before} ], [ {w.name}, %{self._block} ]"
            for phi, v, w in zip(phis, init, after, strict=True)
        ]
        self.line(f"br label %{head}")
        self._start_block(done)
        return phis

    def if_(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]] | None = None,
    ) -> list[Value]:
        """Emit a branch; both sides give values of the same types, which are merged."""
        yes, no, done = (self._label(s) for s in ("then", "else", "endif"))
        self.line(f"br i1 {condition.name}, label %{yes}, label %{no}")
        self._start_block(yes)
        a, a_block = list(then()), self._block
        self.line(f"br label %{done}")
        self._start_block(no)
        b, b_block = list(otherwise()) if otherwise else [], self._block
        self.line(f"br label %{done}")
        self._start_block(done)
        return [
            self._emit(x.type, f"phi {x.type} [ {x.name}, %{a_block} ], [ {y.name}, %{b_block} ]")
            for x, y in zip(a, b, strict=True)
        ]


def _flat(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flat(line)
