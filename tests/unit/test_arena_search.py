"""The planner's compiled search against placing everything anew, in plain Python."""

import random

import pytest

from rlx.passes.arena import Buffer, plan
from rlx.passes.arena_search import SearchState, search

Problem = tuple[list[int], list[list[int]]]


def random_problem(seed: int, count: int, largest: int = 400) -> Problem:
    """Sizes, and who lives at the same time as whom."""
    rng = random.Random(seed)
    lives = [(at := rng.randrange(60), at + rng.randint(1, 25)) for _ in range(count)]
    neighbours = [
        [j for j, (c, d) in enumerate(lives) if j != i and max(a, c) < min(b, d)]
        for i, (a, b) in enumerate(lives)
    ]
    return [rng.randint(1, largest) for _ in lives], neighbours


def first_fit(
    order: list[int], problem: Problem, fixed: dict[int, int], limit: int
) -> dict[int, int]:
    """Place along `order` by definition, up to the first that would end above `limit`."""
    sizes, neighbours = problem
    offsets = dict(fixed)
    for i in order:
        taken = [range(offsets[j], offsets[j] + sizes[j]) for j in neighbours[i] if j in offsets]
        # The lowest place is at the bottom or on top of something.
        offset = min(
            start
            for start in [0, *(r.stop for r in taken)]
            if all(start + sizes[i] <= r.start or r.stop <= start for r in taken)
        )
        if offset + sizes[i] > limit:
            break
        offsets[i] = offset
    return offsets


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("largest", [3, 400, 2**40])
def test_what_is_placed_is_first_fit(seed: int, largest: int):
    problem = random_problem(seed, 50, largest)
    sizes, neighbours = problem
    # Two that aren't in the order.
    fixed = {3: 0, 17: sizes[3] + 5}
    movable = [i for i in range(50) if i not in fixed]
    state = SearchState(movable, sizes, neighbours, fixed)
    state.limit = sum(sizes) * 2
    complete = 0
    for round in range(1, 400):
        if done := state.run(400 * round, 0.3):
            complete += 1
        order = list(state.order)
        assert sorted(order) == movable
        found = {i: state.end[i] - sizes[i] for i in range(50) if state.end[i]}
        # It stops anywhere; what is placed so far is a start of the order.
        assert set(found) == {*fixed, *order[: len(found) - 2]}
        assert found == first_fit(order[: len(found) - 2], problem, fixed, state.limit)
        assert done == (len(found) == 50)
        if done:
            state.retreat(max(state.end) - 1)
    assert complete > 1


@pytest.mark.parametrize("seed", range(6))
def test_the_order_is_as_good_as_it_says(seed: int):
    sizes, neighbours = problem = random_problem(seed, 40)
    start = list(range(40))
    found = search(start, sizes, neighbours, {}, 0, 1, 1_000_000)
    assert sorted(found) == start
    limit = sum(sizes)
    before, after = (
        max(offset + sizes[i] for i, offset in first_fit(order, problem, {}, limit).items())
        for order in (start, found)
    )
    assert after < before
    assert found == search(start, sizes, neighbours, {}, 0, 1, 1_000_000)
    # What has no room for improvement stays as it is.
    placed = first_fit(found, problem, {}, limit)
    assert search(found, sizes, neighbours, {}, after, 1, 1_000_000) == sorted(
        found, key=placed.__getitem__
    )


@pytest.mark.parametrize("seed", range(4))
def test_more_cycles_are_never_worse(seed: int):
    sizes, neighbours = problem = random_problem(seed, 40)
    peaks: list[int] = []
    for cycles in (1, 2, 6):
        order = search(range(40), sizes, neighbours, {}, 0, cycles, 100_000)
        placed = first_fit(order, problem, {}, sum(sizes))
        peaks.append(max(offset + sizes[i] for i, offset in placed.items()))
    assert peaks == sorted(peaks, reverse=True)


def test_a_budget_that_is_nothing_keeps_the_order():
    sizes, neighbours = random_problem(1, 40)
    assert search(range(40), sizes, neighbours, {}, 0, 1, 0) == list(range(40))


def test_everything_is_fixed():
    buffers = [Buffer(0, 0, 2, 64, 0), Buffer(1, 0, 2, 64, 128)]
    assert plan(buffers, effort=1).offsets == {0: 0, 1: 128}
