"""Gradients of operations: each gives those by some operand, from the operands and the upstream."""

from __future__ import annotations

from xdsl.ir import Dialect

from rlx.ops import (
    grad_attention,
    grad_indexing,
    grad_modulation,
    grad_norm,
    grad_quant,
    grad_signal,
    grad_unary,
    grad_vision,
)

RECORDS = (
    *grad_unary.RECORDS,
    *grad_norm.RECORDS,
    *grad_vision.RECORDS,
    *grad_attention.RECORDS,
    *grad_quant.RECORDS,
    *grad_signal.RECORDS,
    *grad_indexing.RECORDS,
    *grad_modulation.RECORDS,
)

Grad = Dialect("grad", [r.op for r in RECORDS], [])
