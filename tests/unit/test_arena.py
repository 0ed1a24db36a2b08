"""The arena planner and its independent checker, the latter against a byte-by-byte simulation."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from rlx.errors import RlxError
from rlx.passes.arena import Buffer, Placement, plan
from rlx.passes.plan_check import Loop, PlannedSlot, PlannedView, Step, check_plan


def random_buffers(seed: int, count: int, horizon: int = 200) -> list[Buffer]:
    rng = random.Random(seed)
    buffers: list[Buffer] = []
    for id in range(count):
        lower = rng.randrange(horizon)
        life = rng.choice([1, 2, 3, 10, horizon])
        size = rng.choice([1, 63, 64, 65, 1000, rng.randrange(1, 50_000)])
        buffers.append(Buffer(id, lower, min(lower + rng.randint(1, life), horizon), size))
    return buffers


def assert_sound(buffers: Sequence[Buffer], placement: Placement, alignment: int = 64):
    """Check the definition pair by pair and step by step, without help from the planner."""
    offsets = placement.offsets
    assert set(offsets) == {b.id for b in buffers}
    for b in buffers:
        assert offsets[b.id] % alignment == 0
        assert 0 <= offsets[b.id] <= placement.peak - b.size
        assert b.fixed_offset in (None, offsets[b.id])
    for at, a in enumerate(buffers):
        for b in buffers[:at]:
            if max(a.lower, b.lower) < min(a.upper, b.upper):
                first, second = sorted((a, b), key=lambda x: (offsets[x.id], x.size))
                assert offsets[first.id] + first.size <= offsets[second.id]
    steps = range(max((b.upper for b in buffers), default=0))
    live = [
        sum(-(-b.size // alignment) * alignment for b in buffers if b.lower <= t < b.upper)
        for t in steps
    ]
    assert placement.lower_bound == max(live, default=0)
    assert placement.peak >= placement.lower_bound


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_random_plans_are_sound(seed: int, alignment: int):
    buffers = random_buffers(seed, 5 + 12 * seed)
    assert_sound(buffers, plan(buffers, alignment), alignment)


def test_nothing_to_plan():
    assert plan([]) == Placement({}, 0, 0)
    # No bytes or no lifetime: no conflict, no arena.
    assert plan([Buffer(3, 0, 9, 0), Buffer(4, 5, 5, 100)]) == Placement({3: 0, 4: 0}, 0, 0)


def test_buffers_that_meet_at_one_step_share_memory():
    chain = [Buffer(i, i, i + 1, 640) for i in range(50)]
    assert plan(chain).peak == 640
    overlapping = [Buffer(i, i, i + 2, 640) for i in range(50)]
    assert plan(overlapping).peak == 1280


def test_sizes_are_rounded_up_to_the_alignment():
    placement = plan([Buffer(0, 0, 2, 1), Buffer(1, 0, 2, 65)], 64)
    assert placement.peak == placement.lower_bound == 192


def test_fixed_offsets_stay():
    buffers = random_buffers(5, 60)
    buffers[3] = replace(buffers[3], fixed_offset=0)
    buffers[7] = replace(buffers[7], fixed_offset=640_000)
    buffers.append(Buffer(99, 0, 200, 128, fixed_offset=1_280_000))
    for effort in (0, 1):
        placement = plan(buffers, effort=effort)
        assert_sound(buffers, placement)
        assert placement.offsets[7] == 640_000
        assert placement.peak >= 1_280_128


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([Buffer(0, 0, 1, 8), Buffer(0, 1, 2, 8)], "id twice"),
        ([Buffer(0, 0, 1, -8)], "negative"),
        ([Buffer(0, 3, 1, 8)], "negative"),
        ([Buffer(0, 0, 1, 8, 32)], "multiple of 64"),
        ([Buffer(0, 0, 1, 8, -64)], "multiple of 64"),
        ([Buffer(0, 0, 2, 99, 0), Buffer(1, 1, 3, 8, 64)], "overlap"),
    ],
)
def test_bad_buffers_are_refused(buffers: list[Buffer], message: str):
    with pytest.raises(RlxError, match=message):
        plan(buffers)


def test_bad_arguments_are_refused():
    with pytest.raises(RlxError, match="alignment"):
        plan([], 0)
    with pytest.raises(RlxError, match="effort"):
        plan([], effort=3)


def test_one_arena_for_pieces_that_tile_it():
    """Cut a rectangle of time and memory at random: its pieces fit back into little more."""
    rng = random.Random(11)
    pieces = [(0, 1000, 0, 1024)]
    while len(pieces) < 60:
        pieces.sort(key=lambda p: (p[1] - p[0]) * (p[3] - p[2]))
        t0, t1, m0, m1 = pieces.pop()
        if rng.random() < 0.5 and t1 - t0 > 20:
            cut = rng.randrange(t0 + 5, t1 - 5)
            pieces += [(t0, cut, m0, m1), (cut, t1, m0, m1)]
        else:
            cut = (m0 + m1) // 2
            pieces += [(t0, t1, m0, cut), (t0, t1, cut, m1)]
    buffers = [Buffer(i, t0, t1, 64 * (m1 - m0)) for i, (t0, t1, m0, m1) in enumerate(pieces)]
    static, searched = plan(buffers), plan(buffers, effort=1)
    assert_sound(buffers, searched)
    assert static.lower_bound == searched.lower_bound == 64 * 1024
    assert searched.peak <= static.peak <= 1.5 * static.lower_bound
    assert searched.peak <= 1.16 * static.lower_bound


def test_plans_are_reproducible():
    buffers = random_buffers(3, 80)
    assert plan(buffers, effort=1) == plan(list(buffers), effort=1)


# The checker. First, plans that are wrong in one way each.

CHAIN = (Step((), (0,)), Step((0,), (1,)), Step((1,), (2,)))


def slots(*places: tuple[int, int, int]) -> list[PlannedSlot]:
    return [PlannedSlot(*place) for place in places]


GOOD = slots((0, 0, 64), (1, 64, 64), (2, 0, 64))


def test_a_sound_plan_has_no_violations():
    assert check_plan(CHAIN, GOOD, 128, outputs=[2]) == []
    assert check_plan((), (), 0) == []


@pytest.mark.parametrize(
    ("accesses", "places", "options", "message"),
    [
        # 1 is written where 0 is being read.
        (CHAIN, slots((0, 0, 64), (1, 0, 64), (2, 64, 64)), {}, "live overlap: step 1 writes 1"),
        # 0 is needed again by step 2, after step 1 wrote over half of it.
        (
            (Step((), (0,)), Step((), (1,)), Step((0, 1), (2,))),
            slots((0, 0, 128), (1, 64, 64), (2, 128, 64)),
            {},
            "read after overwrite: step 2 reads 0 at [0, 128), overwritten by step 1 with 1",
        ),
        (CHAIN, GOOD, {"outputs": [0]}, "output clobbered: 0 at [0, 64) is overwritten by step 2"),
        (CHAIN, GOOD, {"whole_run": [0]}, "output clobbered: 0"),
        (CHAIN, GOOD, {"outputs": [1, 2], "arena_size": 127}, "out of arena: buffer 1"),
        (CHAIN, slots((0, -64, 64), (1, 64, 64), (2, 0, 64)), {}, "out of arena: buffer 0"),
        (CHAIN, slots((0, 0, 64), (1, 96, 32), (2, 0, 64)), {}, "misaligned: buffer 1 at 96"),
        ((CHAIN[1], CHAIN[0], CHAIN[2]), GOOD, {}, "use before write: step 0 reads 0"),
        (CHAIN[1:], GOOD, {}, "unscheduled: step 0 reads 0 at [0, 64), which no step writes"),
        (CHAIN[:2], GOOD, {"outputs": [2]}, "unscheduled: no step writes all of 2"),
        (CHAIN, [*GOOD, PlannedSlot(1, 64, 64)], {}, "duplicate slot: buffer 1"),
        (CHAIN, GOOD[:2], {}, "no slot: buffer 2"),
        ((Loop(0, CHAIN),), GOOD, {}, "bad loop"),
        # Two given buffers that lie on each other.
        (
            (Step((7, 8), (0,)),),
            slots((7, 0, 64), (8, 0, 64), (0, 64, 64)),
            {"inputs": [7], "whole_run": [8]},
            "live overlap: 7 at [0, 64) and 8 at [0, 64), both needed from the start",
        ),
        # A prologue result that a step uses as scratch before it is read.
        (CHAIN, [*GOOD, PlannedSlot(9, 64, 64)], {"whole_run": [9]}, "live overlap: step 1"),
    ],
)
def test_each_kind_of_bad_plan_is_named(accesses, places, options, message: str):
    options = {"arena_size": 192, **options}
    problems = check_plan(accesses, places, **options)
    assert any(problem.startswith(message) for problem in problems), problems


def test_in_place_needs_the_pair_the_last_use_and_the_same_start():
    pair = Step((0,), (1,), ((0, 1),), name="silu")
    steps = (Step((), (0,)), pair, Step((1,), (2,)))
    shared = slots((0, 0, 64), (1, 0, 64), (2, 64, 64))
    assert check_plan(steps, shared, 128) == []
    without = (steps[0], replace(pair, in_place=()), steps[2])
    assert "the same step uses" in check_plan(without, shared, 128)[0]
    # Read again later.
    again = (*steps[:2], Step((0, 1), (2,)))
    problems = check_plan(again, shared, 128)
    assert "step 1 (silu) writes 1" in problems[0]
    # Shifted by a part of the buffer: some elements are written before they are read.
    shifted = slots((0, 0, 128), (1, 64, 128), (2, 192, 64))
    assert check_plan(steps, shifted, 256) != []
    # The pair covers its own two values only.
    other = (Step((), (0, 3)), Step((0, 3), (1,), ((0, 1),)), steps[2])
    assert check_plan(other, [*shared, PlannedSlot(3, 0, 64)], 128) != []


def test_views_alias_their_root():
    views = {10: PlannedView(0, 64, 64), 11: PlannedView(10, 32, 32)}
    steps = (Step((), (0,)), Step((), (1,)), Step((11,), (2,)))
    apart = slots((0, 0, 128), (1, 128, 64), (2, 192, 64))
    assert check_plan(steps, apart, 256, views=views) == []
    problems = check_plan(steps, slots((0, 0, 128), (1, 64, 64), (2, 192, 64)), 256, views=views)
    assert any("read after overwrite: step 2 reads 11 at [96, 128)" in p for p in problems)
    # A view keeps its root alive, as an output too.
    assert check_plan(steps[:2], apart, 256, views=views, outputs=[11]) == []
    clobbered = (Step((), (0,)), Step((), (1,)))
    over = slots((0, 0, 128), (1, 64, 64))
    assert check_plan(clobbered, over, 128, views=views, outputs=[11]) != []


def test_a_buffer_may_be_written_piece_by_piece():
    views = {10: PlannedView(0, 0, 64), 11: PlannedView(0, 64, 64)}
    places = slots((0, 0, 128), (1, 128, 64))
    concat = (Step((), (10,)), Step((), (11,)), Step((0,), (1,)))
    assert check_plan(concat, places, 192, views=views) == []
    half = (concat[0], concat[2])
    assert check_plan(half, places, 192, views=views) != []


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ({10: PlannedView(0, 32, 64)}, "bad view: 10 covers bytes [32, 96)"),
        ({10: PlannedView(0, -32, 64)}, "bad view: 10 covers bytes [-32, 32)"),
        ({10: PlannedView(11, 0, 1), 11: PlannedView(10, 0, 1)}, "bad view: 10 is"),
        ({10: PlannedView(5, 0, 1)}, "bad view: 10 lies in buffer 5"),
        ({1: PlannedView(0, 0, 64)}, "duplicate slot: 1 is a view"),
    ],
)
def test_bad_views_are_named(views: dict[int, PlannedView], message: str):
    problems = check_plan(CHAIN, GOOD, 128, views=views)
    assert any(problem.startswith(message) for problem in problems), problems


def test_what_a_loop_reads_from_outside_lives_through_all_of_it():
    body = (Step((0,), (1,)), Step((1,), (2,)))
    # 2 takes the place of 0, which the next round reads again.
    places = slots((0, 0, 64), (1, 64, 64), (2, 0, 64))
    assert check_plan((Step((), (0,)), *body), places, 128) == []
    assert check_plan((Step((), (0,)), Loop(1, body)), places, 128) == []
    problems = check_plan((Step((), (0,)), Loop(3, body)), places, 128)
    assert problems[0].startswith("live overlap: step 2 writes 2")
    assert any("read after overwrite: step 1 reads 0" in problem for problem in problems)


def test_carried_buffers_live_across_rounds():
    body = (Step((0,), (1,)), Step((1,), (0,)), Step((), (2,)))
    accesses = (Step((), (0,)), Loop(4, body))
    assert check_plan(accesses, slots((0, 0, 64), (1, 64, 64), (2, 64, 64)), 128) == []
    # 2 is scratch at the end of a round, on the value that the next round starts from.
    problems = check_plan(accesses, slots((0, 0, 64), (1, 64, 64), (2, 0, 64)), 128)
    assert problems[0].startswith("live overlap: step 3 writes 2")
    # Not carried: written in the body before it is read there.
    fresh = (Step((), (0,)), Loop(4, (Step((), (0,)), Step((0,), (1,)), Step((), (2,)))))
    assert check_plan(fresh, slots((0, 0, 64), (1, 64, 64), (2, 0, 64)), 128) == []


# Then random programs: the checker must agree with a simulation that stores tokens in bytes.


@dataclass
class Program:
    accesses: tuple[Step | Loop, ...]
    sizes: dict[int, int]
    outputs: list[int]
    whole_run: list[int]
    steps: list[Step] = field(default_factory=list)


def random_program(seed: int) -> Program:
    """Programs with nested loops, reads of earlier values, carried buffers and in-place pairs."""
    rng = random.Random(seed)
    whole_run = [0, 1]
    sizes = {id: 64 * rng.randint(1, 4) for id in whole_run}
    steps: list[Step] = []

    def block(depth: int, visible: list[int], length: int) -> tuple[Step | Loop, ...]:
        accesses: list[Step | Loop] = []
        carried = [id for id in visible if id not in whole_run]
        for _ in range(length):
            if depth < 2 and rng.random() < 0.25:
                # A body sees what was written before it, so all its reads are of written values.
                accesses.append(Loop(rng.randint(1, 3), block(depth + 1, [*visible], 3)))
                continue
            reads = tuple(rng.sample(visible, min(len(visible), rng.randint(1, 3))))
            if depth and carried and rng.random() < 0.3:
                written = rng.choice(carried)
                reads = tuple(id for id in reads if id != written)
            else:
                written = len(sizes)
                sizes[written] = 64 * rng.randint(1, 4)
                visible.append(written)
            pairs = ((reads[0], written),) if reads and rng.random() < 0.4 else ()
            steps.append(Step(reads, (written,), pairs))
            accesses.append(steps[-1])
        return tuple(accesses)

    visible = [*whole_run]
    accesses = block(0, visible, 8)
    outputs = rng.sample(visible[2:], min(2, len(visible) - 2))
    return Program(accesses, sizes, outputs, whole_run, steps)


def trace(accesses: Sequence[Step | Loop]) -> list[Step]:
    done: list[Step] = []
    for access in accesses:
        if isinstance(access, Step):
            done.append(access)
        else:
            for _ in range(access.count):
                done += trace(access.steps)
    return done


def simulate(program: Program, places: dict[int, int], arena_size: int) -> bool:
    """Run every round of every loop on an arena of tokens; return whether all reads are right."""
    arena: list[object] = [None] * arena_size
    current: dict[int, object] = {}

    def fill(id: int):
        current[id] = object()
        arena[places[id] : places[id] + program.sizes[id]] = [current[id]] * program.sizes[id]

    def intact(id: int) -> bool:
        found = arena[places[id] : places[id] + program.sizes[id]]
        return all(token is current[id] for token in found)

    for id in program.whole_run:
        fill(id)
    for step in trace(program.accesses):
        if not all(intact(id) for id in step.reads):
            return False
        for id in step.writes:
            fill(id)
        # A launch may write before it reads: its reads must hold afterwards too, save in place.
        for id in step.reads:
            pair = (id, step.writes[0])
            shares = (
                pair in step.in_place
                and places[id] == places[step.writes[0]]
                and program.sizes[step.writes[0]] <= program.sizes[id]
            )
            if not shares and not intact(id):
                return False
    return all(intact(id) for id in (*program.outputs, *program.whole_run))


def lifetimes(program: Program) -> dict[int, tuple[int, int]]:
    """Find, from the trace alone, the static steps at which each buffer holds a needed value."""
    numbers = {id(step): number for number, step in enumerate(program.steps)}
    run = trace(program.accesses)
    end = len(program.steps)
    born = dict.fromkeys(program.whole_run, 0)
    live = {id: {-1, end} for id in program.whole_run}
    for time, step in enumerate(run):
        for buffer in step.reads:
            live[buffer] |= {numbers[id(s)] for s in run[born[buffer] : time + 1]}
        for buffer in step.writes:
            born[buffer] = time
            live.setdefault(buffer, set()).add(numbers[id(step)])
    for buffer in program.outputs:
        live[buffer] |= {numbers[id(s)] for s in run[born[buffer] :]} | {end}
    return {id: (min(steps), max(steps) + 1) for id, steps in live.items()}


def verdict(program: Program, places: dict[int, int], arena_size: int) -> list[str]:
    found = [PlannedSlot(id, offset, program.sizes[id]) for id, offset in places.items()]
    return check_plan(
        program.accesses,
        found,
        arena_size,
        outputs=program.outputs,
        whole_run=program.whole_run,
    )


@pytest.mark.parametrize("seed", range(40))
def test_checker_agrees_with_simulation(seed: int):
    program = random_program(seed)
    buffers = [
        Buffer(id, lower, upper, program.sizes[id])
        for id, (lower, upper) in lifetimes(program).items()
    ]
    placement = plan(buffers)
    assert simulate(program, placement.offsets, placement.peak)
    assert verdict(program, placement.offsets, placement.peak) == []
    rng = random.Random(seed)
    rejected = 0
    for _ in range(30):
        places = dict(placement.offsets)
        for id in rng.sample(sorted(places), rng.randint(1, 2)):
            places[id] = 64 * rng.randint(0, (placement.peak - program.sizes[id]) // 64)
        sound = simulate(program, places, placement.peak)
        problems = verdict(program, places, placement.peak)
        assert sound == (not problems), problems
        rejected += not sound
    assert rejected
