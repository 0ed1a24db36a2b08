"""Random modules: text, passes in any order, and compiled code at every instruction-set level."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest
from fuzz import modules, pool
from fuzz.checking import answers, parsed
from fuzz.programs import random_program
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from rlx.dialects import hir, infer, mir
from rlx.dialects.common import element_of
from rlx.dialects.kinds import BinaryAttr, BinaryKind, CompareKind, ReduceKind, UnaryKind


def test_random_modules(fuzz_count: Callable[[int, int], int]):
    wrong = pool.run(range(fuzz_count(2000, 16)))
    assert not wrong, pool.report(wrong)


def test_the_programs_hold_everything():
    texts = [random_program(seed).text for seed in range(300)]
    words = {w for t in texts for w in re.findall(r"[hm]ir\.\w+(?: [a-z]\w*)?", t)}
    names = {w.split()[0] for w in words}
    wanted = {op.name for op in hir.Hir.operations} - {"hir.last_rows", "hir.sample"}
    wanted |= {op.name for op in (*mir.PRIMITIVES, *mir.CONTROL)}
    assert wanted <= names
    kinds = {"unary": UnaryKind, "binary": BinaryKind, "compare": CompareKind, "reduce": ReduceKind}
    assert {f"mir.{op} {kind}" for op, enum in kinds.items() for kind in enum} <= words
    everything = "\n".join(texts)
    for element in ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "i1", "ui8", "ui32"):
        assert re.search(rf"tensor<[?\dx]*{element}\W", everything), element
    for name in ("seq", "m", "twice", "area", "both", "more", "keys"):
        assert re.search(rf"dims<[\w, ]*\b{name}\b", everything), name


class SubtractPass(ModulePass):
    """Does what no pass may: turns sums of floats around."""

    name = "subtract"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in op.walk():
            # Not the counters of loops, which would not end.
            if isinstance(inner, mir.BinaryOp) and inner.kind.data == BinaryKind.ADD:
                if element_of(inner.lhs.type) in infer.FLOATS:
                    inner.properties["kind"] = BinaryAttr(BinaryKind.SUB)


def test_a_wrong_pass_is_found():
    found = 0
    for seed in range(20):
        case = random_program(seed)
        module = parsed(case.text)
        want, single = answers(case, module)
        passes = [modules.PASSES["legalize-hir"]()(), SubtractPass()]
        try:
            modules.check_passes(case, module, passes, want, single)
        except AssertionError:
            found += 1
    assert found > 3


WORKER = """
import os, sys, time
for line in sys.stdin:
    seed = int(line)
    if seed == 1: os._exit(7)
    if seed == 2: time.sleep(100)
    what = '"seed": %d' % seed + (', "refused": "no"' if seed > 4 else "")
    print("{" + what + "}", flush=True)
"""


def test_crashes_hangs_and_refusals_have_their_seeds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", WORKER))
    monkeypatch.setattr(pool, "PATIENCE", 1)
    wrong = pool.run(range(7), workers=2)
    assert {int(str(w["seed"])): w.get("failed") for w in wrong} == {
        1: "the process ended with 7",
        2: "it hangs",
        5: None,
        6: None,
    }
    text = pool.report(wrong)
    assert "seed 1: the process ended with 7" in text
    assert "refused 2 times (seeds 5, 6): no" in text
    assert text.endswith("4 modules; once more: cd tests/unit && python -m fuzz 1 2 5 6")
