"""Layers of models against transformers: delta nets, Qwen3-Next's layers, Mamba's mixer."""

from __future__ import annotations

import oracles
import pytest
from oracles import Layer, assert_golden, named, run
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from rlx.dialects import reductions, sequence
from rlx.dialects.common import dims_of
from rlx.dialects.kinds import BinaryKind, UnaryKind

inputs = oracles.inputs


# Delta nets and the layers of Qwen3-Next


@pytest.mark.parametrize("name", ["fresh", "going"])
def test_the_gated_delta_rule(name: str):
    want, arrays = inputs.golden("delta"), inputs.delta()
    if name == "fresh":
        del arrays["state"]
    got = run(arrays, lambda w, v: w.add_all(sequence.GatedDeltaNetOp(*v.values())))
    for value, key in zip(got, ("y", "state"), strict=True):
        assert_golden(value, want[f"{name}_{key}"])


class Qwen(Layer):
    """A decoder layer of Qwen3-Next, on `[rows, hidden]`."""

    def layer(self, x: SSAValue, kind: str) -> SSAValue:
        normed = self.norm_of_one(x, "input_layernorm", inputs.QWEN_EPS)
        mixed = self.delta_net(normed) if kind == "linear_attention" else self.attention(normed)
        x = self.add(x, mixed)
        normed = self.norm_of_one(x, "post_attention_layernorm", inputs.QWEN_EPS)
        return self.add(x, self.swiglu(normed, "mlp"))

    # The layer with a delta net

    def delta_net(self, x: SSAValue) -> SSAValue:
        w, q = self.w, inputs.QWEN
        rows, keys, values = q["rows"], q["key_heads"] * q["key_dim"], q["heads"] * q["value_dim"]
        group = q["heads"] // q["key_heads"]
        wide = self.linear(x, "linear_attn.in_proj_qkvz")
        parts = (q["key_dim"], q["key_dim"], group * q["value_dim"], group * q["value_dim"])
        grouped = w.reshape(wide, [rows, q["key_heads"], sum(parts)])
        query, key, value, z = self.columns(grouped, *parts)
        gates = w.reshape(
            self.linear(x, "linear_attn.in_proj_ba"), [rows, q["key_heads"], 2 * group]
        )
        b, a = (w.reshape(part, [rows, q["heads"]]) for part in self.columns(gates, group, group))
        flat = [
            w.reshape(part, [rows, n]) for part, n in ((query, keys), (key, keys), (value, values))
        ]
        mixed = self.convolved(w.concat(1, flat), 2 * keys + values)
        query, key, value = self.columns(mixed, keys, keys, values)
        query, key = (
            self.rms(w.reshape(part, [rows, q["key_heads"], q["key_dim"]]), 1e-6, mean=False)
            for part in (query, key)
        )
        value = w.reshape(value, [rows, q["heads"], q["value_dim"]])
        beta = w.unary(UnaryKind.SIGMOID, b)
        y, _ = w.add_all(sequence.GatedDeltaNetOp(query, key, value, self.decay(a), beta))
        weight = self.row("linear_attn.norm.weight", y)
        y = self.mul(
            self.mul(self.rms(y, inputs.QWEN_EPS), weight), self.silu(w.reshape(z, dims_of(y.type)))
        )
        return self.linear(w.reshape(y, [rows, values]), "linear_attn.out_proj")

    def convolved(self, x: SSAValue, width: int) -> SSAValue:
        rows = inputs.QWEN["rows"]
        weight = self.w.reshape(
            self.values["linear_attn.conv1d.weight"], [width, inputs.QWEN["kernel"]]
        )
        y = self.w.add(
            named("vision.depthwise_conv1d_causal", self.w.reshape(x, [1, rows, width]), weight)
        )
        return self.silu(self.w.reshape(y, [rows, width]))

    def decay(self, a: SSAValue) -> SSAValue:
        w = self.w
        rate = w.unary(UnaryKind.EXP, self.row("linear_attn.A_log", a))
        step = w.unary(UnaryKind.SOFTPLUS, self.add(a, self.row("linear_attn.dt_bias", a)))
        return w.unary(UnaryKind.NEG, self.mul(rate, step))

    # The layer with attention

    def attention(self, x: SSAValue) -> SSAValue:
        w, q = self.w, inputs.QWEN
        rows, heads, kv_heads, n = q["rows"], q["q_heads"], q["kv_heads"], q["head_dim"]
        both = w.reshape(self.linear(x, "self_attn.q_proj"), [rows, heads, 2 * n])
        query, gate = self.columns(both, n, n)
        key, value = (
            w.reshape(self.linear(x, f"self_attn.{name}_proj"), [rows, kv_heads, n])
            for name in "kv"
        )
        query = self.rotated(self.norm_of_one(query, "self_attn.q_norm", inputs.QWEN_EPS))
        key = self.rotated(self.norm_of_one(key, "self_attn.k_norm", inputs.QWEN_EPS))
        query, key, value = (w.transpose(part, [1, 0, 2]) for part in (query, key, value))
        y = w.add(reductions.SdpaOp(query, key, value, n**-0.5, causal=True))
        y = w.reshape(w.transpose(y, [1, 0, 2]), [rows, heads * n])
        gate = w.unary(UnaryKind.SIGMOID, w.reshape(gate, [rows, heads * n]))
        return self.linear(self.mul(y, gate), "self_attn.o_proj")

    def rotated(self, x: SSAValue) -> SSAValue:
        """Turn the halves of the first half of each head against each other, by position."""
        w, q = self.w, inputs.QWEN
        rows, heads, n = dims_of(x.type)
        half = n // 4
        rates = [q["base"] ** (-i / half) for i in range(half)]
        place = w.spread(w.iota(0, [rows, 1, 1], f32), [rows, heads, half])
        angles = self.mul(place, w.spread(w.constant(rates, [half], f32), [rows, heads, half]))
        cos, sin = w.unary(UnaryKind.COS, angles), w.unary(UnaryKind.SIN, angles)
        first, second, rest = self.columns(x, half, half, n - 2 * half)
        turned = [
            w.binary(BinaryKind.SUB, self.mul(first, cos), self.mul(second, sin)),
            self.add(self.mul(second, cos), self.mul(first, sin)),
        ]
        return w.concat(2, [*turned, rest])


@pytest.mark.parametrize(
    ("name", "kind"), [("qwen_linear", "linear_attention"), ("qwen_full", "full_attention")]
)
def test_layers_of_qwen3_next(name: str, kind: str):
    arrays = inputs.qwen(kind)
    arrays["x"] = arrays["x"][0]
    (got,) = run(arrays, lambda w, v: [Qwen(w, v).layer(v["x"], kind)])
    assert_golden(got, inputs.golden(name)["y"][0])


# The mixer of Mamba


class Mamba(Layer):
    """The mixer on `[batch * rows, hidden]`."""

    def mixer(self, x: SSAValue) -> SSAValue:
        w, m = self.w, inputs.MAMBA
        inner, state, rank = m["inner"], m["state"], m["rank"]
        x, gate = self.columns(self.linear(x, "in_proj"), inner, inner)
        x = self.convolved(x)
        delta, b, c = self.columns(self.linear(x, "x_proj"), rank, state, state)
        delta = self.linear(delta, "dt_proj")
        delta = self.add(delta, self.row("dt_proj.bias", delta))
        delta = w.unary(UnaryKind.SOFTPLUS, delta)
        a = w.unary(UnaryKind.NEG, w.unary(UnaryKind.EXP, self.values["A_log"]))
        x, delta, b, c, gate = (self.batches(v) for v in (x, delta, b, c, gate))
        operands = (x, delta, a, b, c, self.values["D"], gate)
        y, _ = w.add_all(named("recurrent.selective_scan", *operands, skip=True, gate=True))
        return self.linear(w.reshape(y, [m["batch"] * m["rows"], inner]), "out_proj")

    def batches(self, x: SSAValue) -> SSAValue:
        m = inputs.MAMBA
        return self.w.reshape(x, [m["batch"], m["rows"], dims_of(x.type)[1]])

    def convolved(self, x: SSAValue) -> SSAValue:
        weight = self.values["conv1d.weight"]
        weight = self.w.reshape(weight, [inputs.MAMBA["inner"], inputs.MAMBA["kernel"]])
        y = self.w.add(named("vision.depthwise_conv1d_causal", self.batches(x), weight))
        y = self.w.reshape(y, dims_of(x.type))
        return self.silu(self.add(y, self.row("conv1d.bias", y)))


def test_the_mixer_of_mamba():
    arrays, m = inputs.mamba(), inputs.MAMBA
    arrays["x"] = arrays["x"].reshape(-1, m["hidden"])
    (got,) = run(arrays, lambda w, v: [Mamba(w, v).mixer(v["x"])])
    want = inputs.golden("mamba")["y"]
    assert_golden(got.reshape(want.shape), want)
