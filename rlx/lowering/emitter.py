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

from rlx.lowering.instructions import STREAMING, Instructions
from rlx.lowering.target import Target
from rlx.lowering.values import Index, Value, i64, mangle

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
        parts += ["!0 = !{i32 1}"] if any(STREAMING in part for part in parts) else []
        return "\n\n".join(parts) + "\n"


class Function(Instructions):
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
        self._words: dict[str, Value] = {}
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

    # The stack

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
        return self._called(result, text)

    def call_pointer(self, pointer: Value, result: str, *args: Value) -> Value:
        text = f"call {result} {pointer.name}({', '.join(f'{a.type} {a.name}' for a in args)})"
        return self._called(result, text)

    def intrinsic(
        self,
        stem: str,
        result: str,
        *args: Value,
        suffixes: Sequence[str] | None = None,
        align: int = 0,
    ) -> Value:
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
        return self._called(result, text)

    def _called(self, result: str, text: str) -> Value:
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
