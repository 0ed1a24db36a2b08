"""
An independent check of a memory plan: does every read see the bytes that were written for it?

It shares no code with the planner and trusts none of its lifetimes. Two separate methods look at
the program. Liveness, by a backward walk, finds every write that lands on a buffer still needed
("live overlap"). A simulation then runs the steps, each loop twice, and remembers which bytes of
every buffer are intact: it finds reads of lost or never written bytes and clobbered outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Step:
    """
    One launch: the ids it reads and writes, as buffers or views.

    Without more being said a launch may write any byte before it has read any other. Each
    `in_place` pair (read, written) states that the launch reads an element before it writes it:
    the two may start at the same byte, if the read value is not needed afterwards.
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """`steps` run `count` times (at least once)."""

    count: int
    steps: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """One of two lists of steps runs."""

    then: tuple[Node, ...]
    otherwise: tuple[Node, ...]


Node: TypeAlias = Step | Loop | Branch


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """The bytes [offset, offset + size) of the arena, given to buffer `id`."""

    id: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PlannedView:
    """The `size` bytes from `byte_offset` of `root`, a buffer or another view."""

    root: int
    byte_offset: int
    size: int


def check_plan(
    accesses: Sequence[Node],
    slots: Iterable[PlannedSlot],
    arena_size: int,
    *,
    views: Mapping[int, PlannedView] | None = None,
    outputs: Collection[int] = (),
    whole_run: Collection[int] = (),
    inputs: Collection[int] = (),
    alignment: int = 64,
) -> list[str]:
    """
    Return what is wrong with a plan, in words; an empty list means that it is sound.

    `inputs` are written before the first step and needed until their last read. `outputs` must
    survive the last step. `whole_run` buffers (the results of the prologue) are both. Everything
    named must have a slot or be a view: leave out what lives outside the arena.
    """
    layout = _Layout(views or {})
    problems = layout.place(slots, arena_size, alignment)
    steps = list(steps_of(accesses))
    named = [id for step in steps for id in (*step.reads, *step.writes)]
    named += [*outputs, *whole_run, *inputs]
    missing = [id for id in dict.fromkeys(named) if id not in layout.ranges]
    problems += [f"no slot: buffer {id} is used but has no place in the arena" for id in missing]
    problems += [
        f"bad loop: a loop runs {loop.count} times, expected at least once"
        for loop in _loops(accesses)
        if loop.count < 1
    ]
    if missing or layout.broken:
        return problems
    program = _Program(accesses, steps)
    problems += _check_liveness(program, layout, (*outputs, *whole_run), (*inputs, *whole_run))
    problems += _simulate(program, layout, (*outputs, *whole_run), (*inputs, *whole_run))
    return list(dict.fromkeys(problems))


@dataclass(slots=True)
class _Layout:
    """Byte range in the arena and root of every id."""

    views: Mapping[int, PlannedView]
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    roots: dict[int, int] = field(default_factory=dict[int, int])
    broken: bool = False

    def place(self, slots: Iterable[PlannedSlot], arena_size: int, alignment: int) -> list[str]:
        """Fill in the ranges and return what is wrong with them alone."""
        problems: list[str] = []
        for slot in slots:
            start, end = slot.offset, slot.offset + slot.size
            if slot.id in self.ranges:
                problems.append(f"duplicate slot: buffer {slot.id} has more than one")
                continue
            if slot.id in self.views:
                problems.append(f"duplicate slot: {slot.id} is a view and has a slot of its own")
                continue
            if start < 0 or slot.size < 0 or end > arena_size:
                problems.append(
                    f"out of arena: buffer {slot.id} at [{start}, {end}), "
                    f"the arena has {arena_size} bytes"
                )
            if start % alignment:
                problems.append(
                    f"misaligned: buffer {slot.id} at {start}, expected a multiple of {alignment}"
                )
            self.ranges[slot.id] = start, end
            self.roots[slot.id] = slot.id
        for id in self.views:
            problems += self._place_view(id)
        return problems

    def _place_view(self, id: int) -> list[str]:
        root, offset = id, 0
        seen: set[int] = set()
        while (view := self.views.get(root)) is not None:
            if root in seen:
                self.broken = True
                return [f"bad view: {id} is, through others, a view of itself"]
            seen.add(root)
            root, offset = view.root, offset + view.byte_offset
        if root not in self.ranges:
            self.broken = True
            return [f"bad view: {id} lies in buffer {root}, which has no slot"]
        start, end = self.ranges[root]
        size = self.views[id].size
        self.roots[id] = root
        self.ranges[id] = start + offset, start + offset + size
        if offset < 0 or size < 0 or start + offset + size > end:
            return [
                f"bad view: {id} covers bytes [{offset}, {offset + size}) of buffer {root}, "
                f"which has {end - start}"
            ]
        return []

    def overlap(self, a: int, b: int) -> bool:
        """Return whether `a` and `b` share bytes of the arena."""
        (start_a, end_a), (start_b, end_b) = self.ranges[a], self.ranges[b]
        return max(start_a, start_b) < min(end_a, end_b)

    def show(self, id: int) -> str:
        start, end = self.ranges[id]
        return f"{id} at [{start}, {end})"


def steps_of(accesses: Sequence[Node]) -> Iterator[Step]:
    """Give every step, however deep."""
    for access in accesses:
        if isinstance(access, Step):
            yield access
        for part in _parts(access):
            yield from steps_of(part)


def _parts(access: Node) -> tuple[Sequence[Node], ...]:
    """Return the lists of steps in a loop or a branch."""
    match access:
        case Step():
            return ()
        case Loop():
            return (access.steps,)
        case Branch():
            return (access.then, access.otherwise)


def _loops(accesses: Sequence[Node]) -> Iterator[Loop]:
    for access in accesses:
        if isinstance(access, Loop):
            yield access
        for part in _parts(access):
            yield from _loops(part)


class _Program:
    """The steps with a number each (in program order), nested as they were given."""

    def __init__(self, accesses: Sequence[Node], steps: list[Step]) -> None:
        self.steps = steps
        self.tree, _ = self._nest(accesses, 0)

    def _nest(self, accesses: Sequence[Node], number: int) -> tuple[list[_Node], int]:
        nodes: list[_Node] = []
        for access in accesses:
            if isinstance(access, Step):
                nodes.append(number)
                number += 1
                continue
            bodies: list[list[_Node]] = []
            for part in _parts(access):
                body, number = self._nest(part, number)
                bodies.append(body)
            if isinstance(access, Loop):
                nodes.append(_Body(access.count > 1, *bodies))
            else:
                nodes.append(_Fork(*bodies))
        return nodes, number

    def show(self, number: int) -> str:
        name = self.steps[number].name
        return f"step {number} ({name})" if name else f"step {number}"


@dataclass(frozen=True, slots=True)
class _Body:
    repeats: bool
    nodes: list[_Node]


@dataclass(frozen=True, slots=True)
class _Fork:
    then: list[_Node]
    otherwise: list[_Node]


_Node = int | _Body | _Fork


def _check_liveness(
    program: _Program, layout: _Layout, kept: tuple[int, ...], given: tuple[int, ...]
) -> list[str]:
    """Report every write that lands on a buffer which the program still needs."""
    live_after: dict[int, frozenset[int]] = {}
    end = frozenset(layout.roots[id] for id in kept)
    entry = _walk_back(program, layout, program.tree, end, live_after)
    problems: list[str] = []
    present = sorted(entry & {layout.roots[id] for id in given})
    for at, a in enumerate(present):
        problems += [
            f"live overlap: {layout.show(a)} and {layout.show(b)}, both needed from the start"
            for b in present[at + 1 :]
            if layout.overlap(a, b)
        ]
    for number, step in enumerate(program.steps):
        for written in step.writes:
            root = layout.roots[written]
            endangered = live_after[number] - {root}
            for other in sorted(endangered):
                if layout.overlap(written, other):
                    problems.append(
                        f"live overlap: {program.show(number)} writes {layout.show(written)} over "
                        f"{layout.show(other)}, which is needed later"
                    )
            for other in (*step.reads, *step.writes):
                if (
                    layout.roots[other] not in endangered
                    and other != written
                    and layout.overlap(written, other)
                    and not _may_share(layout, step, other, written)
                ):
                    problems.append(
                        f"live overlap: {program.show(number)} writes {layout.show(written)} over "
                        f"{layout.show(other)}, which the same step uses"
                    )
    return problems


def _may_share(layout: _Layout, step: Step, read: int, written: int) -> bool:
    """Return whether `step` may write `written` where it reads `read`."""
    (start, end), (write_start, write_end) = layout.ranges[read], layout.ranges[written]
    return (read, written) in step.in_place and start == write_start and write_end <= end


def _walk_back(
    program: _Program,
    layout: _Layout,
    nodes: list[_Node],
    live: frozenset[int],
    live_after: dict[int, frozenset[int]],
) -> frozenset[int]:
    """Return the roots needed before `nodes` when `live` are needed after; fill `live_after`."""
    for node in reversed(nodes):
        if isinstance(node, int):
            live_after[node] = live
            step = program.steps[node]
            # A write of a view leaves the rest of its root as it was: only a whole write kills.
            live = live - {id for id in step.writes if layout.roots[id] == id}
            live |= {layout.roots[id] for id in step.reads}
            continue
        if isinstance(node, _Fork):
            sides = (node.then, node.otherwise)
            needed = [_walk_back(program, layout, side, live, live_after) for side in sides]
            live = needed[0] | needed[1]
            continue
        entry = _walk_back(program, layout, node.nodes, live, live_after)
        if node.repeats:
            # What the body needs at its start it also needs at the end of the round before.
            entry = _walk_back(program, layout, node.nodes, live | entry, live_after)
        live = entry
    return live


@dataclass(frozen=True, slots=True)
class _Hole:
    """Bytes of a buffer that do not hold its value, and why: step and id that overwrote them."""

    start: int
    end: int
    step: int | None = None
    by: int | None = None


def _simulate(
    program: _Program, layout: _Layout, kept: tuple[int, ...], given: tuple[int, ...]
) -> list[str]:
    """Run the steps, each loop twice, and report reads and results whose bytes are not intact."""
    holes = {id: [_Hole(*layout.ranges[id])] for id, root in layout.roots.items() if id == root}
    problems: list[str] = []

    def write(id: int, step: int | None) -> None:
        start, end = layout.ranges[id]
        for root, found in holes.items():
            if root == layout.roots[id]:
                holes[root] = [part for hole in found for part in _cut(hole, start, end)]
            elif layout.overlap(id, root):
                # What was lost before keeps its first reason.
                low, high = layout.ranges[root]
                fresh = [_Hole(max(start, low), min(end, high), step, id)]
                for hole in found:
                    fresh = [rest for f in fresh for rest in _cut(f, hole.start, hole.end)]
                found += fresh

    def lost(id: int) -> _Hole | None:
        start, end = layout.ranges[id]
        found = holes[layout.roots[id]]
        return next((h for h in found if max(h.start, start) < min(h.end, end)), None)

    for id in given:
        write(id, None)

    def run(nodes: list[_Node]) -> None:
        nonlocal holes
        for node in nodes:
            match node:
                case int():
                    for id in program.steps[node].reads:
                        if (hole := lost(id)) is not None:
                            problems.append(_explain(program, layout, node, id, hole))
                    for id in program.steps[node].writes:
                        write(id, node)
                case _Body():
                    # Two rounds of a loop show all that more rounds can: the second starts as all
                    # later ones do.
                    for _ in range(2 if node.repeats else 1):
                        run(node.nodes)
                case _Fork():
                    before = {root: list(found) for root, found in holes.items()}
                    run(node.then)
                    after, holes = holes, before
                    run(node.otherwise)
                    # What either side has lost is lost.
                    for root, found in after.items():
                        holes[root] += [h for h in found if h not in holes[root]]

    run(program.tree)
    for id in kept:
        hole = lost(id)
        if hole is None:
            continue
        if hole.by is None:
            problems.append(f"unscheduled: no step writes all of {layout.show(id)}, a result")
        else:
            where = "before the start" if hole.step is None else f"by {program.show(hole.step)}"
            problems.append(
                f"output clobbered: {layout.show(id)} is overwritten {where} with {hole.by}"
            )
    return problems


def _cut(hole: _Hole, start: int, end: int) -> Iterator[_Hole]:
    """Yield what is left of `hole` without the bytes [start, end)."""
    if hole.start < min(start, hole.end):
        yield _Hole(hole.start, min(start, hole.end), hole.step, hole.by)
    if max(end, hole.start) < hole.end:
        yield _Hole(max(end, hole.start), hole.end, hole.step, hole.by)


def _explain(program: _Program, layout: _Layout, number: int, id: int, hole: _Hole) -> str:
    reader = f"{program.show(number)} reads {layout.show(id)}"
    if hole.by is not None:
        where = "before the start" if hole.step is None else f"by {program.show(hole.step)}"
        return f"read after overwrite: {reader}, overwritten {where} with {hole.by}"
    root = layout.roots[id]
    writers = [n for n, s in enumerate(program.steps) if root in map(layout.roots.get, s.writes)]
    if not writers:
        return f"unscheduled: {reader}, which no step writes"
    return f"use before write: {reader}, first written by {program.show(writers[0])}"
