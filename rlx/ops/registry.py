"""Which file holds a named operation; a file is loaded when an operation of it is first named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from rlx.errors import RlxError

if TYPE_CHECKING:
    # Not at run time: reading IR text asks for the names alone.
    from rlx.ops.record import Record

DIALECTS: dict[str, tuple[str, str]] = {
    "tensor": ("rlx.ops.tensor", "Tensor"),
    "contraction": ("rlx.ops.contraction", "Contraction"),
    "norm": ("rlx.ops.norm", "Norm"),
    "vision": ("rlx.ops.vision", "Vision"),
    "quant": ("rlx.ops.quant", "Quant"),
    "loss": ("rlx.ops.loss", "Loss"),
    "grad": ("rlx.ops.grad", "Grad"),
    "indexing": ("rlx.ops.indexing", "Indexing"),
    "cumulative": ("rlx.ops.cumulative", "Cumulative"),
    "random": ("rlx.ops.random", "Random"),
    "recurrent": ("rlx.ops.recurrent", "Recurrent"),
    "linalg": ("rlx.ops.linalg", "Linalg"),
    "transformer": ("rlx.ops.transformer", "Transformer"),
    "fused": ("rlx.ops.fused", "Fused"),
}
"""Name of a dialect -> its module, and the name of its `Dialect` there."""

MORE: tuple[str, ...] = (
    "rlx.ops.records_primitives",
    "rlx.ops.records_moves",
    "rlx.ops.records_sequence",
    "rlx.ops.records_hir",
)
"""Modules with records of operations whose classes are in `rlx.dialects`."""


@cache
def _records(module: str) -> dict[str, Record]:
    records: Sequence[Record] = import_module(module).RECORDS
    return {r.name: r for r in records}


def record_of(name: str) -> Record:
    """Return the record of a named operation. Raises RlxError where there is none."""
    dialect = name.partition(".")[0]
    if dialect in DIALECTS:
        record = _records(DIALECTS[dialect][0]).get(name)
        if record is not None:
            return record
    raise RlxError(f"no operation is known as {name}")


def all_records() -> list[Record]:
    """Return every record, by family of files; all files are loaded."""
    modules = [*MORE, *(module for module, _ in DIALECTS.values())]
    return [record for module in modules for record in _records(module).values()]
