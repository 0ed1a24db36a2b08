"""Named operations on given arrays: what their records say they mean, and what they expand to."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_cases import type_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region

from rlx.dialects.named import NamedOp, Option
from rlx.ops.registry import record_of
from rlx.passes.legalize_hir import LegalizeHirPass
from rlx.passes.source import context


def made(op: type[NamedOp], types: list[Attribute], **options: Option) -> NamedOp:
    """Return an operation on values of types, verified."""
    new = op(*Block(arg_types=types).args, **options)
    new.verify()
    return new


def meaning(op: type[NamedOp], *arrays: np.ndarray, **options: Option) -> Any:
    """Return what an operation gives, as its record says; numbers are float64."""
    new = made(op, [type_of(a) for a in arrays], **options)
    return record_of(op.name).meaning(new, *arrays)


def expanded(op: type[NamedOp], types: list[Attribute], **options: Option) -> list[str]:
    """Return the names of the operations that one becomes."""
    block = Block(arg_types=types)
    new = op(*block.args, **options)
    block.add_ops([new, ReturnOp(*new.results)])
    results = [r.type for r in new.results]
    module = ModuleOp([FuncOp("main", (types, results), Region(block))])
    LegalizeHirPass().apply(context(), module)
    module.verify()
    return [o.name.removeprefix("mir.") for o in block.ops if not isinstance(o, ReturnOp)]
