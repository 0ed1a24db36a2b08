"""Passes that are wrong on purpose, and programs to try them on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, StringAttr, f64
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from rlx.dialects.hir import StateOp
from rlx.dialects.kinds import BinaryAttr, BinaryKind, UnaryAttr, UnaryKind
from rlx.dialects.mir import AppendOp, BinaryOp, UnaryOp
from rlx.passes.registry import PASSES

LAYERS = """\
builtin.module @layers attributes {rlx.dims = #hir.dim_table<rows = 1 to 64>} {
  hir.weight @norm "layer.{layer}.norm" : tensor<64xf32>
  hir.weight @w "layer.{layer}.w" : tensor<64x64x!hir.q<q8_0>>
  func.func private @layer(%x: tensor<?x64xf32, #hir.dims<rows, _>>) \
-> tensor<?x64xf32, #hir.dims<rows, _>> {
    %gain = hir.load_weight @norm : tensor<64xf32>
    %h = hir.rms_norm %x, %gain eps 1.0e-5 : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64xf32>
    %w = hir.load_weight @w : tensor<64x64x!hir.q<q8_0>>
    %y = hir.linear %h, %w : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.q<q8_0>> \
-> tensor<?x64xf32, #hir.dims<rows, _>>
    %sum = mir.binary add %x, %y : tensor<?x64xf32, #hir.dims<rows, _>>
    func.return %sum : tensor<?x64xf32, #hir.dims<rows, _>>
  }
  func.func @main(%x: tensor<?x64xf32, #hir.dims<rows, _>> {rlx.name = "x"}) \
-> (tensor<?x64xf32, #hir.dims<rows, _>> {rlx.name = "y"}, \
tensor<?x64xf32, #hir.dims<rows, _>> {rlx.name = "z"}) {
    %silu = mir.unary silu %x : tensor<?x64xf32, #hir.dims<rows, _>>
    %y = hir.repeat @layer(%silu) layers 0 to 3 : (tensor<?x64xf32, #hir.dims<rows, _>>) \
-> tensor<?x64xf32, #hir.dims<rows, _>>
    %z = mir.unary exp %x : tensor<?x64xf32, #hir.dims<rows, _>>
    func.return %y, %z : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>
  }
}
"""
"""A layer called three times, beside an output of its own."""

STATE = """\
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1, past = 0 to 8, keys = past + seq>, \
rlx.advance = {past = "seq"}} {
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  hir.state @v values head_dim 16 : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"})
      -> (tensor<1x16xf32> {rlx.name = "y"}) {
    %k = hir.append %x to @k start "past" : tensor<1x16xf32> \
-> tensor<?x16xf32, #hir.dims<keys, _>>
    %v = hir.append %x to @v start "past" : tensor<1x16xf32> \
-> tensor<?x16xf32, #hir.dims<keys, _>>
    %y = hir.attention %x, %k, %v head_dim 16 scale 0.25 : tensor<1x16xf32>, \
tensor<?x16xf32, #hir.dims<keys, _>>
    func.return %y : tensor<1x16xf32>
  }
}
"""


def _of(module: ModuleOp, cls: type[Operation]) -> list[Operation]:
    return [op for op in module.walk() if isinstance(op, cls)]


def _silu_to_relu(module: ModuleOp) -> None:
    for op in _of(module, UnaryOp):
        if op.kind.data is UnaryKind.SILU:
            op.properties["kind"] = UnaryAttr(UnaryKind.RELU)


def _add_to_sub(module: ModuleOp) -> None:
    for op in _of(module, BinaryOp):
        op.properties["kind"] = BinaryAttr(BinaryKind.SUB)


def _exp_of_exp(module: ModuleOp) -> None:
    for op in _of(module, UnaryOp):
        if op.kind.data is UnaryKind.EXP:
            # Of 1,000 exponentials the result is infinite.
            last = op
            for _ in range(1000):
                new = UnaryOp(UnaryKind.EXP, last.result)
                last.parent.insert_op_after(new, last)
                last = new
            op.result.replace_uses_with_if(last.result, lambda use: use.operation is not op.next_op)


def _clobber(module: ModuleOp) -> None:
    """Append other rows in the place of the first ones when those have been read."""
    for op in _of(module, AppendOp):
        negative = UnaryOp(UnaryKind.NEG, op.input)
        again = op.clone()
        again.operands = [negative.result, op.state]
        op.parent.insert_ops_before([negative, again], op.parent.last_op)


def _misspell(module: ModuleOp) -> None:
    for op in module.ops:
        if isinstance(op, StateOp):
            op.sym_name = StringAttr(f"{op.sym_name.data}_lost")


def _crash(module: ModuleOp) -> None:
    if any(op.name.endswith(".rms_norm") for op in module.walk()):
        raise KeyError("lost")


def _eps(module: ModuleOp) -> None:
    for op in module.walk():
        if op.name.endswith(".rms_norm"):
            op.properties["eps"] = FloatAttr(1e-2, f64)


HOWS = {
    "silu-to-relu": _silu_to_relu,
    "add-to-sub": _add_to_sub,
    "exp-of-exp": _exp_of_exp,
    "clobber": _clobber,
    "misspell": _misspell,
    "crash": _crash,
    "eps": _eps,
    "nothing": lambda _: None,
}


@dataclass(frozen=True)
class WrongPass(ModulePass):
    """Change what a program computes."""

    name = "wrong"
    how: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        HOWS[self.how](op)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSES, "wrong", lambda: WrongPass)
