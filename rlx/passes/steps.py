"""A program's launches as the planner arranges them: steps, loops over layers, branches, loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import Attribute

from rlx.dialects.common import PhaseKind
from rlx.passes.buffers import Buffer


@dataclass(frozen=True)
class Member:
    """A weight or a state, at the layer of the enclosing loop if `layered`."""

    symbol: str
    type: Attribute
    layered: bool
    packed: bool = True
    plain: bool = False
    """Whether it is a weight whose elements lie as in any tensor."""


Operand: TypeAlias = Buffer | Member


@dataclass
class Step:
    """A launch with the buffers it reads and writes."""

    kernel: str
    phase: PhaseKind
    ins: list[Operand]
    outs: list[Operand]
    scratch: Buffer | None = None
    time: int = 0


@dataclass
class Loop:
    """`items` for each layer."""

    layers: range
    items: list[Item]


@dataclass
class Branch:
    """One of two lists of items, by a condition that every thread reads."""

    condition: Buffer
    time: int
    """When the condition is read."""
    then: list[Item]
    otherwise: list[Item]


@dataclass
class While:
    """`test` makes the condition; while it holds `body` runs, and `test` again."""

    condition: Buffer
    time: int
    test: list[Item]
    body: list[Item]


Item: TypeAlias = Step | Loop | Branch | While


def steps_of(items: Sequence[Item]) -> Iterator[Step]:
    """Give every step, however deep."""
    for item in items:
        match item:
            case Step():
                yield item
            case Loop():
                yield from steps_of(item.items)
            case Branch():
                yield from steps_of([*item.then, *item.otherwise])
            case While():
                yield from steps_of([*item.test, *item.body])


def buffers_of(items: Sequence[Item]) -> Iterator[Buffer]:
    """Give the buffers that items use, those of conditions too; some several times."""
    for item in items:
        match item:
            case Step():
                operands = (*item.ins, *item.outs, item.scratch)
                yield from (o for o in operands if isinstance(o, Buffer))
            case Loop():
                yield from buffers_of(item.items)
            case Branch():
                yield item.condition
                yield from buffers_of([*item.then, *item.otherwise])
            case While():
                yield item.condition
                yield from buffers_of([*item.test, *item.body])


def last_use(items: Sequence[Item], buffer: Buffer) -> int:
    """Return the last time that items use a buffer's bytes; -1 where they don't."""
    last = -1
    for item in items:
        if isinstance(item, Loop):
            last = max(last, last_use(item.items, buffer))
            continue
        own = [item] if isinstance(item, Step) else []
        used = [*buffers_of(own), *([] if isinstance(item, Step) else [item.condition])]
        if any(b.base is buffer for b in used):
            last = max(last, item.time)
        match item:
            case Branch():
                last = max(last, last_use([*item.then, *item.otherwise], buffer))
            case While():
                last = max(last, last_use([*item.test, *item.body], buffer))
            case _:
                pass
    return last


def replace(items: Sequence[Item], old: Buffer, new: Buffer) -> None:
    """Let items use another buffer."""
    for item in items:
        match item:
            case Step():
                item.ins = [new if o is old else o for o in item.ins]
                item.outs = [new if o is old else o for o in item.outs]
            case Loop():
                replace(item.items, old, new)
            case Branch() | While():
                item.condition = new if item.condition is old else item.condition
                parts = (
                    (item.then, item.otherwise)
                    if isinstance(item, Branch)
                    else (item.test, item.body)
                )
                for part in parts:
                    replace(part, old, new)
