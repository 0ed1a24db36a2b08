"""The flow API: sources, profiles, state and context, stages, and the builder of models."""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from models import write_llama
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

import rlx
from rlx.dialects import hir, mir
from rlx.dialects.common import dims_of, format_of, tensor
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.dialects.levels import stage_of
from rlx.dialects.ops import StateRole
from rlx.errors import RlxError
from rlx.flow.attention import RopeTables
from rlx.flow.context import FlowCtx, FlowStage, symbol_of
from rlx.flow.escape import Custom
from rlx.flow.feed_forward import SwiGlu
from rlx.flow.layers import Repeat, Unroll
from rlx.flow.model import BuiltModel, ModelFlow
from rlx.flow.source import ChainWeights, MapWeights, WeightInfo
from rlx.flow.stages import (
    Embed,
    GatherLastToken,
    LastRows,
    Linear,
    LmHead,
    Named,
    ResidualAdd,
    ResidualSave,
    RmsNorm,
    Sample,
    Sequence,
)
from rlx.flow.state import DecodeBindings, FlowState, FlowValue, GdnInputSlots
from rlx.frontends.gguf import GgufFile
from rlx.frontends.weights import GgufWeights
from rlx.passes.legalize_hir import LegalizeHirPass
from rlx.reference.interpreter import Reference


def arrays(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


class CountingWeights(MapWeights):
    """Arrays that remember what was taken; `formats` overrides the format that a key claims."""

    def __init__(self, given: dict[str, np.ndarray], formats: dict[str, str] | None = None):
        super().__init__(given)
        self.taken: list[tuple[str, bool]] = []
        self.formats = formats or {}

    def take(self, key: str, transpose: bool = False):
        self.taken.append((key, transpose))
        return super().take(key, transpose)

    def info(self, key: str) -> WeightInfo:
        return super().info(key)._replace(format=self.formats.get(key, "f32"))


def context(**shapes: tuple[int, ...]) -> FlowCtx:
    return FlowCtx.define("test", CountingWeights(arrays(**shapes)))


def weights_of(module: ModuleOp) -> list[hir.WeightOp]:
    return [op for op in module.ops if isinstance(op, hir.WeightOp)]


def lowered(ctx: FlowCtx) -> FlowCtx:
    """The context after its module was lowered to MIR under it."""
    x = ctx.input("x", (2, 4))
    ctx.finish({"y": RmsNorm("w", 1e-5).emit(ctx, x).id})
    LegalizeHirPass().apply(Context(), ctx.module)
    return ctx


# Sources


def test_map_weights():
    given = {"w": np.arange(6, dtype=np.float64).reshape(2, 3)}
    source = MapWeights(given)
    assert source.has("w")
    assert not source.has("v")
    assert source.info("w") == WeightInfo((2, 3), "f32")
    data, shape = source.take("w")
    assert (data.dtype, shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(data, given["w"])
    data, shape = source.take("w", transpose=True)
    assert shape == (3, 2)
    assert data.flags.c_contiguous
    np.testing.assert_array_equal(data, given["w"].T)
    np.testing.assert_array_equal(source.raw("w").view(np.float32), np.arange(6))


@pytest.mark.parametrize("dtype", ["<f2", ">f2", ml_dtypes.bfloat16])
def test_map_weights_of_sixteen_bits(dtype):
    given = np.array([[0.1, -3.0], [65504.0, 2.0**-14]]).astype(dtype)
    format = "f16" if given.dtype.kind == "f" else "bf16"
    source = MapWeights({"w": given})
    assert source.info("w") == WeightInfo((2, 2), format)
    data, _ = source.take("w")
    assert data.dtype == np.float32
    np.testing.assert_array_equal(data, given.astype(np.float32))
    assert source.raw("w").tobytes() == given.astype(given.dtype.newbyteorder("=")).tobytes()


def test_arrays_of_sixteen_bits_compile_where_declared_so():
    text = """
hir.weight @w "w" : tensor<3x4xf16>
func.func @main(%x: tensor<2x4xf32> {rlx.name = "x"}) -> (tensor<2x3xf32> {rlx.name = "y"}) {
  %w = hir.load_weight @w : tensor<3x4xf16>
  %y = hir.linear %x, %w : tensor<2x4xf32>, tensor<3x4xf16> -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}"""
    rng = np.random.default_rng(5)
    w, x = rng.standard_normal((3, 4)), rng.standard_normal((2, 4)).astype(np.float32)
    half = w.astype(np.float16)
    found = rlx.compile(text, {"w": half})(x)
    np.testing.assert_allclose(found, x @ half.astype(np.float64).T, rtol=1e-5, atol=1e-6)
    # Numbers of another type, uint16 too, are never taken for bits.
    for other in (np.float32, np.uint16):
        with pytest.raises(RlxError, match=r"expected \[3, 4\] f16, got \[3, 4\] f32"):
            rlx.compile(text, {"w": w.astype(other)})


@pytest.mark.parametrize("stage", [RmsNorm("n", 1e-6), Linear("w", "b")])
def test_stages_take_arrays_of_sixteen_bits(stage: RmsNorm | Linear):
    rng = np.random.default_rng(6)
    w = {k: rng.standard_normal(s).astype(np.float16) for k, s in
         {"n": 16, "w": (5, 16), "b": 5}.items()}  # fmt: skip
    flow = ModelFlow("test")
    flow.input("x", (3, 16)).stage(Named("y", stage)).output("y")
    built = flow.build(MapWeights(w))
    x = rng.standard_normal((3, 16)).astype(np.float32)
    n, m, b = (a.astype(np.float64) for a in w.values())
    norm = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * n
    y = rlx.compile(built.module, built.weights)(x)
    np.testing.assert_allclose(
        y, norm if isinstance(stage, RmsNorm) else x @ m.T + b, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("method", ["info", "take", "raw"])
def test_map_weights_missing(method: str):
    with pytest.raises(RlxError, match="expected a weight 'v', which is missing; there are: w"):
        getattr(MapWeights(arrays(w=(2,))), method)("v")


def test_transpose_needs_a_matrix():
    with pytest.raises(RlxError, match=r"weight 'w': expected two dimensions.*\(4,\)"):
        MapWeights(arrays(w=(4,))).take("w", transpose=True)


def test_chain_weights():
    front, back = arrays(a=(2,)), {**arrays(b=(3,)), "a": np.zeros(5)}
    source = ChainWeights([MapWeights(front), MapWeights(back)])
    assert source.info("a").shape == (2,)
    assert source.info("b").shape == (3,)
    np.testing.assert_array_equal(source.take("a")[0], front["a"])
    assert source.raw("b").nbytes == 12
    assert not source.has("c")
    with pytest.raises(RlxError, match="'c', which is missing"):
        source.info("c")
    with pytest.raises(RlxError, match="at least one source"):
        ChainWeights([])


def test_gguf_weights(tmp_path: Path):
    path = write_llama(tmp_path / "m.gguf", layers=1, d=64, ffn=96, heads=4, kv_heads=2, vocab=300)
    key = "blk.0.ffn_down.weight"
    with GgufFile.open(path) as file:
        source = GgufWeights(file)
        assert source.info(key) == WeightInfo((64, 96), "q4_1")
        assert source.info("output_norm.weight") == WeightInfo((64,), "f32")
        assert source.has(key)
        assert not source.has("blk.1.ffn_down.weight")
        raw = source.raw(key)
        assert raw.dtype == np.uint8
        assert raw.shape == (64 * 96 // 32 * 20,)
        expected = gguf.quants.dequantize(raw.reshape(64, 60), gguf.GGMLQuantizationType.Q4_1)
        data, shape = source.take(key)
        assert shape == (64, 96)
        np.testing.assert_array_equal(data, expected)
        data, shape = source.take(key, transpose=True)
        assert shape == (96, 64)
        np.testing.assert_array_equal(data, expected.T)
        with pytest.raises(RlxError, match="expected a tensor 'nope', which is missing"):
            source.take("nope")


# State


def test_flow_state_is_empty_by_default():
    assert FlowState() == FlowState(
        rope_cos=None,
        rope_sin=None,
        zero_beta=None,
        embed_weight=None,
        hidden_shape=None,
        decode=None,
        residual_skip=None,
        residual_shape=None,
        streams={},
        inputs={},
        named={},
        gdn=None,
        loaded_params={},
        loaded_weights={},
    )


def test_slots():
    ctx = context()
    q, k, v, g, beta = (ctx.input(name, (1, 4)).id for name in "qkvgb")
    slots = GdnInputSlots(q, k, v, g, beta)
    assert (slots.q, slots.k, slots.v, slots.g, slots.beta) == (q, k, v, g, beta)
    decode = DecodeBindings(q, k)
    assert (decode.cos, decode.sin, decode.mask) == (q, k, None)
    assert decode.past_k == decode.past_v == []


# Context


def test_load_param_is_cached_for_each_key_and_orientation():
    ctx = context(w=(2, 3))
    plain = ctx.load_param("w")
    flipped = ctx.load_param("w", transpose=True)
    assert ctx.load_param("w") is plain
    assert ctx.load_param("w", transpose=True) is flipped
    assert ctx.weights.taken == [("w", False), ("w", True)]
    assert ctx.state.loaded_params == {"w": plain, "w\0t": flipped}
    assert plain.type == tensor([2, 3])
    assert flipped.type == tensor([3, 2])
    # The two don't overwrite each other.
    np.testing.assert_array_equal(ctx.params["w"], arrays(w=(2, 3))["w"])
    np.testing.assert_array_equal(ctx.params["w.t"], arrays(w=(2, 3))["w"].T)
    assert [w.key.data for w in weights_of(ctx.hir())] == ["w", "w.t"]
    assert len({w.sym_name.data for w in weights_of(ctx.hir())}) == 2


def test_load_param_transposed_is_named_by_its_key():
    ctx = context(w=(2, 3))
    ctx.load_param("w", transpose=True)
    assert ctx.params["w"].shape == (3, 2)
    ctx.load_param("w")
    assert ctx.params["w"].shape == (3, 2)
    assert ctx.params["w.f32"].shape == (2, 3)


def test_load_param_errors():
    ctx = context()
    with pytest.raises(RlxError, match="'w', which is missing"):
        ctx.load_param("w")
    assert ctx.params == {}
    assert ctx.state.loaded_params == {}
    with pytest.raises(RlxError, match="one weight for each layer: use load_weight"):
        ctx.load_param("blk.{layer}.w")


def test_load_param_of_a_quantised_weight_beside_its_own_type(tmp_path: Path):
    path = write_llama(tmp_path / "m.gguf", layers=1, d=64, ffn=96, heads=4, kv_heads=2, vocab=300)
    with GgufFile.open(path) as file:
        ctx = FlowCtx.define("test", GgufWeights(file))
        stored = ctx.load_weight("token_embd.weight")
        param = ctx.load_param("token_embd.weight")
        assert format_of(stored.id.type) == "q8_0"
        assert param.type == tensor([300, 64])
        assert list(ctx.params) == ["token_embd.weight.f32"]
        other = FlowCtx.define("test", GgufWeights(file))
        other.load_param("token_embd.weight")
        with pytest.raises(RlxError, match="was loaded as a parameter"):
            other.load_weight("token_embd.weight")


def test_synth_param():
    ctx = context(w=(2,))
    data = np.arange(6, dtype=np.float32)
    value = ctx.synth_param("table", data, (2, 3))
    assert value.type == tensor([2, 3])
    np.testing.assert_array_equal(ctx.params["table"], data.reshape(2, 3))
    assert ctx.synth_param("table", data, (2, 3)).type == value.type
    assert [w.key.data for w in weights_of(ctx.hir())] == ["table"]
    with pytest.raises(RlxError, match="'table' is declared already, with other data"):
        ctx.synth_param("table", data + 1, (2, 3))
    with pytest.raises(RlxError, match=r"'short': expected data of \(4,\), got \(6,\)"):
        ctx.synth_param("short", data, (4,))
    ctx.load_weight("w")
    with pytest.raises(RlxError, match="'w' is declared already"):
        ctx.synth_param("w", np.zeros(2, np.float32), (2,))


def test_synth_zeros():
    ctx = context()
    value = ctx.synth_zeros("beta", 5)
    assert value.type == tensor([5])
    assert ctx.params["beta"].dtype == np.float32
    np.testing.assert_array_equal(ctx.params["beta"], np.zeros(5))


def test_input_and_wrap():
    ctx = context()
    x = ctx.input("x", ("seq", 4))
    ids = ctx.input("ids", (3,), i32)
    assert x.id.type == tensor(["seq", 4])
    assert ids.id.type == tensor([3], i32)
    assert ctx.state.inputs == {"x": (x.id, ("seq", 4)), "ids": (ids.id, (3,))}
    assert ctx.node_shape(x.id) == ("seq", 4)
    assert ctx.wrap(x.id, ("seq", 4)) == FlowValue(x.id, ("seq", 4)) == x
    with pytest.raises(RlxError, match=r"expected the shape of the value \[seq, 4\] f32, got \[4"):
        ctx.wrap(x.id, (4, 4))
    with pytest.raises(RlxError, match="'x', it is declared twice"):
        ctx.input("x", (1,))


def test_only_hir_can_be_built():
    ctx = context(w=(4,))
    assert ctx.hir() is ctx.module
    x = lowered(ctx).state.inputs["x"][0]
    assert stage_of(ctx.module) == "mir"
    for call in (
        ctx.hir,
        lambda: ctx.node_shape(x),
        lambda: ctx.load_param("w"),
        lambda: ctx.load_weight("w"),
        lambda: ctx.synth_zeros("z", 2),
        lambda: ctx.input("y", (2,)),
        lambda: ctx.insert(mir.UnaryOp(UnaryKind.EXP, x)),
    ):
        with pytest.raises(RlxError, match="builds HIR, but the module is mir already"):
            call()


def test_load_weight():
    source = CountingWeights(arrays(w=(2, 32), h=(4, 8)), {"w": "q8_0", "h": "f16"})
    ctx = FlowCtx.define("test", source)
    value = ctx.load_weight("w")
    assert value.shape == (2, 32)
    assert str(value.id.type) == "tensor<2x32x!hir.q<q8_0>>"
    assert ctx.load_weight("w").id is value.id
    assert str(ctx.load_weight("h").id.type) == "tensor<4x8xf16>"
    assert [w.sym_name.data for w in weights_of(ctx.hir())] == ["w", "h"]
    assert source.taken == []
    assert ctx.params == {}


def test_load_weight_errors():
    source = CountingWeights({**arrays(w=(2, 32)), "blk.0.w": np.zeros(2)}, {"w": "iq4_nl"})
    ctx = FlowCtx.define("test", source)
    with pytest.raises(RlxError, match=r"weight 'w': the format 'iq4_nl' is not supported.*q8_0"):
        ctx.load_weight("w")
    with pytest.raises(RlxError, match="'v', which is missing"):
        ctx.load_weight("v")
    with pytest.raises(RlxError, match="load it in a stage that is repeated"):
        ctx.load_weight("blk.{layer}.w")
    assert weights_of(ctx.hir()) == []


@pytest.mark.parametrize(
    ("key", "symbol"),
    [
        ("token_embd.weight", "token_embd"),
        ("blk.{layer}.attn_q.weight", "attn_q"),
        ("model.layers.{layer}.mlp.up_proj.weight", "mlp_up_proj"),
        ("blk.{layer}.attn_q.bias", "attn_q_bias"),
        ("0/weird key!", "w_0_weird_key"),
        ("é", "w_"),
    ],
)
def test_symbols(key: str, symbol: str):
    assert symbol_of(key) == symbol


def test_symbols_are_unique():
    ctx = FlowCtx.define("test", MapWeights({"a.b": np.zeros(2), "a/b": np.zeros(3)}))
    ctx.load_weight("a.b")
    ctx.load_weight("a/b")
    assert [w.sym_name.data for w in weights_of(ctx.hir())] == ["a_b", "a_b_1"]
    main = FlowCtx.define("test", MapWeights({"main": np.zeros(2)}))
    main.load_weight("main")
    assert weights_of(main.hir())[0].sym_name.data == "main_1"


def test_append_declares_a_state_once():
    ctx = context()
    x = ctx.input("x", ("seq", 8))
    y = ctx.append("k", StateRole.KEYS, 32, 4, x)
    ctx.append("k", StateRole.KEYS, 32, 4, x)
    assert y.shape == ("keys", 8)
    states = [op for op in ctx.hir().ops if isinstance(op, hir.StateOp)]
    assert [str(s) for s in states] == ["hir.state @k keys head_dim 4 : tensor<32x8xf32>"]
    with pytest.raises(RlxError, match=r"state @k is declared as .*32x8.*, not as .*48x8"):
        ctx.append("k", StateRole.KEYS, 48, 4, x)


# Stages and the builder


def run(built: BuiltModel, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """The results of a built model, by the reference in float64."""
    built.module.verify()
    declared = {w.key.data for w in weights_of(built.module)}
    keys = {k.replace("{layer}", str(n)) for k in declared for n in range(8)}
    given = {k: built.weights.take(k)[0] for k in keys if built.weights.has(k)}
    return Reference(built.module, given).run(inputs)


def flow_of(*stages: FlowStage, shape: tuple[int, ...] = (3, 4)) -> ModelFlow:
    flow = ModelFlow("test").input("x", shape)
    return flow.stage(Named("y", Sequence(stages))).output("y")


def test_linear_norm_swiglu_and_residual_compute_what_they_say():
    w = arrays(norm=(4,), lin=(4, 4), up=(6, 4), gate=(6, 4), down=(4, 6))
    flow = flow_of(
        ResidualSave(),
        RmsNorm("norm", 1e-5),
        Linear("lin"),
        SwiGlu("up", "gate", "down"),
        ResidualAdd(),
    )
    x = np.random.default_rng(1).standard_normal((3, 4))
    y = run(flow.build(MapWeights(w)), x=x)["y"]

    h = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * w["norm"]
    h = h @ w["lin"].T
    gate = h @ w["gate"].T
    h = (gate / (1 + np.exp(-gate)) * (h @ w["up"].T)) @ w["down"].T
    np.testing.assert_allclose(y, x + h, rtol=1e-12)


def test_last_rows_and_gather_last_token():
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(run(flow_of(LastRows(2)).build(MapWeights({})), x=x)["y"], x[1:])
    built = flow_of(GatherLastToken()).build(MapWeights({}))
    np.testing.assert_array_equal(run(built, x=x)["y"], x[2:])
    same = flow_of(LastRows(3)).build(MapWeights({})).module
    assert not any(isinstance(op, hir.LastRowsOp) for op in same.walk())


def test_tied_and_untied_heads():
    w = arrays(embed=(9, 4), head=(5, 4))
    ids = np.array([3, 0], np.int32)
    for key, table in ((None, w["embed"]), ("head", w["head"])):
        flow = ModelFlow("test").input("ids", (2,), i32).stage(Embed("embed"))
        flow.stage(Named("logits", LmHead(key))).output("logits")
        logits = run(flow.build(MapWeights(w)), ids=ids)["logits"]
        np.testing.assert_allclose(logits, w["embed"][ids].astype(np.float64) @ table.T, rtol=1e-6)


def test_custom_emits_operations_of_its_own():
    def square(emit, x):
        bias = emit.ctx.synth_param("ones", np.ones(12, np.float32), (3, 4))
        y = emit(mir.BinaryOp(BinaryKind.MUL, x.id, x.id))
        return emit(mir.BinaryOp(BinaryKind.ADD, y.id, bias))

    built = flow_of(Custom(square)).build(MapWeights({}))
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(run(built, x=x)["y"], x * x + 1)
    assert list(built.params) == ["ones"]
    assert built.weights.info("ones") == WeightInfo((3, 4), "f32")


def layers(count: int, rows: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {f"blk.{n}.w.weight": rng.standard_normal((rows, 4)) for n in range(count)}


def functions(module: ModuleOp) -> list[str]:
    return [op.sym_name.data for op in module.ops if isinstance(op, FuncOp)]


def repeats(module: ModuleOp) -> list[tuple[str, int, int]]:
    return [
        (op.callee.string_value(), op.first.value.data, op.last.value.data)
        for op in module.walk()
        if isinstance(op, hir.RepeatOp)
    ]


def test_repeat_makes_one_function():
    w = layers(5)
    flow = ModelFlow("test").input("x", (2, 4))
    flow.stage(Named("y", Repeat(5, Linear("blk.{layer}.w.weight")))).output("y")
    built = flow.build(MapWeights(w))
    assert functions(built.module) == ["layer", "main"]
    assert repeats(built.module) == [("layer", 0, 5)]
    assert [str(op) for op in weights_of(built.module)] == [
        'hir.weight @w "blk.{layer}.w.weight" : tensor<4x4xf32>'
    ]
    x = np.random.default_rng(1).standard_normal((2, 4))
    expected = x
    for n in range(5):
        expected = expected @ w[f"blk.{n}.w.weight"].T.astype(np.float32)
    np.testing.assert_allclose(run(built, x=x)["y"], expected, rtol=1e-12)


def test_repeat_splits_where_formats_differ():
    formats = {"blk.2.w.weight": "f16", "blk.3.w.weight": "f16"}
    flow = ModelFlow("test").input("x", (2, 4))
    flow.stage(Named("y", Repeat(6, Linear("blk.{layer}.w.weight")))).output("y")
    module = flow.build(CountingWeights(layers(6), formats)).module
    module.verify()
    assert functions(module) == ["layer", "layer_1", "layer_2", "main"]
    assert repeats(module) == [("layer", 0, 2), ("layer_1", 2, 4), ("layer_2", 4, 6)]
    declared = [(w.sym_name.data, format_of(w.type)) for w in weights_of(module)]
    assert declared == [("w", "f32"), ("w_1", "f16"), ("w_2", "f32")]
    assert {w.key.data for w in weights_of(module)} == {"blk.{layer}.w.weight"}


def test_layers_in_line_have_weights_of_their_own():
    w = layers(3)
    key = "blk.{layer}.w.weight"

    def twice(emit, x):
        rows = Linear(key).emit(emit.ctx, x)
        emit.ctx.state.named[f"y{emit.ctx.layer}"] = rows.id
        return emit(mir.DotOp(rows.id, emit.ctx.load_param(key, transpose=True)))

    flow = ModelFlow("test").input("x", (2, 4)).stage(Named("y", Unroll(3, Custom(twice))))
    built = flow.output("y").output("y1").build(MapWeights(w))
    assert functions(built.module) == ["main"]
    keys = [f"blk.{n}.w.weight{end}" for n in range(3) for end in ("", ".t")]
    assert [op.key.data for op in weights_of(built.module)] == keys
    x = np.random.default_rng(1).standard_normal((2, 4))
    matrices = [w[f"blk.{n}.w.weight"].astype(np.float32).astype(np.float64) for n in range(3)]
    results, expected = run(built, x=x), x
    for n, m in enumerate(matrices):
        if n == 1:
            np.testing.assert_allclose(results["y1"], expected @ m.T, rtol=1e-12)
        expected = expected @ m.T @ m.T
    np.testing.assert_allclose(results["y"], expected, rtol=1e-12)


def test_a_layer_takes_what_it_uses_of_the_outside():
    def scaled(emit, x):
        skip = emit.ctx.state.streams["skip"].id
        return emit(mir.BinaryOp(BinaryKind.ADD, x.id, skip))

    def keep(emit, x):
        emit.ctx.state.streams["skip"] = x
        emit.ctx.state.streams["unused"] = emit(mir.UnaryOp(UnaryKind.EXP, x.id))
        return emit(mir.UnaryOp(UnaryKind.NEG, x.id))

    flow = ModelFlow("test").input("x", (2, 4)).stage(Custom(keep))
    flow.stage(Named("y", Repeat(3, Custom(scaled)))).output("y")
    built = flow.build(MapWeights({}))
    layer = next(op for op in built.module.ops if isinstance(op, FuncOp))
    assert len(layer.body.block.args) == 2
    x = np.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(run(built, x=x)["y"], 2 * x)


def test_what_a_layer_caches_stays_in_it():
    w = {**layers(2), "shared": np.eye(4)}
    layer = Sequence((Linear("shared"), Linear("blk.{layer}.w.weight")))
    flow = ModelFlow("test").input("x", (2, 4)).stage(Linear("shared")).repeat_layers(2, layer)
    built = flow.stage(Named("y", Linear("shared"))).output("y").build(MapWeights(w))
    assert len(weights_of(built.module)) == 2
    x = np.random.default_rng(1).standard_normal((2, 4))
    expected = x @ w["blk.0.w.weight"].astype(np.float32).T
    expected = expected @ w["blk.1.w.weight"].astype(np.float32).T
    np.testing.assert_allclose(run(built, x=x)["y"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((ResidualAdd(),), "expected a ResidualSave before it"),
        ((ResidualSave(), Linear("wide"), ResidualAdd()), "expected the shape that was kept"),
        ((LmHead(),), "expected a key, or an Embed before it"),
        ((Sample(),), "expected an input 'sampling', the inputs are: x"),
        ((RopeTables(1e4, 8, 3),), "RopeTables.*even n_rot"),
        ((RmsNorm("square5", 1e-5),), r"RmsNorm\(key='square5'.*expected a weight \[4\]"),
        ((Linear("square5"),), r"Linear\(key='square5'.*last dimension is the input's 4"),
        ((Repeat(0, ResidualSave()),), "expected at least one layer, got 0"),
        ((Repeat(2, Linear("wide")),), r"to give \[3, 4\] f32, as it takes, got \[3, 8\] f32"),
        ((Repeat(2, Repeat(2, ResidualSave())),), "no repeat of layers within a layer"),
        ((Repeat(2, Linear("blk.{layer}.w.weight")),), "'blk.0.w.weight', which is missing"),
        ((Linear("iq"),), "format 'iq4_nl' is not supported"),
    ],
)
def test_stage_errors(stages: tuple[FlowStage, ...], message: str):
    source = CountingWeights(arrays(wide=(8, 4), square5=(5, 5), iq=(4, 4)), {"iq": "iq4_nl"})
    flow = flow_of(*stages)
    with pytest.raises(RlxError, match=message):
        flow.build(source)


def test_flow_errors():
    with pytest.raises(RlxError, match="at least one input and one output"):
        ModelFlow("test").build(MapWeights({}))
    flow = ModelFlow("test").input("x", (1,)).output("y")
    with pytest.raises(RlxError, match="no value is named 'y'; named are: none"):
        flow.build(MapWeights({}))
    with pytest.raises(RlxError, match="'x', it is declared twice"):
        flow.input("x", (1,)).build(MapWeights({}))


def test_dims():
    flow = ModelFlow("test")
    assert flow.dim("one", 1, 1) == 1
    assert flow.dim("seq", 1, 8) == "seq"
    assert flow.dim_sum("keys", "one", "seq") == "keys"
    with pytest.raises(RlxError, match="'seq' is declared twice"):
        flow.dim("seq", 1, 9)
    with pytest.raises(RlxError, match="expected 'past' to be declared before it"):
        flow.dim_sum("more", "past", "seq")
    with pytest.raises(RlxError, match="0 <= low <= high, got 3 to 2"):
        flow.dim("bad", 3, 2)
    flow.input("x", ("seq", 2)).stage(Named("y", ResidualSave())).output("y")
    module = flow.carry("x", "y").advance("one", "seq").build(MapWeights({})).module
    assert {k: str(v) for k, v in module.attributes.items()} == {
        "rlx.dims": "#hir.dim_table<one = 1, seq = 1 to 8, keys = one + seq>",
        "rlx.carry": '{x = "y"}',
        "rlx.advance": '{one = "seq"}',
    }
    types: list[Attribute] = [a.type for a in next(iter(module.body.block.ops)).body.block.args]
    assert dims_of(types[0]) == ("seq", 2)
    assert types[0] == tensor(["seq", 2], f32)


def test_mir_in_the_escape_hatch_is_still_hir():
    flow = flow_of(
        Custom(lambda emit, x: emit(mir.UnaryOp(UnaryKind.NEG, x.id))),
        Custom(lambda emit, x: emit(mir.UnaryOp(UnaryKind.NEG, x.id))),
    )
    module = flow.build(MapWeights({})).module
    assert stage_of(module) == "hir"
    assert stage_of(ModuleOp([])) == "hir"
