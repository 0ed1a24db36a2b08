"""Records of control flow, of operations over the rows of a sequence, and of signal processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Block, SSAValue

from rlx.contract.opkind import OpKind
from rlx.dialects import control, sequence, signal
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind
from rlx.dialects.scan_op import ScanOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FFT, FLOATS, ROWS, SCAN, Case, Record
from rlx.ops.samples import Draw

# Control flow


def _block(w: Writer, results: Sequence[SSAValue], block: Block | None = None) -> Block:
    block = block or Block()
    block.add_ops([*w.made, control.YieldOp(*results)])
    return block


def _sample_if(draw: Draw) -> Case:
    """Two branches that give the same shapes, one of them by two launches."""
    x = draw.array(draw.shape(1, 2))
    flag = draw.array((), element="i1")

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        then, otherwise = Writer(), Writer()
        y = then.binary(BinaryKind.ADD, v[0], v[0])
        z = otherwise.binary(BinaryKind.MUL, v[0], v[0])
        blocks = [
            _block(then, [y, v[0]]),
            _block(otherwise, [z, otherwise.reverse(z, [0])]),
        ]
        types = [v[0].type, v[0].type]
        return w.add_all(control.IfOp(v[1], blocks[0], blocks[1], types))

    return Case([x, flag], build)


def _sample_while(draw: Draw) -> Case:
    """A loop of as many turns as a scalar says, zero among them."""
    import numpy as np

    x = draw.array(draw.shape(1, 2))
    turns = np.array(draw.between(0, 5), np.int32)

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        types = [v[1].type, v[0].type]
        condition, body = Block(arg_types=types), Block(arg_types=types)
        head, turn = Writer(), Writer()
        more = head.compare(CompareKind.GT, condition.args[0], 0)
        left = turn.binary(BinaryKind.SUB, body.args[0], 1)
        halves = turn.binary(BinaryKind.SUB, v[0], turn.reverse(body.args[1], [0]))
        loop = control.WhileOp(
            [v[1], v[0]], _block(head, [more], condition), _block(turn, [left, halves], body)
        )
        return w.add_all(loop)

    return Case([x, turns], build)


def _sample_scan(draw: Draw) -> Case:
    """A carried vector, a number of each turn, and an outer value, over an axis of any length."""
    rows, n = draw.size(0, 33), draw.size(1, 33)
    arrays = [draw.array((n,)), draw.array((rows, n)), draw.array((n,), -0.9, 0.9)]

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        body, turn = Block(arg_types=[v[0].type, v[0].type]), Writer()
        kept = turn.binary(BinaryKind.MUL, body.args[0], v[2])
        carried = turn.binary(BinaryKind.ADD, kept, body.args[1])
        total = turn.reduce(ReduceKind.SUM, carried, [0])
        return w.add_all(ScanOp([v[0]], [v[1]], _block(turn, [carried, carried, total], body)))

    return Case(arrays, build)


# Gated delta nets


def _sample_delta(draw: Draw) -> Case:
    batch = draw.choice([(), (2,)])
    rows, key_heads, group = draw.size(1, 97), draw.between(1, 2), draw.between(1, 2)
    n, e = draw.choice([1, 4, 16, 17]), draw.choice([1, 8, 16, 33])
    heads = key_heads * group
    query, keys = (draw.array((*batch, rows, key_heads, n), -1.0, 1.0) for _ in range(2))
    # Keys of length one, as models normalise them: the delta rule then forgets, and does not grow.
    keys /= (keys**2).sum(-1, keepdims=True) ** 0.5 + 1e-3
    gates = (*batch, rows, heads)
    arrays = [
        *(query, keys, draw.array((*batch, rows, heads, e))),
        *(draw.array(gates, -2.0, 0.0), draw.array(gates, 0.0, 1.0)),
    ]
    if draw.chance():
        arrays.append(draw.array((*batch, heads, n, e)))
    return Case(arrays, lambda w, v: w.add_all(sequence.GatedDeltaNetOp(*v)))


# Signals


def _sample_fft(draw: Draw) -> Case:
    n = draw.choice([1, 2, 3, 4, 5, 8, 12, 13, 16, 17, 30, 64, 97, 128, 200, 256, 1021, 1024])
    x = draw.array((*draw.choice([(), (1,), (3,), (2, 2)]), 2 * n))
    kind, norm = draw.choice(list(signal.FftKind)), draw.choice(list(signal.FftNorm))
    return Case([x], lambda w, v: [w.add(signal.FftOp(kind, v[0], norm))])


def _sample_welch(draw: Draw) -> Case:
    n, segments, rows = draw.choice([2, 3, 8, 15, 64, 256]), draw.between(1, 5), draw.between(1, 3)
    x = draw.array((rows * segments, 2 * n))
    k = draw.between(1, min(signal.bins_of(n), 9))
    return Case([x], lambda w, v: [w.add(signal.WelchPeaksOp(v[0], k, segments))])


def _sample_log_mel(draw: Draw) -> Case:
    n, mels = draw.choice([2, 8, 15, 64, 400]), draw.size(1, 80)
    bins = signal.bins_of(n)
    frames = draw.shape(0, 1, 2)[:2]
    width = 2 * n if draw.chance() else bins
    x = draw.array((*(min(f, 33) for f in frames), width), 0.1, 3.0)
    filters = draw.array((mels, bins), 0.0, 1.0)
    return Case([x, filters], lambda w, v: [w.add(signal.LogMelOp(*v))])


def _record(op: Any, kind: OpKind, family: str, elements: tuple[str, ...], sample: Any) -> Record:
    return Record(op, (kind,), family, elements, None, sample)


RECORDS = (
    _record(control.IfOp, OpKind.IF, ROWS, FLOATS, _sample_if),
    _record(control.WhileOp, OpKind.WHILE, ROWS, FLOATS, _sample_while),
    _record(ScanOp, OpKind.SCAN, ROWS, FLOATS, _sample_scan),
    _record(sequence.GatedDeltaNetOp, OpKind.GATED_DELTA_NET, SCAN, ("f32",), _sample_delta),
    _record(signal.FftOp, OpKind.FFT, FFT, FLOATS, _sample_fft),
    _record(signal.WelchPeaksOp, OpKind.WELCH_PEAKS, FFT, ("f32",), _sample_welch),
    _record(signal.LogMelOp, OpKind.LOG_MEL, FFT, ("f32",), _sample_log_mel),
)
