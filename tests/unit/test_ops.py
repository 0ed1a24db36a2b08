"""
Every operation of the records against its meaning: sizes, elements, levels, threads, layouts, text.

The sample of `make test` has one draw for each of a few elements at the host's level, and one at
some other level; under RLX_FUZZ=full there are many for each element at every level. `op_cases`
says what a run is held to.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator

import pytest
from kernels import levels
from op_cases import Batch, among_others, batches, drawn, of_any_size
from xdsl.dialects.builtin import ModuleOp, f32, f64, i1
from xdsl.ir import Attribute, Operation
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.ops.record import FAMILIES, Record
from rlx.ops.registry import all_records
from rlx.ops.samples import DTYPES
from rlx.passes.verify_stage import verify_stage

RECORDS = all_records()
every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)

Count = Callable[[int, int], int]
FEW = 5
"""Elements of an operation in a sample; it has ten at most."""


def rotation(record: Record) -> int:
    """Return a number by which records differ, so that samples of them differ too."""
    return zlib.crc32(record.name.encode())


def half_of_them(part: int) -> pytest.MarkDecorator:
    """Return the mark of a test of all records, in a sample of about half of them."""
    full = os.environ.get("RLX_FUZZ") == "full"
    chosen = [r for r in RECORDS if full or rotation(r) % 2 == part]
    return pytest.mark.parametrize("record", chosen, ids=lambda r: r.name)


@every_record
def test_an_operation_is_what_it_means(record: Record, fuzz_count: Count):
    elements, turn, seeds = record.elements, rotation(record), range(fuzz_count(12, 1))
    few = fuzz_count(len(elements), min(len(elements), FEW))
    chosen = [elements[i % len(elements)] for i in range(turn, turn + few)]
    for batch in batches([drawn(record, e, seed) for seed in seeds for e in chosen]):
        batch.check_text()
        batch.check(["host"])


@half_of_them(1)
def test_an_operation_is_the_same_at_every_level(record: Record, fuzz_count: Count):
    others, elements, turn = levels()[:-1], record.elements, rotation(record)
    for i in range(turn, turn + fuzz_count(len(others), 1)):
        level = others[i % len(others)]
        chosen = [elements[j % len(elements)] for j in range(i, i + fuzz_count(len(elements), 1))]
        seeds = range(100 * i, 100 * i + fuzz_count(6, 1))
        for batch in batches([drawn(record, e, seed) for seed in seeds for e in chosen]):
            batch.check([level], threads=[1 + i % 2])


@half_of_them(0)
def test_an_operation_among_others(record: Record, fuzz_count: Count):
    for seed in range(300, 300 + fuzz_count(12, 1)):
        element = record.elements[(rotation(record) + seed) % len(record.elements)]
        Batch([among_others(drawn(record, element, seed))]).check(["host"])


@every_record
def test_dimensions_may_have_names(record: Record, fuzz_count: Count):
    """Where an operation takes them, which it says by its verifier."""
    for seed in range(fuzz_count(12, 1)):
        element = record.elements[(rotation(record) + seed) % len(record.elements)]
        for names in range(1, 1 + fuzz_count(2, 1)):
            d = of_any_size(drawn(record, element, 200 + seed), names)
            if d is not None:
                check_unless_refused(Batch([d]))


def check_unless_refused(batch: Batch) -> None:
    """A kernel may want more numbers than the verifier knows of; then it has to say so."""
    try:
        batch.check(["host"])
    except RlxError as e:
        if "number" not in str(e):
            raise


# Verifiers


def wrong_types(type_: Attribute) -> Iterator[Attribute]:
    """Return types like one of an operation's, but for a dimension or the element."""
    dims, element = dims_of(type_), element_of(type_)
    yield tensor([*dims, 3], element)
    yield tensor(dims, i1 if element != i1 else f64)
    yield tensor(dims, f64 if element == f32 else f32)
    for i, d in enumerate(dims):
        yield tensor([*dims[:i], *dims[i + 1 :]], element)
        if isinstance(d, int):
            yield tensor([*dims[:i], d + 1, *dims[i + 1 :]], element)


def broken(batch: Batch, record: Record) -> Iterator[Operation]:
    """Return an operation of a record with one operand or result of another type, or one less."""

    def fresh() -> Operation:
        ops = batch.module.clone().walk()
        return next(op for op in ops if isinstance(op, record.op))

    op = fresh()
    for i, value in enumerate(op.operands):
        for type_ in wrong_types(value.type):
            changed = fresh()
            block = changed.parent_block()
            assert block is not None
            changed.operands[i] = block.insert_arg(type_, 0)
            yield changed
    for i, value in enumerate(op.results):
        for type_ in wrong_types(value.type):
            changed = fresh()
            Rewriter.replace_value_with_new_type(changed.results[i], type_)
            yield changed
    if isinstance(op, NamedOp) and op.operands:
        changed = fresh()
        changed.operands = changed.operands[:-1]
        yield changed


@every_record
def test_wrong_types_are_refused(record: Record):
    refused = 0
    for changed in broken(Batch([drawn(record, record.elements[0], 3)]), record):
        module = changed.get_toplevel_object()
        assert isinstance(module, ModuleOp)
        try:
            changed.verify(verify_nested_ops=False)
            verify_stage(module, "hir")
        except VerifyException:
            refused += 1
    assert refused > 0


# The table


@every_record
def test_a_record_is_complete(record: Record):
    assert record.family in FAMILIES
    assert set(record.elements) <= set(DTYPES)
    assert record.kinds
    if issubclass(record.op, NamedOp):
        assert record.meaning is not None
        assert (record.expand is None) == record.op.LAUNCHED
        assert bool(record.kernel) == record.op.LAUNCHED
        assert record.op.KIND in record.kinds
    else:
        assert record.meaning is None


def test_names_are_different():
    names = [r.name for r in RECORDS]
    assert len(names) == len(set(names))
