"""Passes that rewrite values: programs before and after them in the reference interpreter."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from primitive_programs import SMOOTH, SPECIAL, Program, inputs
from test_fusion import FUSIONS, RandomProgram, generate, llama, parse, random_weights
from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import mir
from rlx.dialects.common import tensor
from rlx.dialects.infer import U8, U32, is_unsigned
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.passes.algebra_rules import ALGEBRA_RULES
from rlx.passes.cast_rules import CAST_RULES
from rlx.passes.constant_fold import (
    ConstantFoldPass,
    EraseLoop,
    FoldMapOfFills,
    FoldPrimitive,
    TakeArm,
    TakeBranch,
)
from rlx.passes.cse import CsePass
from rlx.passes.dce import DcePass
from rlx.passes.derive_phases import DerivePhasesPass
from rlx.passes.diagnostics import verify
from rlx.passes.eliminate_moves import EliminateMovesPass, FoldIntoDot, SwapDot
from rlx.passes.hoist_params import HoistParamsPass
from rlx.passes.join_rules import JOIN_RULES
from rlx.passes.legalize_hir import LegalizeHirPass
from rlx.passes.map_rules import MAP_RULES
from rlx.passes.matching import Rule, apply_rules
from rlx.passes.move_rules import MOVE_RULES
from rlx.passes.reduce_rules import REDUCE_RULES
from rlx.passes.registry import PASSES
from rlx.passes.simplify_algebra import SimplifyAlgebraPass
from rlx.passes.unfuse import UnfusePass
from rlx.reference import Reference
from rlx.reference.elements import DTYPES

PASSES_OF_VALUES = (
    ConstantFoldPass(),
    SimplifyAlgebraPass(),
    EliminateMovesPass(),
    CsePass(),
    DcePass(),
)
ORDERS = list(permutations(PASSES_OF_VALUES))
RULES: tuple[Rule, ...] = (
    *ALGEBRA_RULES,
    *CAST_RULES,
    *REDUCE_RULES,
    *MOVE_RULES,
    *JOIN_RULES,
    *MAP_RULES,
    FoldPrimitive(),
    FoldMapOfFills(),
    TakeArm(),
    TakeBranch(),
    EraseLoop(),
    FoldIntoDot(),
    SwapDot(),
)


def applied(module: ModuleOp, *passes: ModulePass) -> ModuleOp:
    """A copy of a module after passes, each of which leaves valid IR behind."""
    module = module.clone()
    for p in passes:
        p.apply(Context(), module)
        verify(module)
    return module


def results(module: ModuleOp, seed: int, special: bool, dtype: Any) -> dict[str, np.ndarray]:
    """All results of a program with one row and with three."""
    found: dict[str, np.ndarray] = {}
    for seq in (1, 3):
        run = Reference(module, {}, dtype).run(inputs(seed, seq, special), {"seq": seq})
        found |= {f"{name} of {seq}": value for name, value in run.items()}
    return found


def bits(value: np.ndarray) -> np.ndarray:
    """The bits of an array, those of each NaN alike."""
    if value.dtype.kind != "f":
        return value
    value = np.where(np.isnan(value), np.nan, value).astype(value.dtype)
    return np.ascontiguousarray(value).view(f"u{value.itemsize}")


def check_same_bits(module: ModuleOp, after: ModuleOp, seed: int) -> None:
    wanted, given = (results(m, seed, True, np.float32) for m in (module, after))
    for name, value in wanted.items():
        np.testing.assert_array_equal(bits(given[name]), bits(value), err_msg=name)


@pytest.mark.parametrize("p", PASSES_OF_VALUES, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_pass_changes_no_bit(p: ModulePass, fuzz_count):
    for seed in range(fuzz_count(200, 8)):
        module = Program(seed).module
        check_same_bits(module, applied(module, p), seed)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_passes_in_any_order_change_no_bit(fuzz_count):
    for seed in range(1000, 1000 + fuzz_count(400, 16)):
        module = Program(seed).module
        check_same_bits(module, applied(module, *ORDERS[seed % len(ORDERS)]), seed)


@pytest.mark.parametrize(
    "passes",
    [(EliminateMovesPass(),), (UnfusePass(expand=True),), (*PASSES_OF_VALUES, UnfusePass(True))],
    ids=["moves", "expand", "all"],
)
def test_products_and_composite_operations_compute_the_same(passes, fuzz_count):
    for seed in range(2000, 2000 + fuzz_count(200, 7)):
        module = Program(seed, exact=False).module
        after = applied(module, *passes)
        wanted, given = (results(m, seed, False, np.float64) for m in (module, after))
        for name, value in wanted.items():
            # Constants are those of f32.
            np.testing.assert_allclose(given[name], value, 2e-6, 1e-6, err_msg=f"{seed} {name}")


class Watched(Rule):
    """A rule that tells when it has changed something."""

    def __init__(self, rule: Rule, seen: set[str]):
        self.ops, self.rule, self.seen = rule.ops, rule, seen

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        self.rule.match_and_rewrite(op, rewriter)
        if rewriter.has_done_action:
            self.seen.add(type(self.rule).__name__)


def test_random_programs_need_every_rule():
    """So that the tests above are about all of them."""
    seen: set[str] = set()
    for seed in range(200):
        module = Program(seed, exact=seed % 3 > 0).module
        order = np.random.default_rng(seed).permutation(len(RULES))
        apply_rules(module, [Watched(RULES[i], seen) for i in order])
        if len(seen) == len(RULES):
            break
    assert seen == {type(rule).__name__ for rule in RULES}


# Every pair of operations on special values

NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 8.0, 3.0, 0.5, 2.0**-130, 2.0**127, 1e-40)
ELEMENTS = (f32, f64, i8, i16, i32, i64, U8, U32, i1)
CASTS = (*ELEMENTS, f16, bf16)
WHOLE = np.array([0, 1, -1, 2, 3, -3, 8, -8, 100, -100, 127, -128], np.float64)


def valid(op: Operation) -> bool:
    try:
        op.verify_()
    except VerifyException:
        return False
    return True


class Table:
    """A function of one input whose results are all that is made of it."""

    def __init__(self, element: Attribute):
        self.values = WHOLE if isinstance(element, IntegerType) else np.array(SPECIAL)
        self.type = tensor([len(self.values)], element)
        self.block = Block(arg_types=[self.type])
        self.x = self.block.args[0]
        self.results: list[SSAValue] = []

    def add(self, op: Operation) -> SSAValue | None:
        if not valid(op):
            op.erase()
            return None
        self.block.add_op(op)
        return op.results[0]

    def keep(self, op: Operation) -> None:
        value = self.add(op)
        if value is not None:
            self.results.append(value)

    def check(self, p: ModulePass) -> int:
        """Compare all results before and after a pass; return how many operations it saves."""
        self.block.add_op(ReturnOp(*self.results))
        names = [DictionaryAttr({"rlx.name": StringAttr(str(i))}) for i in range(len(self.results))]
        function = FuncOp(
            "main",
            ([self.type], [v.type for v in self.results]),
            Region(self.block),
            arg_attrs=ArrayAttr([DictionaryAttr({"rlx.name": StringAttr("x")})]),
            res_attrs=ArrayAttr(names),
        )
        module = ModuleOp([function])
        verify(module)
        after = applied(module, p, DcePass())
        element = self.type.element_type
        x = self.values
        if isinstance(element, IntegerType):
            x = x != 0 if element == i1 else x.astype(np.int64).astype(DTYPES[element])
        with np.errstate(all="ignore"):
            wanted, given = (Reference(m, {}, np.float32).run({"x": x}) for m in (module, after))
        for name, value in wanted.items():
            made = self.results[int(name)].owner
            np.testing.assert_array_equal(bits(given[name]), bits(value), err_msg=str(made))
        return len(list(module.walk())) - len(list(after.walk()))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_operations_with_a_constant_keep_their_bits(element: Attribute):
    table = Table(element)
    numbers = NUMBERS if element in (f32, f64) else (0, 1) if element == i1 else (0, 1, -1, 2, 8, 3)
    if is_unsigned(element):
        numbers = (0, 1, 2, 8, 3, 128, 255)
    for number in numbers:
        with np.errstate(all="ignore"):
            constant = table.add(
                mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(table.type, [number]))
            )
        for kind in BinaryKind:
            table.keep(mir.BinaryOp(kind, table.x, constant))
            table.keep(mir.BinaryOp(kind, constant, table.x))
        for kind in CompareKind:
            table.keep(mir.CompareOp(kind, table.x, constant))
    for kind in BinaryKind:
        table.keep(mir.BinaryOp(kind, table.x, table.x))
        negative = table.add(mir.UnaryOp(UnaryKind.NEG, table.x))
        if negative is not None:
            table.keep(mir.BinaryOp(kind, table.x, negative))
    for kind in CompareKind:
        table.keep(mir.CompareOp(kind, table.x, table.x))
    assert table.check(SimplifyAlgebraPass()) > 3


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_functions_of_functions_keep_their_bits(element: Attribute):
    table = Table(element)
    kinds = [k for k in UnaryKind if k not in SMOOTH]
    for first in kinds:
        inner = table.add(mir.UnaryOp(first, table.x))
        for second in kinds if inner is not None else ():
            table.keep(mir.UnaryOp(second, inner))
    other = table.add(mir.BinaryOp(BinaryKind.MAX, table.x, table.x)) or table.x
    for kind in CompareKind:
        inner = table.add(mir.CompareOp(kind, table.x, other))
        table.keep(mir.UnaryOp(UnaryKind.NOT, inner))
    assert table.check(SimplifyAlgebraPass()) > 1


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_casts_of_casts_keep_their_bits(element: Attribute):
    table = Table(element)
    for middle in CASTS:
        inner = table.add(mir.CastOp(table.x, middle))
        assert inner is not None
        for last in CASTS:
            table.keep(mir.CastOp(inner, last))
    assert table.check(SimplifyAlgebraPass()) > 3


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_reductions_keep_their_bits(element: Attribute):
    table = Table(element)
    n = len(table.values)
    column = table.add(mir.ReshapeOp(table.x, tensor([n, 1], element)))
    wide = table.add(mir.BroadcastOp(table.x, tensor([3, n], element)))
    assert column is not None
    assert wide is not None
    for kind in ReduceKind:
        table.keep(mir.ReduceOp(kind, column, [1]))
        table.keep(mir.ReduceOp(kind, table.x, []))
        table.keep(mir.ReduceOp(kind, wide, [0]))
        inner = table.add(mir.ReduceOp(kind, wide, [1]))
        if inner is not None:
            table.keep(mir.ReduceOp(kind, inner, [0]))
    assert table.check(SimplifyAlgebraPass()) > 3


def test_expansion_leaves_basic_operations():
    composite = (mir.SoftmaxOp, mir.LayerNormOp, mir.RmsNormOp, mir.SdpaOp)
    counts = Counter[bool]()
    for seed in range(15):
        module = Program(seed, exact=False).module
        counts[any(isinstance(op, composite) for op in module.walk())] += 1
        after = applied(module, UnfusePass(expand=True))
        assert not any(isinstance(op, composite) for op in after.walk())
        kinds = {str(op.kind.data) for op in after.walk() if isinstance(op, mir.UnaryOp)}
        assert not kinds & {"silu", "gelu", "softplus", "elu", "relu", "hard_swish", "softsign"}
    assert counts[True] > 5


# Programs with weights and state


def spelled(module: ModuleOp) -> Counter[str]:
    """How often each operation stands in a module, by name and properties."""
    return Counter(
        f"{op.name} {sorted(map(str, op.properties.items()))} {op.result_types}"
        for function in module.ops
        if isinstance(function, FuncOp)
        for op in function.walk()
    )


@pytest.mark.parametrize("seed", range(15))
def test_unfusing_gives_back_what_was_fused(seed: int):
    module = RandomProgram(seed).module()
    order = np.random.default_rng(seed).permutation(len(FUSIONS))
    fused = applied(module, *(FUSIONS[i] for i in order))
    assert spelled(applied(fused, UnfusePass())) == spelled(module)


@pytest.mark.parametrize("seed", range(20))
def test_programs_with_states_compute_the_same(seed: int):
    module = RandomProgram(seed).module()
    order = ORDERS[np.random.default_rng(seed).integers(len(ORDERS))]
    fusions = FUSIONS if seed % 2 else ()
    after = applied(
        module, *order, *fusions, *order, *([UnfusePass(True)] if seed % 4 == 3 else [])
    )
    rng = np.random.default_rng(seed + 1000)
    weights = {n: rng.standard_normal((32, 32)).astype(np.float32) / 4 for n in ("w0", "w1")}
    weights["g"] = rng.standard_normal(32).astype(np.float32)
    before, then = Reference(module, weights), Reference(after, weights)
    rows = RandomProgram(seed).rows
    for past in (0, rows):
        given = {n: rng.standard_normal((rows, 32)) for n in ("x", "z")}
        wanted, found = before.run(given, {"past": past}), then.run(given, {"past": past})
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], 1e-5, 1e-5)
    for key, state in before.state.items():
        np.testing.assert_allclose(then.state[key], state, 1e-5, 1e-5)


@pytest.mark.parametrize("rows", ["1", "seq"])
def test_a_model_computes_the_same(rows: str):
    count = 1 if rows == "1" else 5
    weights = random_weights(llama(rows), 3)
    plain = generate(applied(llama(rows), LegalizeHirPass()), weights, count)
    for order in ORDERS[::50]:
        passes = (*order, LegalizeHirPass(), *order, *FUSIONS, *order, HoistParamsPass())
        module = applied(llama(rows), *passes, DerivePhasesPass(), *order)
        for found, wanted in zip(generate(module, weights, count), plain, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_dead_program_of_any_length_is_erased_at_once():
    lines = "\n".join(f"%v{i + 1} = mir.unary neg %v{i} : tensor<4xf32>" for i in range(600))
    text = f"""
builtin.module {{
  func.func @main(%v0: tensor<4xf32>) -> tensor<4xf32> {{
    {lines}
    func.return %v0 : tensor<4xf32>
  }}
}}"""
    for p in (DcePass(), SimplifyAlgebraPass()):
        after = applied(parse(text), p)
        (function,) = after.ops
        assert isinstance(function, FuncOp)
        assert len(list(function.walk())) == 2


def test_a_function_that_is_only_declared_stays_with_its_repeat():
    """No pass looks for the arguments of a body that isn't there."""
    module = parse("""
builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 8>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf32>
  func.func private @layer(tensor<4xf32>, tensor<32x64xf32>) -> tensor<4xf32>
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %k = mir.load_state @k : tensor<32x64xf32>
    %y = mir.repeat @layer(%x, %k) layers 0 to 2
        : (tensor<4xf32>, tensor<32x64xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}""")
    wanted = str(module)
    for p in (*PASSES_OF_VALUES, UnfusePass(), HoistParamsPass()):
        assert str(applied(module, p)) == wanted, p.name


def test_every_pass_is_registered_under_its_name():
    for p in (*PASSES_OF_VALUES, UnfusePass()):
        assert PASSES[p.name]() is type(p)
