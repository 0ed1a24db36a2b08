"""Model variants, their cache keys, and the bindings of symbolic dimensions."""

import subprocess
import sys

import pytest

from rlx.contract.symbols import (
    BATCH,
    PAST_SEQ,
    ROWS,
    SEQ,
    SYMBOL_NAMES,
    SYMBOL_NUMBERS,
    DimBinding,
)
from rlx.contract.variant import ModelPhase, ModelVariant
from rlx.errors import RlxError


def test_symbol_numbers_and_names():
    assert (BATCH, SEQ, ROWS, PAST_SEQ) == (0, 1, 2, 3)
    assert SYMBOL_NAMES == {0: "batch", 1: "seq", 2: "rows", 3: "past"}
    assert all(SYMBOL_NAMES[number] == name for name, number in SYMBOL_NUMBERS.items())


def test_binding_set_get_iterate():
    binding = DimBinding()
    assert len(binding) == 0
    binding.set(9, 5)
    binding.set(SEQ, 3)
    binding.set(9, 6)
    assert list(binding) == [(SEQ, 3), (9, 6)]
    assert binding.get(9) == 6
    assert binding.get(BATCH) is None
    assert binding == DimBinding.from_pairs([(9, 1), (SEQ, 3), (9, 6)])
    assert binding != DimBinding.from_pairs([(SEQ, 3)])
    with pytest.raises(RlxError, match=r"seq.*-1"):
        binding.set(SEQ, -1)


def test_binding_presets():
    assert list(DimBinding.batch_seq(1, 7)) == [(BATCH, 1), (SEQ, 7)]
    assert list(DimBinding.batch_seq(3, 7)) == [(BATCH, 3), (SEQ, 7), (ROWS, 21)]
    assert list(DimBinding.batch_past_seq(3, 7)) == [(BATCH, 3), (PAST_SEQ, 7)]


def test_prefill_binds_batch_and_seq():
    binding = ModelVariant.prefill(2, 128).dim_binding()
    assert binding.get(BATCH) == 2
    assert binding.get(SEQ) == 128
    assert binding.get(ROWS) == 256
    assert binding.get(PAST_SEQ) is None


def test_decode_binds_past_and_new():
    variant = ModelVariant.decode(1, 64, 1)
    assert (variant.seq, variant.past_seq, variant.phase) == (1, 64, ModelPhase.DECODE)
    assert list(variant.dim_binding()) == [(BATCH, 1), (SEQ, 1), (PAST_SEQ, 64)]
    # Rows belong to the prefill binding: a batched decode has none.
    assert ModelVariant.decode(4, 64, 2).dim_binding().get(ROWS) is None


def test_decode_without_past_binds_like_prefill():
    variant = ModelVariant(2, 3, None, ModelPhase.DECODE)
    assert variant.dim_binding() == DimBinding.batch_seq(2, 3)


def test_encoder_and_extras():
    variant = ModelVariant.encoder(1, 16).with_extra(7, 4).with_extra(SEQ, 9).with_extra(7, 5)
    assert variant.phase is ModelPhase.ENCODER
    assert variant.extra == [(7, 4), (SEQ, 9), (7, 5)]
    assert list(variant.dim_binding()) == [(BATCH, 1), (SEQ, 9), (7, 5)]


def test_extras_of_one_variant_do_not_leak_into_another():
    base = ModelVariant.prefill(1, 8)
    extended = base.with_extra(5, 1)
    assert base.extra == []
    assert base != extended
    assert base == ModelVariant.prefill(1, 8)


def test_variant_is_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(ModelVariant.prefill(1, 8))


def test_cache_key_tells_variants_apart():
    variants = [
        ModelVariant.prefill(1, 8),
        ModelVariant.decode(1, 7, 1),
        ModelVariant.encoder(1, 8),
        ModelVariant(1, 8),
        ModelVariant.prefill(8, 1),
        ModelVariant(1, 8, 0, ModelPhase.PREFILL),
        ModelVariant.prefill(1, 8).with_extra(1, 2),
        ModelVariant.prefill(1, 8).with_extra(1, 2).with_extra(3, 4),
        ModelVariant.prefill(1, 8).with_extra(3, 4).with_extra(1, 2),
        ModelVariant.prefill(1, 8).with_extra(12, 3),
        ModelVariant.prefill(1, 8).with_extra(1, 23),
    ]
    keys = [variant.cache_key() for variant in variants]
    assert len(set(keys)) == len(variants)
    assert all(0 <= key < 2**64 for key in keys)
    assert ModelVariant.prefill(1, 8).cache_key() == keys[0]


def test_cache_key_is_the_same_in_another_process():
    code = (
        "from rlx.contract.variant import ModelVariant as V;"
        "print(V.decode(2, 64, 1).with_extra(9, 5).cache_key())"
    )
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(other) == ModelVariant.decode(2, 64, 1).with_extra(9, 5).cache_key()


def test_contract_imports_neither_xdsl_nor_numpy():
    code = (
        "import sys, rlx.contract, rlx.passes.arena, rlx.passes.plan_check;"
        "print([m for m in ('xdsl', 'numpy', 'llvmlite') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
