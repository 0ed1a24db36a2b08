"""`fuse-attention`: what it takes for attention, why it declines, numbers before and after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from rlx.dialects import mir
from rlx.passes.diagnostics import verify
from rlx.passes.fuse_attention import FuseAttentionPass
from rlx.passes.fusion_report import fusion_report
from rlx.passes.source import context, parse
from rlx.reference import Reference

H, M, N, D, E = 4, 3, 5, 8, 6


def t(*dims: int, element: str = "f32") -> str:
    return f"tensor<{'x'.join([*map(str, dims), element])}>"


@dataclass
class Case:
    """Attention of `[2, H, m, D]` on n keys, with some lines between and around its products."""

    scores: str = f"%s = mir.dot %q, %k rhs_t : {t(2, H, M, D)}, {t(2, H, N, D)} -> {t(2, H, M, N)}"
    between: str = ""
    last: str = "%s"
    output: str = f"%y = mir.dot %p, %v : {t(2, H, M, N)}, {t(2, H, N, E)} -> {t(2, H, M, E)}"
    q: str = t(2, H, M, D)
    k: str = t(2, H, N, D)
    v: str = t(2, H, N, E)
    mask: str = t(M, N)
    shape: str = t(2, H, M, N)
    y: str = t(2, H, M, E)
    results: str = "%y"

    def module(self) -> ModuleOp:
        names = self.results.split(", ")
        types = [self.shape if n != "%y" else self.y for n in names]
        outs = ", ".join(f'{x} {{rlx.name = "{n[1:]}"}}' for n, x in zip(names, types, strict=True))
        args = {"q": self.q, "k": self.k, "v": self.v, "mask": self.mask}
        ins = ", ".join(f'%{n}: {x} {{rlx.name = "{n}"}}' for n, x in args.items())
        text = f"""
builtin.module {{
  func.func @main({ins}) -> ({outs}) {{
    {self.scores}
    {self.between}
    %p = mir.softmax {self.last} : {self.shape}
    {self.output}
    func.return {self.results} : {", ".join(types)}
  }}
}}"""
        return parse(context(), text.encode(), "attention.mlir")


def number(name: str, value: float | str, shape: str) -> str:
    return (
        f"%{name}0 = mir.constant dense<{value}> : tensor<f32>\n"
        f"%{name} = mir.broadcast %{name}0 : tensor<f32> -> {shape}\n"
    )


S = t(2, H, M, N)
SCALED = number("c", 0.25, S) + f"%sc = mir.binary mul %s, %c : {S}\n"
MASKED = f"%mb = mir.broadcast %mask : {t(M, N)} -> {S}\n%m = mir.binary add %mb, %sc : {S}\n"
LOW = number("low", "-1.0e30", S)


def causal(kind: str, a: str, b: str, sides: str) -> str:
    """A choice by comparing indices of rows, moved to the last, with those of keys."""
    i32, cond = t(M, N, element="i32"), t(M, N, element="i1")
    return LOW + (
        f"%i = mir.iota axis 0 : {i32}\n%j = mir.iota axis 1 : {i32}\n"
        f"%two = mir.constant dense<{N - M}> : {i32}\n%r = mir.binary add %i, %two : {i32}\n"
        f"%q0 = mir.compare {kind} {a}, {b} : {i32} -> {cond}\n"
        f"%q1 = mir.broadcast %q0 : {cond} -> {t(2, H, M, N, element='i1')}\n"
        f"%m = mir.select %q1, {sides} : {t(2, H, M, N, element='i1')}, {S}\n"
    )


def grouped(name: str, width: int) -> str:
    """Two heads of keys or values, each repeated for two heads of queries."""
    return (
        f"%{name}1 = mir.reshape %{name} : {t(2, 2, N, width)} -> {t(2, 2, 1, N, width)}\n"
        f"%{name}2 = mir.broadcast %{name}1 : {t(2, 2, 1, N, width)} -> {t(2, 2, 2, N, width)}\n"
        f"%{name}3 = mir.reshape %{name}2 : {t(2, 2, 2, N, width)} -> {t(2, H, N, width)}\n"
    )


FLAT = Case(
    scores=f"%s = mir.dot %q, %k rhs_t : {t(M, D)}, {t(N, D)} -> {t(M, N)}",
    between=number("c", 2.0, t(M, N))
    + f"%sc = mir.binary div %s, %c : {t(M, N)}\n%m = mir.binary add %sc, %mask : {t(M, N)}",
    last="%m",
    output=f"%y = mir.dot %p, %v : {t(M, N)}, {t(N, E)} -> {t(M, E)}",
    q=t(M, D), k=t(N, D), v=t(N, E), shape=t(M, N), y=t(M, E),
)  # fmt: skip

FUSED = {
    "bare": (Case(), "scale 1.0 :"),
    "scaled": (Case(between=SCALED, last="%sc"), "scale 0.25 :"),
    "masked": (Case(between=SCALED + MASKED, last="%m"), "mask"),
    "mask of each batch": (
        Case(
            between=f"%mb = mir.broadcast %mask : {t(2, 1, 1, N)} -> {S}\n"
            f"%m = mir.binary add %s, %mb : {S}\n",
            last="%m", mask=t(2, 1, 1, N),
        ),
        "mask",
    ),
    "causal": (Case(between=SCALED + causal("ge", "%r", "%j", "%sc, %low"), last="%m"), "causal"),
    "causal, the other way round": (
        Case(between=causal("lt", "%r", "%j", "%low, %s"), last="%m"), "causal",
    ),
    "causal mask": (
        Case(
            between=SCALED
            + number("zero", 0.0, S)
            + causal("le", "%j", "%r", "%zero, %low").replace("%m =", "%added =")
            + f"%m = mir.binary add %sc, %added : {S}\n",
            last="%m",
        ),
        "causal",
    ),
    "scaled query": (
        Case(
            scores=number("c", 0.5, t(2, H, M, D))
            + f"%qs = mir.binary mul %c, %q : {t(2, H, M, D)}\n"
            + Case().scores.replace("%q,", "%qs,"),
        ),
        "scale 0.5 :",
    ),
    "keys transposed": (
        Case(
            scores=f"%kt = mir.transpose %k [0, 1, 3, 2] : {t(2, H, N, D)} -> {t(2, H, D, N)}\n"
            f"%s = mir.dot %q, %kt : {t(2, H, M, D)}, {t(2, H, D, N)} -> {S}"
        ),
        "mir.sdpa %q, %k, %v",
    ),
    "keys given transposed": (
        Case(
            scores=f"%s = mir.dot %q, %k : {t(2, H, M, D)}, {t(2, H, D, N)} -> {S}",
            k=t(2, H, D, N),
        ),
        "mir.transpose %k",
    ),
    "values given transposed": (
        Case(
            output=f"%y = mir.dot %p, %v rhs_t : {S}, {t(2, H, E, N)} -> {t(2, H, M, E)}",
            v=t(2, H, E, N),
        ),
        "mir.transpose %v",
    ),
    "grouped heads": (
        Case(
            scores=grouped("k", D) + Case().scores.replace("%k ", "%k3 "),
            output=grouped("v", E) + Case().output.replace("%v ", "%v3 "),
            k=t(2, 2, N, D), v=t(2, 2, N, E),
        ),
        "mir.sdpa %q, %k, %v",
    ),
    "one head of keys": (
        Case(
            scores=f"%kb = mir.broadcast %k : {t(2, 1, N, D)} -> {t(2, H, N, D)}\n"
            + Case().scores.replace("%k ", "%kb "),
            output=f"%vb = mir.broadcast %v : {t(2, 1, N, E)} -> {t(2, H, N, E)}\n"
            + Case().output.replace("%v ", "%vb "),
            k=t(2, 1, N, D), v=t(2, 1, N, E),
        ),
        "mir.sdpa %q, %k, %v",
    ),
    "grouped keys alone": (
        Case(scores=grouped("k", D) + Case().scores.replace("%k ", "%k3 "), k=t(2, 2, N, D)),
        "mir.sdpa %q, %k3, %v",
    ),
    "no heads": (FLAT, "scale 0.5 :"),
}  # fmt: skip

REFUSED = {
    "several consumers of mir.dot": Case(results="%y, %s"),
    "several consumers of mir.binary": Case(between=SCALED, last="%sc", results="%y, %sc"),
    "several consumers of mir.softmax": Case(results="%y, %p"),
    "the weights are not the left side": Case(
        output=f"%y = mir.dot %v rhs_t, %p rhs_t : {t(2, H, N, E)}, {S} -> {t(2, H, E, M)}".replace(
            "%v rhs_t", "%v lhs_t"
        ),
        y=t(2, H, E, M),
    ),
    "the mask is scaled too": Case(
        between=f"%mb = mir.broadcast %mask : {t(M, N)} -> {S}\n%m = mir.binary add %s, %mb : {S}\n"
        + number("c", 0.25, S)
        + f"%sc = mir.binary mul %m, %c : {S}\n",
        last="%sc",
    ),
    "two masks": Case(
        between=SCALED + MASKED + f"%m2 = mir.binary add %m, %mb : {S}\n", last="%m2"
    ),
    "the mask differs from head to head": Case(
        between=f"%m = mir.binary add %s, %mask : {S}\n", last="%m", mask=S
    ),
    "a choice of scores that is not causal": Case(
        between=causal("ge", "%i", "%j", "%s, %low"), last="%m"
    ),
    "mul of the scores and a tensor": Case(
        between=f"%m = mir.binary mul %s, %mask : {S}\n", last="%m", mask=S
    ),
}


def apply(module: ModuleOp) -> ModuleOp:
    FuseAttentionPass(report=True).apply(Context(), module)
    verify(module)
    return module


def run(module: ModuleOp, case: Case) -> np.ndarray:
    rng = np.random.default_rng(11)
    inputs = {
        name: rng.standard_normal([int(n) for n in type_[7:-1].split("x")[:-1]])
        for name, type_ in {"q": case.q, "k": case.k, "v": case.v, "mask": case.mask}.items()
    }
    return Reference(module, {}).run(inputs)["y"]


@pytest.mark.parametrize("name", FUSED)
def test_attention_is_found_and_computes_the_same(name: str):
    case, shown = FUSED[name]
    module = apply(case.module())
    (entry,) = fusion_report(module)
    assert entry.fused, entry.reason
    assert entry.launches_after < entry.launches_before
    assert name.endswith("transposed") or entry.bytes_after < entry.bytes_before
    assert shown in str(module)
    ops = list(module.walk())
    assert sum(isinstance(op, mir.SdpaOp) for op in ops) == 1
    assert not any(isinstance(op, mir.DotOp | mir.SoftmaxOp) for op in ops)
    np.testing.assert_allclose(run(module, case), run(case.module(), case), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_attention_stays(reason: str):
    case = REFUSED[reason]
    before = case.module()
    (entry,) = fusion_report(apply(module := case.module()))
    assert reason in entry.reason
    del module.attributes["rlx.fusion_report"]
    assert str(module) == str(before)


def test_a_gate_may_ask_for_more():
    module = Case().module()
    FuseAttentionPass(target="wgpu", report=True).apply(Context(), module)
    verify(module)
    (entry,) = fusion_report(module)
    assert "10000 ns" in entry.reason
    del module.attributes["rlx.fusion_report"]
    assert str(module) == str(Case().module())
