"""Makers of control flow: branches and loops around more operations, nested at will."""

from __future__ import annotations

from fuzz.makers import has_axes, is_comparable, maker
from fuzz.values import EXACT, SINGLE, Body, Type, Value, is_float, rounds

FLAG = Type((), "i1")
COUNTER = Type((), "i32")
MAX_DEPTH = 2
MAX_TURNS = 3


def _is_scalar(x: Value) -> bool:
    return x.type.rank == 0 and is_comparable(x)


def condition(b: Body) -> Value:
    """Return a flag that depends on a scalar."""
    x = b.pick(lambda v: v.type == FLAG) if b.rng.random() < 0.3 else None
    if x is not None:
        return x
    x = b.pick(_is_scalar) or b.constant(1, COUNTER)
    # Of small numbers, so that both branches are taken.
    if x.element in ("i32", "i64"):
        x = b.binary("and", x, b.full(x, b.choose((1, 3))))
    zero = b.full(x, 0)
    text = f"mir.compare {b.choose(('eq', 'gt'))} {x}, {zero} : {x.type} -> {FLAG}"
    return b.op(text, FLAG, EXACT)


def _types(b: Body) -> list[Type]:
    """Return types that values of the body have."""
    picked = [b.pick() for _ in range(b.choose((1, 1, 2, 3)))]
    return [v.type for v in picked if v is not None]


def _fill(b: Body, types: list[Type]) -> list[Value]:
    """Write operations; return values of some types, of this body if it has them."""
    for _ in range(b.choose((0, 1, 2, 3, 4))):
        b.generator.step(b)
    return handed_on(b, types)


def handed_on(b: Body, types: list[Type]) -> list[Value]:
    """Return values of some types; most floats depend on something else that is late."""
    found = [b.pick(lambda v, t=t: v.type == t) for t in types]
    return [
        _absorb(b, v, b.pick(is_float)) if is_float(v) and b.rng.random() < 0.6 else v
        for v in found
        if v is not None
    ]


def _absorb(b: Body, x: Value, y: Value) -> Value:
    """Return x with something added that depends on all of y."""
    if y.type.rank:
        total = Type((), y.element)
        text = f"mir.reduce sum {y} axes {list(range(y.type.rank))} : {y.type} -> {total}"
        y = b.op(text, total, rounds(y))
    if y.element != x.element:
        y = b.cast(y, x.element, SINGLE)
    y = b.bounded(y)
    return b.binary("add", x, b.move("broadcast", y, x.type) if x.type.rank else y)


def _yield(values: list[Value]) -> str:
    if not values:
        return "mir.yield"
    return f"mir.yield {', '.join(map(str, values))} : {', '.join(str(v.type) for v in values)}"


def _results(b: Body, types: list[Type], noise: list[int]) -> list[Value]:
    return [Value(b.generator.fresh(), t, n) for t, n in zip(types, noise, strict=True)]


def _named(values: list[Value], text: str) -> str:
    return f"{', '.join(map(str, values))} = {text}" if values else text


@maker(None, 4)
def branch(b: Body) -> None:
    if b.depth >= MAX_DEPTH:
        return
    flag, types = condition(b), _types(b)
    sides = [b.inner(), b.inner()]
    yielded = [_fill(side, types) for side in sides]
    noise = [max(pair[0].noise, pair[1].noise) for pair in zip(*yielded, strict=True)]
    results = _results(b, types, noise)
    first, second = (
        [*side.lines, _yield(values)] for side, values in zip(sides, yielded, strict=True)
    )
    b.lines += [
        _named(results, f"mir.if {flag} -> ({', '.join(map(str, types))}) {{"),
        *first,
        "} else {",
        *second,
        f"}} : {FLAG}",
    ]
    b.values += results


@maker(None, 4)
def loop(b: Body) -> None:
    """A loop of up to `MAX_TURNS` turns, as many as a number of the program says."""
    if b.depth >= MAX_DEPTH:
        return
    given = b.pick(lambda v: v.type == COUNTER) or b.constant(2, COUNTER)
    turns = b.binary("and", given, b.constant(MAX_TURNS, COUNTER))
    start = b.constant(0, COUNTER)
    types = [COUNTER, *_types(b)]
    inits = [start, *(b.pick(lambda v, t=t: v.type == t) for t in types[1:])]
    # What is carried may be as inexact as the body makes it, whatever it is at first.
    noise = [SINGLE if is_float(v) else v.noise for v in inits]
    head, body = (b.inner(_results(b, types, noise)) for _ in range(2))
    counters = [inner.values[-len(types)] for inner in (head, body)]
    more = head.op(f"mir.compare lt {counters[0]}, {turns} : {COUNTER} -> {FLAG}", FLAG, EXACT)
    if b.rng.random() < 0.3:
        # A second reason to stop: it must hold at last.
        other = condition(head)
        text = f"mir.binary and {more}, {other} : {FLAG}"
        more = head.op(text, FLAG, EXACT)
    values = _fill(body, types[1:])
    after = body.binary("add", counters[1], body.constant(1, COUNTER))
    results = _results(b, types, noise)
    arguments = [
        ", ".join(f"{v}: {v.type}" for v in inner.values[len(b.values) :][: len(types)])
        for inner in (head, body)
    ]
    spelled = ", ".join(map(str, types))
    b.lines += [
        _named(results, f"mir.while ({', '.join(map(str, inits))}) {{"),
        f"^bb0({arguments[0]}):",
        *head.lines,
        _yield([more]),
        "} do {",
        f"^bb0({arguments[1]}):",
        *body.lines,
        _yield([after, *values]),
        f"}} : ({spelled}) -> ({spelled})",
    ]
    b.values += results


@maker(has_axes, 2)
def scan(b: Body, x: Value) -> None:
    """A loop over the first axis of a value or two, which may stack something."""
    if b.depth >= MAX_DEPTH:
        return
    length = x.dims[0]
    other = b.pick(lambda v: v.type.rank > 0 and v.dims[0] == length)
    xs = [x, other] if other is not None and b.rng.random() < 0.5 else [x]
    types = _types(b)
    inits = [b.pick(lambda v, t=t: v.type == t) for t in types]
    noise = [SINGLE if is_float(v) else v.noise for v in inits]
    arguments = _results(b, types, noise)
    arguments += _results(b, [Type(v.dims[1:], v.element) for v in xs], [v.noise for v in xs])
    body = b.inner(arguments)
    values = _fill(body, types)
    outputs = [body.pick() for _ in range(b.choose((0, 1, 2)))]
    stacked = [(v, Type((length, *v.dims), v.element)) for v in outputs]
    stacked = [(v, type_) for v, type_ in stacked if b.fits(type_)]
    wanted = [*types, *(type_ for _, type_ in stacked)]
    results = _results(b, wanted, [*noise, *(v.noise for v, _ in stacked)])

    def listed(items: list) -> str:
        return ", ".join(map(str, items))

    b.lines += [
        _named(results, f"hir.scan({listed(inits)}) over ({listed(xs)}) {{"),
        f"^bb0({', '.join(f'{v}: {v.type}' for v in arguments)}):",
        *body.lines,
        _yield([*values, *(v for v, _ in stacked)]),
        f"}} : ({listed(types)}) over ({listed([v.type for v in xs])}) -> ({listed(wanted)})",
    ]
    b.values += results
