"""Dialects from Python: constructors infer what verifiers demand, and checks of whole modules."""

import os
import subprocess
import sys
from math import inf, nan
from pathlib import Path

import pytest
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, TensorType, f32, i32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.dialects.test import TestOp as Values
from xdsl.ir import Block, Region
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.utils.exceptions import VerifyException

from rlx.contract.quant import WEIGHT_FORMATS
from rlx.dialects import graph, hir, lir, mir, signal
from rlx.dialects.common import (
    DIMS,
    DimDef,
    DimTable,
    DimTableAttr,
    PackedType,
    PhaseKind,
    QuantType,
    StringAttr,
    dims_of,
    format_of,
    spell,
    tensor,
)
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.dialects.ops import StateRole
from rlx.errors import RlxError
from rlx.passes.diagnostics import IrError, location_of, show_around, verify
from rlx.passes.registry import PASSES
from rlx.passes.source import context, parse
from rlx.passes.verify_ssa import check_ssa
from rlx.passes.verify_stage import STAGES, verify_stage

ROWS = tensor(["rows", 64])
TABLE = DimTableAttr.of([DimDef("rows", 1, 8)])


def module(*ops) -> ModuleOp:
    return ModuleOp(list(ops), {DIMS: TABLE})


def function(name: str, *types, ops=lambda *args: [ReturnOp()], results=()) -> FuncOp:
    block = Block(arg_types=types)
    block.add_ops(ops(*block.args))
    return FuncOp(name, (list(types), list(results)), Region(block))


def quantised(n: int, k: int, name: str = "q4_1"):
    return tensor([n, k], QuantType(StringAttr(name)))


# Types and dimensions


def test_dimensions_are_numbers_and_names():
    assert dims_of(tensor([4, 64])) == (4, 64)
    assert dims_of(ROWS) == ("rows", 64)
    assert dims_of(tensor([])) == ()


def test_spelling():
    assert spell(ROWS) == "[rows, 64] f32"
    assert spell(quantised(8, 32)) == "[8, 32] q4_1"
    assert spell(tensor([8, 32], PackedType(StringAttr("q8_0")))) == "[8, 32] packed q8_0"
    assert spell(i32) == "i32"


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_formats_have_types(name):
    assert format_of(tensor([1, 256], QuantType(StringAttr(name)))) == name
    with pytest.raises(VerifyException, match="unknown weight format"):
        PackedType(StringAttr(f"{name}_"))


def test_a_table_binds_derived_dimensions():
    table = DimTableAttr.of(
        [
            DimDef("seq", 1, 512),
            DimDef("past", 0, 2048),
            DimDef("two", 2, 2),
            DimDef("keys", operator="+", operands=("past", "seq")),
            DimDef("rows", operator="*", operands=("two", "keys")),
        ]
    ).table
    assert table.free == ("seq", "past")
    assert table.upper == {"seq": 512, "past": 2048, "two": 2, "keys": 2560, "rows": 5120}
    assert table.bind({"seq": 1, "past": 7})["rows"] == 16
    assert table.size("keys") == 2560
    assert table.size(3) == 3
    assert DimTable.of(module()).upper == {"rows": 8}
    assert DimTable.of(ModuleOp([])).dims == {}


# Constructors


def test_constructors_infer_results():
    x, w, ids, k = Values(
        result_types=[ROWS, quantised(96, 64), tensor(["rows"], i32), tensor(["rows", 32])]
    ).results
    linear = hir.LinearOp(x, w)
    assert linear.result.type == tensor(["rows", 96])
    pack = mir.PackOp(w)
    assert spell(pack.result.type) == "[96, 64] packed q4_1"
    assert mir.MatmulOp(x, pack.result).result.type == linear.result.type
    assert hir.EmbeddingOp(ids, w).result.type == ROWS
    assert mir.UnaryOp(UnaryKind.EXP, x).result.type == ROWS
    assert mir.BinaryOp(BinaryKind.ADD, x, x).result.type == ROWS
    repeat = hir.RepeatOp("f", 0, 3, [x, k], 1)
    assert [r.type for r in repeat.results] == [ROWS]
    repeat.verify()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (quantised(96, 32), "last dimension is the input's 64, got .rows, 64. f32 and .96, 32."),
        (tensor([64]), "linear weight: expected two dimensions, got .64. f32"),
        (tensor([8, 64], i32), "linear weight: expected elements of f32, f16, .* got .8, 64. i32"),
    ],
)
def test_constructors_refuse_what_does_not_fit(weight, message):
    x, w = Values(result_types=[ROWS, weight]).results
    with pytest.raises(VerifyException, match=message):
        hir.LinearOp(x, w)


def test_kinds_of_kernels():
    packed = mir.PackOp.packed(tensor([64, 64]))
    x, w = Values(result_types=[ROWS, packed]).results
    matmul = mir.MatmulOp(x, w)
    add = mir.BinaryOp(BinaryKind.ADD, x, matmul.result)
    body = Block([matmul, add, mir.YieldOp(add.result)])
    kernel = mir.KernelOp(body, [ROWS])
    kernel.verify()
    assert list(kernel.ops) == [matmul, add]
    assert mir.kind_of(kernel) == mir.kind_of(matmul)
    assert mir.captures(kernel) == [x, w]


# Where values are visible


def exp(value):
    return mir.UnaryOp(UnaryKind.EXP, value)


def test_ssa_accepts_nesting():
    def body(x):
        inner = exp(x)
        kernel = mir.KernelOp(Block([inner, mir.YieldOp(inner.result)]), [ROWS])
        return [kernel, exp(kernel.res[0]), ReturnOp()]

    check_ssa(module(function("f", ROWS, ops=body), function("g", ROWS, ops=body)))


def test_ssa_use_before_definition():
    def body(x):
        first = exp(x)
        second = exp(first.result)
        return [second, first, ReturnOp()]

    with pytest.raises(IrError, match=r"before its definition by mir.unary") as error:
        check_ssa(module(function("f", ROWS, ops=body)))
    assert "  > %0 = mir.unary exp" in show_around(error.value.op)


def test_ssa_value_of_an_inner_region():
    def body(x):
        inner = exp(x)
        kernel = mir.KernelOp(Block([inner, mir.YieldOp(inner.result)]), [ROWS])
        return [kernel, exp(inner.result), ReturnOp()]

    with pytest.raises(IrError, match="outside the region that defines it"):
        check_ssa(module(function("f", ROWS, ops=body)))


def test_ssa_argument_of_another_block():
    other = Block(arg_types=[ROWS])
    FuncOp("g", ([ROWS], []), Region(other))
    with pytest.raises(IrError, match="an argument of a block that does not enclose it"):
        check_ssa(module(function("f", ops=lambda: [exp(other.args[0]), ReturnOp()])))


def test_ssa_isolated_region():
    outer = Values(result_types=[ROWS])
    inner = exp(outer.results[0])
    kernel = lir.KernelOp("k", Block([inner, mir.YieldOp(inner.result)]))
    with pytest.raises(IrError, match=r"from outside lir.kernel, which is isolated"):
        check_ssa(module(outer, kernel))


def test_ssa_is_linear_in_the_number_of_operations():
    def body(x):
        ops = [exp(x)]
        for _ in range(20_000):
            ops.append(exp(ops[-1].result))
        return [*ops, ReturnOp()]

    check_ssa(module(function("f", ROWS, ops=body)))


# Errors


def test_verify_names_the_innermost_culprit():
    def body(x):
        wrong = hir.LastRowsOp(x, tensor([1, 32]))
        return [exp(x), wrong, ReturnOp()]

    with pytest.raises(IrError, match="expected rows of one width") as error:
        verify(module(function("f", ROWS, ops=body)))
    assert isinstance(error.value.op, hir.LastRowsOp)
    report = error.value.report("m.mlir", "after pass 'x'")
    assert report.startswith("m.mlir: error: after pass 'x': hir.last_rows: expected rows")
    assert "  in func.func @f:" in report


def test_verify_demands_terminators():
    with pytest.raises(IrError, match=r"func.func: expected a body that ends in a terminator"):
        verify(module(function("f", ROWS, ops=lambda x: [exp(x)])))
    with pytest.raises(IrError, match="got an empty one"):
        verify(module(function("f", ROWS, ops=lambda x: [])))


def test_errors_of_parsed_text_have_their_place():
    text = b'// a comment\nhir.weight @w "w" : tensor<3xf32>\n'
    (op,) = parse(context(), text, "a.mlir", first_line=10).ops
    assert location_of(op) == "a.mlir:11:1"
    assert location_of(op.clone()) == "a.mlir:11:1"
    assert location_of(hir.WeightOp("w", "w", tensor([3]))) is None


@pytest.mark.parametrize(
    ("numbers", "is_splat"),
    [
        *[([0.0, -0.0], False), ([-0.0, -0.0], True), ([0.0, inf], False), ([nan, 1.0], False)],
        *[([nan, nan], True), ([2.0], True), ([], False)],
    ],
)
def test_constants_keep_their_bits_in_text(numbers: list[float], is_splat: bool):
    type_ = TensorType(f32, [len(numbers), 1])
    constant = mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, numbers))
    assert constant.is_splat == is_splat
    (again,) = parse(context(), str(ModuleOp([constant])).encode(), "test").ops
    assert again.properties["value"] == constant.value


# Stages


LEVELS = (hir.Hir, mir.Mir, lir.Lir, signal.Signal)


def test_stages():
    empty = module(function("main"))
    verify_stage(empty, "hir")
    verify_stage(empty, "mir")
    with pytest.raises(IrError, match=r"func.func: not allowed in builtin.module at stage lir"):
        verify_stage(empty, "lir")
    with pytest.raises(RlxError, match="unknown stage 'xir': expected one of hir, mir, lir"):
        verify_stage(empty, "xir")


def test_rules_of_stages_name_operations_that_exist():
    known = {op.name for d in LEVELS for op in d.operations}
    known |= {
        "named",
        "launched",
        "builtin.module",
        "func.func",
        "func.return",
        *(f"{d.name}.*" for d in LEVELS),
    }
    for rules in STAGES.values():
        assert known.issuperset(rules)
        assert known.issuperset(w.removeprefix("!") for r in rules.values() for w in r.split())


def test_every_level_is_closed():
    """Each operation of a dialect is allowed at some stage."""
    words = {w for rules in STAGES.values() for rule in rules.values() for w in rule.split()}
    for dialect in LEVELS:
        for op in dialect.operations:
            assert op.name in words or f"{dialect.name}.*" in words, op.name


# Loading


def test_formats_are_programs():
    """They are made when text is first read or written; one that is wrong must not wait for it."""
    for dialect in (*LEVELS, graph.Graph):
        for op in dialect.operations:
            if op.assembly_format is not None:
                FormatProgram.from_str(op.assembly_format, op.get_irdl_definition())


def test_a_compilation_makes_no_formats(tmp_path: Path):
    code = (
        "import sys, xdsl.dialects.func\n"
        "from rlx.dialects.definition import FormatProgram\n"
        "def refuse(*_): raise AssertionError('a format is made')\n"
        "FormatProgram.from_str = staticmethod(refuse)\n"
        "import numpy as np, rlx\n"
        "f = rlx.jit(lambda x: rlx.numpy.softmax(x * 2, axis=-1) @ x)\n"
        "f(np.ones((3, 3), np.float32))\n"
        "assert 'rlx.driver' not in sys.modules"
    )
    environment = {**os.environ, "RLX_CACHE_DIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


@pytest.mark.parametrize("name", PASSES)
def test_passes_have_the_names_they_are_registered_by(name):
    assert PASSES[name]().name == name


def test_constructors_of_the_plan():
    weight = lir.WeightOp("w", "w", 0, 64, range(1), 0, tensor([8]))
    state = lir.StateOp("k", StateRole.KEYS, 16, 0, 64, range(2, 4), tensor([8, 32]))
    for op in (weight, state, lir.BarrierOp()):
        op.verify()
    launch = lir.LaunchOp("k", PhaseKind.PROLOGUE, [], [])
    launch.verify()
    assert launch.phase.data is PhaseKind.PROLOGUE


def test_dialects_load_without_numpy_and_llvm():
    code = (
        "import sys, rlx.dialects.hir, rlx.dialects.mir, rlx.dialects.lir;"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'llvmlite', 'rlx.passes')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_element_types():
    assert format_of(tensor([3], f32)) == "f32"
    assert format_of(tensor([3], i32)) == "i32"
