"""`rlx ops`, and that the operations are all of the contract's kinds."""

from __future__ import annotations

import json

import pytest

from rlx.contract.opkind import OpKind
from rlx.ops.record import FAMILIES
from rlx.ops.registry import all_records
from rlx.tools.cli import main
from rlx.tools.ops import ELSEWHERE, missing

ORIGINAL = list(OpKind)[: list(OpKind).index(OpKind.STOP_GRADIENT)]
"""The kinds of the original's version 2.2; what follows came later."""
LEFT_OUT = {
    kind for kind in ORIGINAL if "GAUSSIAN_SPLAT" in kind.name or "SCAN_BACKWARD" in kind.name
}
"""Splats, and the gradients of control flow."""
LATER = {
    OpKind.STOP_GRADIENT, OpKind.FMA, OpKind.REVERSE, OpKind.PAD, OpKind.SLICE, OpKind.CLAMP,
    OpKind.TILE, OpKind.TRILU, OpKind.SORT, OpKind.ARG_SORT, OpKind.ARG_MAX, OpKind.ARG_MIN,
    OpKind.CUM_PROD, OpKind.CUM_MAX, OpKind.SCATTER_ND, OpKind.SCATTER_ELEMENTS, OpKind.GATHER_ND,
    OpKind.GATHER_ELEMENTS, OpKind.RNG_NORMAL, OpKind.RNG_UNIFORM, OpKind.BATCH_NORM_INFERENCE,
    OpKind.INTERPOLATE3D, OpKind.IM2_COL, OpKind.CONV3D, OpKind.CONV_TRANSPOSE3D, OpKind.LSTM,
    OpKind.GRU, OpKind.RNN, OpKind.SOFTMAX_CROSS_ENTROPY, OpKind.LOG_MEL, OpKind.LOG_MEL_BACKWARD,
    OpKind.WELCH_PEAKS,
}  # fmt: skip
"""Those of later versions that are promised too."""


def test_every_kind_that_is_promised_is_there():
    assert not set(missing()) & ({*ORIGINAL, *LATER} - LEFT_OUT)


def test_a_kind_is_an_operation_or_has_a_reason():
    kinds = {kind for record in all_records() for kind in record.kinds}
    assert not kinds & ELSEWHERE.keys()
    assert LEFT_OUT <= set(missing())
    assert {*kinds, *ELSEWHERE, *missing()} == set(OpKind)


def test_the_table(capsys: pytest.CaptureFixture):
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operation", "elements", "kernels", "lowered", "to", "kinds"]
    for record in all_records():
        (line,) = (line for line in lines if line.split()[:1] == [record.name])
        assert record.family in line
        assert all(kind.value in line for kind in record.kinds)


def test_the_table_as_json(capsys: pytest.CaptureFixture):
    assert main(["ops", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in table] == [r.name for r in all_records()]
    for row, record in zip(table, all_records(), strict=True):
        assert row["elements"] == list(record.elements)
        assert row["family"] in FAMILIES
        assert row["lowering"] in ("kernel", "primitives")
        assert row["kinds"] == [kind.value for kind in record.kinds]
