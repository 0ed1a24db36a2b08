"""The fusion passes: fused programs against unfused ones in numpy, their shape and their report."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, FuncOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from rlx.contract.benefit import GraphIoProfile, IoFusionGate
from rlx.dialects import hir, mir
from rlx.dialects.common import DimDef, DimTable, DimTableAttr
from rlx.errors import RlxError
from rlx.passes.derive_phases import DerivePhasesPass
from rlx.passes.diagnostics import IrError, verify
from rlx.passes.fuse_common import gate_named, launch
from rlx.passes.fuse_epilogue import FuseEpiloguePass, can_fuse_epilogue
from rlx.passes.fuse_norm import FuseNormPass
from rlx.passes.fuse_shared_input import FuseSharedInputPass
from rlx.passes.fusion_cost import Launch, binding, nbytes, profile, source, traffic
from rlx.passes.fusion_report import FUSION_REPORT, fusion_report
from rlx.passes.hoist_params import HoistParamsPass
from rlx.passes.legalize_hir import LegalizeHirPass
from rlx.reference import Reference

FUSIONS = (FuseSharedInputPass(), FuseEpiloguePass(), FuseNormPass())
PIPELINE = (*FUSIONS, HoistParamsPass(), DerivePhasesPass())
FLAT = "tensor<32x32xf32>"
PACKED = "tensor<32x32x!hir.packed<f32>>"


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, hir.Hir, mir.Mir):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    verify(module)
    return module


def apply(module: ModuleOp, *passes: ModulePass) -> ModuleOp:
    """The module after passes, each of which leaves valid IR behind."""
    for p in passes:
        p.apply(Context(), module)
        verify(module)
    return module


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    return {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)}


def launches(function: FuncOp) -> list[str]:
    """The launches of a function: loads and packs launch nothing."""
    silent = (mir.LoadWeightOp, mir.LoadStateOp, mir.PackOp)
    ops = [op for op in function.body.block.ops if not isinstance(op, silent)]
    return [spell(op) for op in ops if op.name.startswith("mir.")]


def spell(op: Operation) -> str:
    if isinstance(op, mir.KernelOp):
        return "{" + "; ".join(map(spell, op.ops)) + "}"
    return op.name.removeprefix("mir.")


# A small Llama


def llama(rows: str) -> ModuleOp:
    """The HIR of a decoder of two layers, for one row or for `seq` rows."""
    dims = "seq = 1" if rows == "1" else "seq = 1 to 8"

    def t(width: int, dim: str = rows) -> str:
        return (
            f"tensor<{dim}x{width}xf32>"
            if dim == "1"
            else f"tensor<?x{width}xf32, #hir.dims<{dim}, _>>"
        )

    ids = "tensor<1xi32>" if rows == "1" else "tensor<?xi32, #hir.dims<seq>>"
    x, k, keys, table = t(64), t(32), t(32, "keys"), "tensor<64x16xf32>"
    shapes = {"q": "64x64", "k": "32x64", "v": "32x64", "o": "64x64"}
    shapes |= {"up": "96x64", "gate": "96x64", "down": "64x96", "g": "64", "h": "64"}
    weights = [f'hir.weight @{n} "l{{layer}}.{n}" : tensor<{s}xf32>' for n, s in shapes.items()]
    loads = [f"%w{n} = hir.load_weight @{n} : tensor<{s}xf32>" for n, s in shapes.items()]
    cast = "" if rows == "1" else f"%last = hir.last_rows %y : {x} -> {t(64, '1')}"
    return parse(f"""
builtin.module @m attributes {{
    rlx.dims = #hir.dim_table<{dims}, past = 0 to 56, keys = past + seq>}} {{
  hir.weight @embd "embd" : tensor<40x64xf32>
  hir.weight @norm "norm" : tensor<64xf32>
  {chr(10).join(weights)}
  hir.state @keys keys head_dim 16 : tensor<64x32xf32>
  hir.state @values values head_dim 16 : tensor<64x32xf32>
  func.func private @layer(%x: {x}, %cos: {table}, %sin: {table}) -> {x} {{
    {chr(10).join(loads)}
    %n = hir.rms_norm %x, %wg eps 1.0e-05 : {x}, tensor<64xf32>
    %q = hir.linear %n, %wq : {x}, tensor<64x64xf32> -> {x}
    %k = hir.linear %n, %wk : {x}, tensor<32x64xf32> -> {k}
    %v = hir.linear %n, %wv : {x}, tensor<32x64xf32> -> {k}
    %qr = hir.rope %q, %cos, %sin start "past" head_dim 16 : {x}, {table}, {table}
    %kr = hir.rope %k, %cos, %sin start "past" head_dim 16 : {k}, {table}, {table}
    %ks = hir.append %kr to @keys start "past" : {k} -> {keys}
    %vs = hir.append %v to @values start "past" : {k} -> {keys}
    %a = hir.attention %qr, %ks, %vs head_dim 16 scale 0.25 : {x}, {keys}
    %o = hir.linear %a, %wo : {x}, tensor<64x64xf32> -> {x}
    %x1 = mir.binary add %x, %o : {x}
    %m = hir.rms_norm %x1, %wh eps 1.0e-05 : {x}, tensor<64xf32>
    %f = hir.glu silu %m up %wup gate %wgate down %wdown
      : {x}, tensor<96x64xf32>, tensor<96x64xf32>, tensor<64x96xf32>
    %x2 = mir.binary add %x1, %f : {x}
    func.return %x2 : {x}
  }}
  func.func @main(%ids: {ids} {{rlx.name = "ids"}}, %s: tensor<8xi32> {{rlx.name = "s"}})
      -> (tensor<1xi32> {{rlx.name = "id"}}, tensor<1x40xf32> {{rlx.name = "logits"}}) {{
    %table = hir.load_weight @embd : tensor<40x64xf32>
    %x = hir.embedding %ids, %table : {ids}, tensor<40x64xf32> -> {x}
    %cos, %sin = hir.rope_table base 10000.0 : {table}, {table}
    %y = hir.repeat @layer(%x, %cos, %sin) layers 0 to 2 : ({x}, {table}, {table}) -> {x}
    {cast}
    %g = hir.load_weight @norm : tensor<64xf32>
    %n = hir.rms_norm %{"last" if cast else "y"}, %g eps 1.0e-05 : {t(64, "1")}, tensor<64xf32>
    %logits = hir.linear %n, %table : {t(64, "1")}, tensor<40x64xf32> -> tensor<1x40xf32>
    %id = hir.sample %logits, %s : tensor<1x40xf32>, tensor<8xi32> -> tensor<1xi32>
    func.return %id, %logits : tensor<1xi32>, tensor<1x40xf32>
  }}
}}""")


def random_weights(module: ModuleOp, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for op in module.ops:
        if isinstance(op, hir.WeightOp):
            for layer in range(2 if op.is_family else 1):
                value = rng.standard_normal(op.type.get_shape()) / 4
                found[op.key.data.replace("{layer}", str(layer))] = value.astype(np.float32)
    return found


def generate(module: ModuleOp, weights: dict[str, np.ndarray], rows: int) -> list[np.ndarray]:
    """The logits of three runs that continue each other, `rows` ids at a time."""
    reference = Reference(module, weights)
    rng, results = np.random.default_rng(7), []
    for step in range(3):
        inputs = {"ids": rng.integers(0, 40, rows, np.int32), "s": np.zeros(8, np.int32)}
        dims = {"past": step * rows} | ({"seq": rows} if "seq" in reference.table.free else {})
        results.append(reference.run(inputs, dims)["logits"])
    return results


@pytest.mark.parametrize("rows", ["1", "seq"])
def test_a_model_computes_the_same_after_the_passes(rows: str):
    count = 1 if rows == "1" else 5
    weights = random_weights(llama(rows), 3)
    plain = generate(apply(llama(rows), LegalizeHirPass()), weights, count)
    for order in permutations(FUSIONS):
        module = apply(llama(rows), LegalizeHirPass(), *order, *PIPELINE)
        for fused, unfused in zip(generate(module, weights, count), plain, strict=True):
            assert np.isfinite(unfused).all()
            np.testing.assert_array_equal(fused, unfused)


QKV = "matmul; matmul; matmul; rope; rope; append; append"
GATED = "matmul; matmul; unary; binary"


def test_launches_of_a_decode_step():
    fused = functions(apply(llama("1"), LegalizeHirPass(), *PIPELINE))
    assert launches(fused["layer"]) == [
        f"{{rms_norm; {QKV}}}",
        "attention",
        "{matmul; binary}",
        f"{{rms_norm; {GATED}}}",
        "{matmul; binary}",
    ]
    assert launches(fused["main"]) == [
        *("embedding", "rope_table", "repeat", "{rms_norm; matmul}", "sample")
    ]


def test_launches_of_a_prefill_step():
    fused = functions(apply(llama("seq"), LegalizeHirPass(), *PIPELINE))
    assert launches(fused["layer"]) == [
        "rms_norm",
        f"{{{QKV}}}",
        "attention",
        "{matmul; binary}",
        "rms_norm",
        f"{{{GATED}}}",
        "{matmul; binary}",
    ]
    # The last row alone is normalised with the matmul.
    assert launches(fused["main"])[-3:] == ["last_rows", "{rms_norm; matmul}", "sample"]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_the_passes_does_not_matter_at_the_fixed_point(order: tuple[int, ...]):
    wanted = functions(apply(llama("1"), LegalizeHirPass(), *FUSIONS))
    shuffled = [FUSIONS[i] for i in order]
    given = functions(apply(llama("1"), LegalizeHirPass(), *shuffled, *FUSIONS))
    for name, function in wanted.items():
        assert sorted(map(sorted, launches(given[name]))) == sorted(map(sorted, launches(function)))


def test_phases_of_a_decode_step():
    fused = functions(apply(llama("1"), LegalizeHirPass(), *PIPELINE))

    def phases(name: str) -> dict[str, str]:
        ops = fused[name].body.block.ops
        return {spell(o): str(o.attributes[mir.PHASE].data) for o in ops if "phase" in o.attributes}

    main = phases("main")
    assert main.pop("sample") == "epilogue"
    assert {k for k, v in main.items() if v == "prologue"} == {"load_weight", "pack", "rope_table"}
    assert {v for k, v in main.items()} == {"prologue", "steady_state"}
    layer = phases("layer")
    silent = {"load_weight", "pack", "load_state"}
    assert {k for k, v in layer.items() if v == "prologue"} == silent
    assert set(layer.values()) == {"prologue", "steady_state"}


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_a_gated_pair_of_matmuls_is_one_launch(kind: str):
    x, w, d = "tensor<2x32xf32>", "tensor<48x32xf32>", "tensor<32x48xf32>"

    def gated() -> ModuleOp:
        module = parse(f"""
builtin.module {{
  hir.weight @u "u" : {w}
  hir.weight @g "g" : {w}
  hir.weight @d "d" : {d}
  func.func @main(%x: {x} {{rlx.name = "x"}}) -> ({x} {{rlx.name = "y"}}) {{
    %u = hir.load_weight @u : {w}
    %g = hir.load_weight @g : {w}
    %d = hir.load_weight @d : {d}
    %y = hir.glu {kind} %x up %u gate %g down %d : {x}, {w}, {w}, {d}
    func.return %y : {x}
  }}
}}""")
        return apply(module, LegalizeHirPass())

    fused = apply(gated(), *PIPELINE)
    assert launches(functions(fused)["main"]) == [f"{{{GATED}}}", "matmul"]
    rng = np.random.default_rng(4)
    shapes = {"u": (48, 32), "g": (48, 32), "d": (32, 48)}
    weights = {n: rng.standard_normal(s).astype(np.float32) / 4 for n, s in shapes.items()}
    inputs = {"x": rng.standard_normal((2, 32))}
    wanted, given = (Reference(m, weights).run(inputs)["y"] for m in (gated(), fused))
    np.testing.assert_array_equal(given, wanted)


# Random programs


class RandomProgram:
    """A MIR program of random operations on rows of 32 features, with two states."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.rows = int(self.rng.choice([1, 3]))
        self.x = f"tensor<{self.rows}x32xf32>"
        self.view = "tensor<?x32xf32, #hir.dims<keys, _>>"
        self.values, self.views, self.lines = ["x", "z"], list[str](), list[str]()
        for _ in range(int(self.rng.integers(8, 24))):
            self.step()

    def one(self, names: list[str]) -> str:
        # Mostly a late value, so that chains grow.
        recent = names[-3:] if self.rng.random() < 0.7 else names
        return "%" + str(self.rng.choice(recent))

    def add(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"%{name} = {text}")
        return name

    def matmul(self, rows: str) -> None:
        weight = self.rng.choice(["w0", "w1"])
        self.values.append(
            self.add(f"mir.matmul {rows}, %{weight} : {self.x}, {PACKED} -> {self.x}")
        )

    def append(self, rows: str) -> None:
        state = self.add(f"mir.load_state @{self.rng.choice(['s0', 's1'])} : tensor<16x32xf32>")
        types = f"{self.x}, tensor<16x32xf32> -> {self.view}"
        self.views.append(
            self.add(f'mir.append {rows} to %{state} keys head_dim 16 start "past" : {types}')
        )

    def norm(self, rows: str) -> None:
        norm = self.add(f"mir.rms_norm {rows}, %g eps 1.0e-05 : {self.x}, tensor<32xf32>")
        for _ in range(int(self.rng.integers(1, 3))):
            self.matmul(f"%{norm}")
        if self.rng.random() < 0.4:
            self.values.append(norm)

    def step(self) -> None:
        kinds = ["matmul"] * 4 + ["unary", "binary", "binary", "rope", "norm", "append", "append"]
        kind = self.rng.choice(kinds + (["attention"] * 3 if self.views else []))
        a, b, x = self.one(self.values), self.one(self.values), self.x
        if kind in ("matmul", "append", "norm"):
            getattr(self, kind)(a)
        elif kind == "unary":
            which = self.rng.choice(["silu", "tanh", "neg"])
            self.values.append(self.add(f"mir.unary {which} {a} : {x}"))
        elif kind == "binary":
            which = self.rng.choice(["add", "max", "sub"])
            self.values.append(self.add(f"mir.binary {which} {a}, {b} : {x}"))
        elif kind == "rope":
            types = f"{x}, tensor<16x16xf32>, tensor<16x16xf32>"
            text = f'mir.rope {a}, %cos, %sin start "past" head_dim 16 : {types}'
            self.values.append(self.add(text))
        else:
            operands = f"{a}, {self.one(self.views)}, {self.one(self.views)}"
            text = f"mir.attention {operands} head_dim 16 scale 0.25 : {x}, {self.view}"
            self.values.append(self.add(text))

    def module(self) -> ModuleOp:
        results = self.values[-4:]
        named = ", ".join(f'{self.x} {{rlx.name = "{r}"}}' for r in results)
        weights = {"g": "tensor<32xf32>", "w0": FLAT, "w1": FLAT}
        declared = "\n".join(f'hir.weight @{n} "{n}" : {t}' for n, t in weights.items())
        return parse(f"""
builtin.module attributes {{
    rlx.dims = #hir.dim_table<seq = {self.rows}, past = 0 to 9, keys = past + seq>}} {{
  {declared}
  hir.state @s0 keys head_dim 16 : tensor<16x32xf32>
  hir.state @s1 keys head_dim 16 : tensor<16x32xf32>
  func.func @main(%x: {self.x} {{rlx.name = "x"}}, %z: {self.x} {{rlx.name = "z"}}) -> ({named}) {{
    %g = mir.load_weight @g : tensor<32xf32>
    %l0 = mir.load_weight @w0 : {FLAT}
    %l1 = mir.load_weight @w1 : {FLAT}
    %w0 = mir.pack %l0 : {FLAT} -> {PACKED}
    %w1 = mir.pack %l1 : {FLAT} -> {PACKED}
    %cos, %sin = mir.rope_table base 10000.0 : tensor<16x16xf32>, tensor<16x16xf32>
    {chr(10).join(self.lines)}
    func.return {", ".join("%" + r for r in results)} : {", ".join([self.x] * len(results))}
  }}
}}""")


def check_kernel(kernel: mir.KernelOp) -> None:
    """What kernel generators count on: a norm of one row, matmuls of one input, row operations."""
    ops = list(kernel.ops)
    norms = [op for op in ops if isinstance(op, mir.RmsNormOp)]
    matmuls = [op for op in ops if isinstance(op, mir.MatmulOp)]
    epilogue = ops[len(norms) + len(matmuls) :]
    assert ops == [*norms, *matmuls, *epilogue]
    assert len(norms) <= 1
    assert matmuls
    assert len({source(m.input) for m in matmuls}) == 1
    if norms:
        assert matmuls[0].input is norms[0].result
        assert norms[0].result.type.get_shape()[0] == 1
        assert all(u.operation in matmuls for u in norms[0].result.uses)
    row_results = {op.results[0] for op in (*matmuls, *epilogue)}
    for op in epilogue:
        assert isinstance(op, mir.UnaryOp | mir.BinaryOp | mir.RopeOp | mir.AppendOp)
        assert row_results & set(op.operands)
    states = [op.state.owner.state for op in epilogue if isinstance(op, mir.AppendOp)]
    assert len(set(states)) == len(states)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_compute_the_same(seed: int):
    program = RandomProgram(seed)
    order = np.random.default_rng(seed).permutation(3)
    module = apply(program.module(), *(FUSIONS[i] for i in order), *PIPELINE)
    for op in module.walk():
        if isinstance(op, mir.KernelOp):
            check_kernel(op)
    rng = np.random.default_rng(seed + 1000)
    weights = {n: rng.standard_normal((32, 32)).astype(np.float32) / 4 for n in ("w0", "w1")}
    weights["g"] = rng.standard_normal(32).astype(np.float32)
    before, after = Reference(program.module(), weights), Reference(module, weights)
    for past in (0, program.rows):
        inputs = {n: rng.standard_normal((program.rows, 32)) for n in ("x", "z")}
        dims = {"past": past}
        wanted, given = before.run(inputs, dims), after.run(inputs, dims)
        for name in wanted:
            assert np.isfinite(wanted[name]).all()
            np.testing.assert_array_equal(given[name], wanted[name])
    for key, state in before.state.items():
        np.testing.assert_array_equal(after.state[key], state)


def test_random_programs_fuse_something():
    counts = [0, 0, 0]
    for seed in range(40):
        module = apply(RandomProgram(seed).module(), *(type(p)(report=True) for p in FUSIONS))
        for i, p in enumerate(FUSIONS):
            counts[i] += sum(e.fused for e in fusion_report(module) if e.rule == p.name)
    assert min(counts) > 5


# The report and the gate


def small() -> ModuleOp:
    x = "tensor<2x32xf32>"
    return parse(f"""
builtin.module {{
  func.func @f(%x: {x}, %w: {PACKED}) -> ({x}, {x}) {{
    %a = mir.matmul %x, %w : {x}, {PACKED} -> {x}
    %e = mir.unary exp %a : {x}
    %b = mir.unary neg %x : {x}
    func.return %e, %b : {x}, {x}
  }}
}}""")


def test_report_survives_text_and_accumulates():
    module = apply(small(), FuseEpiloguePass(report=True))
    (entry,) = fusion_report(module)
    assert entry.fused
    assert (entry.rule, entry.function) == ("fuse-epilogue", "f")
    assert (entry.op, entry.kernel) == ("unary exp %e", "matmul %a")
    assert (entry.launches_before, entry.launches_after) == (2, 1)
    rows, weight = 2 * 32 * 4, 32 * 32 * 4
    assert (entry.bytes_before, entry.bytes_after) == (4 * rows + weight, 2 * rows + weight)
    assert entry.score_ns == 50 + 2 * rows / 50
    assert "fused (launches 2 -> 1" in str(entry)
    assert fusion_report(parse(str(module))) == [entry]
    apply(module, FuseNormPass(report=True))
    assert fusion_report(module) == [entry]


def test_no_report_unless_asked():
    module = apply(small(), *FUSIONS)
    assert FUSION_REPORT not in module.attributes
    assert fusion_report(module) == []


def test_the_gate_decides():
    # A launch is worth 3000 ns there and a byte 0.01 ns; the gate asks for 10000.
    module = apply(small(), FuseEpiloguePass(target="wgpu", report=True))
    (entry,) = fusion_report(module)
    assert not entry.fused
    assert "10000 ns" in entry.reason
    assert "declined: the target's gate" in str(entry)
    assert launches(functions(module)["f"]) == ["matmul", "unary", "unary"]


def test_an_unknown_target_is_refused():
    assert gate_named("cpu") is IoFusionGate.presets["cpu"]
    with pytest.raises(RlxError, match=r"expected a target of metal, .* got 'abacus'"):
        FuseNormPass(target="abacus").apply(Context(), small())


def test_bytes_are_counted_under_a_binding():
    table = DimTable(
        {
            "seq": DimDef("seq", 1, 512),
            "past": DimDef("past", 0, 2048),
            "keys": DimDef("keys", operator="+", operands=("past", "seq")),
        }
    )
    sizes = binding(table)
    assert sizes == {"seq": 512, "past": 1024, "keys": 1536}
    x, keys = (f"tensor<?x64xf32, #hir.dims<{d}, _>>" for d in ("seq", "keys"))
    w, t, s = "tensor<64x64x!hir.packed<q4_1>>", "tensor<2048x16xf32>", "tensor<2048x64xf32>"
    module = parse(f"""
builtin.module attributes {{rlx.dims = {DimTableAttr.of(table.dims.values())}}} {{
  func.func @f(%x: {x}, %w: {w}, %cos: {t}, %state: {s}) -> () {{
    %y = mir.matmul %x, %w : {x}, {w} -> {x}
    %r = mir.rope %y, %cos, %cos start "past" head_dim 16 : {x}, {t}, {t}
    %s = mir.append %r to %state keys head_dim 16 start "past" : {x}, {s} -> {keys}
    func.return
  }}
}}""")
    matmul, rope, append, _ = functions(module)["f"].body.block.ops
    rows, weight, table_rows = 512 * 64 * 4, 64 * 2 * 20, 512 * 16 * 4
    assert nbytes(matmul.operands[1].type, sizes) == weight
    assert nbytes(append.results[0].type, sizes) == 1536 * 64 * 4
    assert profile([launch(matmul)], sizes).device_traffic_bytes == 2 * rows + weight
    # Of a table the rows' positions are read, of a state nothing; one table here, so once.
    assert profile([launch(rope)], sizes).device_traffic_bytes == 2 * rows + table_rows
    assert profile([launch(append)], sizes).device_traffic_bytes == 2 * rows
    together = profile([Launch([matmul, rope, append], [])], sizes)
    assert together.kernel_launches == 1
    assert together.device_traffic_bytes == 2 * rows + weight + table_rows


COSTS = """
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8>} {
  func.func @f(%x: tensor<8x16xf32>, %i: tensor<2xi32>) -> () {
    %c = mir.constant dense<1.0> : tensor<8x16xf32>
    %t = mir.constant dense<[1.0, 2.0]> : tensor<2xf32>
    %r = mir.reshape %x : tensor<8x16xf32> -> tensor<128xf32>
    %h = mir.slice %x starts [2, 0] steps [1, 1] : tensor<8x16xf32> -> tensor<3x16xf32>
    %s = mir.slice %x starts [0, 2] steps [1, 1] : tensor<8x16xf32> -> tensor<8x3xf32>
    %g = mir.gather %x, %i axis 0 : tensor<8x16xf32>, tensor<2xi32> -> tensor<2x16xf32>
    %y = mir.binary add %x, %c : tensor<8x16xf32>
    %n = mir.unary neg %r : tensor<128xf32>
    %b = mir.cast %x : tensor<8x16xf32> -> tensor<8x16xbf16>
    %l = mir.compare lt %x, %y : tensor<8x16xf32> -> tensor<8x16xi1>
    %o = mir.iota axis 0 : tensor<?xi64, #hir.dims<seq>>
    func.return
  }
}"""


def test_what_runs_for_nothing_and_what_is_read_in_part():
    ops = list(functions(parse(COSTS))["f"].body.block.ops)[:-1]
    constant, table, reshape, rows, columns, gather, add, neg, cast, compare, iota = ops
    for op in (constant, table, reshape, rows):
        assert profile([Launch([op], op.results)], {}) == GraphIoProfile(0, 0, 0, 0)
    # One that each step makes anew costs a launch.
    assert profile([Launch([iota], iota.results)], {"seq": 8}) == GraphIoProfile(1, 0, 0, 64)
    whole = 8 * 16 * 4
    assert traffic(Launch([columns], columns.results), {}) == 2 * 8 * 3 * 4
    assert traffic(Launch([gather], gather.results), {}) == 2 * 2 * 16 * 4 + 2 * 4
    # One number is no bytes where it is part of the launch; a table is read there too.
    assert traffic(Launch([add], add.results), {}) == 3 * whole
    assert traffic(Launch([constant, add], add.results), {}) == 2 * whole
    assert traffic(Launch([table], []), {}) == 2 * 4
    # A view is what it is a view of.
    assert traffic(Launch([neg, add], [*neg.results, *add.results]), {}) == 4 * whole
    assert traffic(Launch([cast], cast.results), {}) == whole + whole // 2
    assert traffic(Launch([compare], compare.results), {}) == 2 * whole + whole // 4


# Legality


EPILOGUES = """
builtin.module attributes {{rlx.dims = #hir.dim_table<past = 0 to 62>}} {{
  func.func @f(%x: tensor<2x32xf32>, %w: {packed}, %t: tensor<32x16xf32>, %s: tensor<64x32xf32>,
      %u: tensor<32x8xf32>, %g: tensor<32xf32>) -> () {{
    %y = mir.matmul %x, %w : tensor<2x32xf32>, {packed} -> tensor<2x32xf32>
    %z = {op}
    func.return
  }}
}}"""
ROWS = "tensor<2x32xf32>"


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (f"mir.unary exp %y : {ROWS}", None),
        (f"mir.binary add %x, %y : {ROWS}", None),
        (f"mir.binary add %y, %y : {ROWS}", None),
        (f"mir.unary exp %x : {ROWS}", "does not compute its rows"),
        (f"mir.rms_norm %y, %g eps 1.0e-05 : {ROWS}, tensor<32xf32>", "does not work row by row"),
        (
            f'mir.rope %y, %t, %t start "past" head_dim 16 : {ROWS}, tensor<32x16xf32>,'
            " tensor<32x16xf32>",
            None,
        ),
        (
            f'mir.rope %y, %t, %t start "past" head_dim 32 : {ROWS}, tensor<32x16xf32>,'
            " tensor<32x16xf32>",
            None,
        ),
        (
            f'mir.rope %y, %u, %u start "past" head_dim 16 : {ROWS}, tensor<32x8xf32>,'
            " tensor<32x8xf32>",
            "n_rot that is a multiple of 16, got 8",
        ),
        (
            f'mir.rope %y, %u, %u start "past" head_dim 8 : {ROWS}, tensor<32x8xf32>,'
            " tensor<32x8xf32>",
            "head_dim that is a multiple of 16, got 8",
        ),
        (
            f'mir.append %y to %s keys head_dim 16 start "past" : {ROWS}, tensor<64x32xf32>'
            " -> tensor<5x32xf32>",
            None,
        ),
        (
            f'mir.append %y to %s keys head_dim 8 start "past" : {ROWS}, tensor<64x32xf32>'
            " -> tensor<5x32xf32>",
            "head_dim that is a multiple of 16, got 8",
        ),
        (
            f'mir.append %x to %y keys head_dim 16 start "past" : {ROWS}, {ROWS} -> {ROWS}',
            "does not compute its rows",
        ),
        (
            f'mir.append %y to %y keys head_dim 16 start "past" : {ROWS}, {ROWS} -> {ROWS}',
            "whole of a value",
        ),
    ],
)
def test_what_may_end_a_kernel(op: str, reason: str | None):
    matmul, other, _ = functions(parse(EPILOGUES.format(packed=PACKED, op=op)))["f"].body.block.ops
    given = can_fuse_epilogue(other, matmul)
    if reason is None:
        assert given is None
    else:
        assert given is not None
        assert reason in given


# Phases


PHASED = """
builtin.module {{
  func.func @main(%x: tensor<1x32xf32>, %w: {packed}) -> tensor<1x32xf32> {{
    %a = mir.unary exp %x : tensor<1x32xf32> {first}
    %y = mir.matmul %a, %w : tensor<1x32xf32>, {packed} -> tensor<1x32xf32>
    %b = mir.unary neg %y : tensor<1x32xf32> {second}
    func.return %b : tensor<1x32xf32>
  }}
}}"""


def phased(phase: str) -> str:
    return f"{{phase = #mir<phase {phase}>}}" if phase else ""


def test_a_written_phase_must_suit_its_operands():
    early = parse(PHASED.format(packed=PACKED, first=phased("prologue"), second=""))
    with pytest.raises(IrError, match=r"mir.unary in @main .* prologue but needs the argument %x"):
        DerivePhasesPass().apply(Context(), early)
    # The matmul moves up to its consumer, and then the argument is too late for it as well.
    late = parse(PHASED.format(packed=PACKED, first=phased("epilogue"), second=""))
    with pytest.raises(IrError, match=r"mir.matmul in @main .* steady_state but needs a result"):
        DerivePhasesPass().apply(Context(), late)


def test_an_operation_runs_no_later_than_its_consumers():
    module = parse(PHASED.format(packed=PACKED, first="", second=phased("steady_state")))
    apply(module, DerivePhasesPass())
    ops = list(functions(module)["main"].body.block.ops)[:3]
    assert [str(op.attributes[mir.PHASE].data) for op in ops] == ["steady_state"] * 3


def test_fusion_keeps_phases_apart_and_a_common_one():
    module = parse(PHASED.format(packed=PACKED, first="", second=phased("epilogue")))
    apply(module, FuseEpiloguePass(report=True))
    assert [e.reason for e in fusion_report(module)] == ["they run in different phases"]
    same = parse(PHASED.format(packed=PACKED, first="", second=""))
    apply(same, DerivePhasesPass())
    _, matmul, neg, _ = functions(same)["main"].body.block.ops
    neg.attributes[mir.PHASE] = matmul.attributes[mir.PHASE]
    apply(same, FuseEpiloguePass())
    kernel = next(op for op in same.walk() if isinstance(op, mir.KernelOp))
    assert str(kernel.attributes[mir.PHASE].data) == "steady_state"
    assert all(mir.PHASE not in op.attributes for op in kernel.ops)
