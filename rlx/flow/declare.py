"""What the context declares: the symbols and types of weights, and functions of outer values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    StringAttr,
    TensorType,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.contract.quant import WEIGHT_FORMATS
from rlx.dialects import hir
from rlx.dialects.common import QuantType, tensor
from rlx.dialects.infer import STORED
from rlx.errors import RlxError
from rlx.flow.source import LAYER, WeightInfo


def weight_type(key: str, info: WeightInfo) -> TensorType[Attribute]:
    """Return the type of a weight in its own format. Raises RlxError for an unknown format."""
    if info.format not in WEIGHT_FORMATS:
        raise RlxError(
            f"weight {key!r}: the format {info.format!r} is not supported: "
            f"expected one of {', '.join(WEIGHT_FORMATS)}"
        )
    element = STORED.get(info.format)
    return tensor(info.shape, element or QuantType(StringAttr(info.format)))


def symbol_of(key: str) -> str:
    """Return a symbol for a weight's key: `blk.{layer}.attn_q.weight` gives `attn_q`."""
    stem = key.rpartition(f"{LAYER}.")[2].removesuffix(".weight")
    symbol = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_")
    return symbol if symbol and not symbol[0].isdigit() else f"w_{symbol}"


def rank(op: Operation) -> int:
    """Return the place of a declaration among those of a module: weights, states, functions."""
    kinds = (hir.WeightOp, hir.StateOp, FuncOp)
    return next((i for i, kind in enumerate(kinds) if isinstance(op, kind)), len(kinds))


def named(names: Iterable[str]) -> ArrayAttr[DictionaryAttr]:
    """Return the attributes of arguments or results that have names."""
    return ArrayAttr(DictionaryAttr({"rlx.name": StringAttr(name)}) for name in names)


def close(block: Block) -> list[SSAValue]:
    """Make arguments of the outer values that a block uses; return them in order of first use."""
    inside: set[SSAValue] = set(block.args)
    arguments: dict[SSAValue, SSAValue] = {}
    for op in block.walk():
        for i, operand in enumerate(op.operands):
            if operand in inside:
                continue
            if operand not in arguments:
                argument = block.insert_arg(operand.type, len(block.args))
                argument.name_hint = operand.name_hint
                arguments[operand] = argument
            op.operands[i] = arguments[operand]
        inside.update(op.results)
        for region in op.regions:
            for inner in region.blocks:
                inside.update(inner.args)
    return list(arguments)
