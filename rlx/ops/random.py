"""
Random numbers, each a pure function of a key and a place in the key's sequence.

The words are those of Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
easy as 1, 2, 3", 2011): block b is what counter (low b, high b, 0, 0) gives under the key's low and
high half. Numbers of f32 take a word each, word i % 4 of block i / 4; those of f64 take two, the
first of which is the low half of a word of 64 bits. Whatever threads, shapes or splits: what has
the same key and place has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects.common import tensor
from rlx.dialects.named import NamedOp
from rlx.ops.record import FLOATS, SAMPLING, Array, Case, Record
from rlx.ops.samples import Draw

_ELEMENTS = {"f32": f32, "f64": f64}


class _RandomOp(NamedOp):
    """Numbers of `shape` from a seed, which holds a key and the offset of the first one, i64."""

    OPTIONS: ClassVar = {"shape": (), "element": "f32"}
    CHOICES: ClassVar = {"element": tuple(_ELEMENTS)}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        if list(types) != [tensor([2], i64)] or any(d < 0 for d in o["shape"]):
            raise cls.refuse("a key and an offset, tensor<2xi64>, and sizes as `shape`", types)
        return [tensor(o["shape"], _ELEMENTS[o["element"]])]


@irdl_op_definition
class UniformOp(_RandomOp):
    """
    Numbers from 0 to 1, which is not among them: (key, offset), `tensor<2xi64>`, gives `shape`.

    Number i is the one at place offset + i (the offset has no sign) of the key's sequence: the
    upper 24 bits of its word, over 2^24; for f64 the upper 53 of 64, over 2^53.
    """

    name = "random.uniform"
    KIND: ClassVar = OpKind.RNG_UNIFORM


@irdl_op_definition
class NormalOp(_RandomOp):
    """
    Numbers of mean 0 and variance 1, normally distributed, by Box and Muller (1958).

    Numbers 2 i and 2 i + 1 of the key's sequence are r cos(a) and r sin(a), of the words u and v of
    both: r^2 = -2 log((u + 1/2) / 2^32), a = 2 pi v / 2^32; for f64 of the upper 53 bits of 64.
    Places and seeds are those of `random.uniform`.
    """

    name = "random.normal"
    KIND: ClassVar = OpKind.RNG_NORMAL


def philox(counter: Array, key: Sequence[int]) -> Array:
    """Return four words of 32 bits for each counter of four, `[..., 4]`, all as uint64."""
    import numpy as np

    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    for n in range(10):
        k0, k1 = (
            np.uint64((k + n * weyl) & 0xFFFFFFFF)
            for k, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        )
        p, q = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (q >> 32) ^ c1 ^ k0, q & low, (p >> 32) ^ c3 ^ k1, p & low
    return np.stack([c0, c1, c2, c3], axis=-1)


def _words(op: _RandomOp, seed: Array, first: int, count: int) -> tuple[Array, int]:
    """Return the words at places of a sequence, uint64, and how many of their bits count."""
    import numpy as np

    wide = op.option("element") == "f64"
    each = 2 if wide else 4
    blocks = [*range(first // each, (first + count + each - 1) // each)]
    counter = [(b & 0xFFFFFFFF, b >> 32, 0, 0) for b in blocks]
    key = int(seed[0]) & (2**64 - 1)
    words = philox(
        np.array(counter, np.uint64).reshape(-1, 4), (key & 0xFFFFFFFF, key >> 32)
    ).reshape(-1)
    if wide:
        words = (words[1::2] << np.uint64(32) | words[::2]) >> np.uint64(11)
    skipped = first % each
    return words[skipped : skipped + count], 53 if wide else 32


def _uniform(op: UniformOp, seed: Array) -> Array:
    shape, first = op.option("shape"), int(seed[1]) & (2**64 - 1)
    words, bits = _words(op, seed, first, prod(shape))
    kept = min(bits, 53 if bits > 32 else 24)
    return ((words >> (bits - kept)).astype("f8") / 2.0**kept).reshape(shape)


def _normal(op: NormalOp, seed: Array) -> Array:
    import numpy as np

    shape, first = op.option("shape"), int(seed[1]) & (2**64 - 1)
    odd, count = first % 2, prod(shape)
    words, bits = _words(op, seed, first - odd, 2 * ((count + odd + 1) // 2))
    u, v = words.astype("f8").reshape(-1, 2).T / 2.0**bits
    r = np.sqrt(-2 * np.log(u + 0.5 / 2.0**bits))
    pairs = np.stack([r * np.cos(2 * np.pi * v), r * np.sin(2 * np.pi * v)], axis=-1)
    return pairs.reshape(-1)[odd : odd + count].reshape(shape)


def _sample(op: type[_RandomOp]) -> Callable[[Draw], Case]:
    def sample(draw: Draw) -> Case:
        seed = draw.array((2,), element="i64")
        if draw.chance():
            seed[1] = draw.between(0, 200)
        shape = draw.shape(0, 1, 2, 3, low=0)
        if op is NormalOp and 0 < prod(shape) < 64:
            # Errors are small beside 1, the variance; one number may be as small as they are.
            shape = (*shape, 64)
        options: dict[str, Any] = {"shape": shape, "element": draw.element}
        return Case([seed], lambda w, v: w.add_all(op(*v, **options)))

    return sample


RECORDS = (
    Record(
        UniformOp, (OpKind.RNG_UNIFORM,), SAMPLING, FLOATS, _uniform, _sample(UniformOp),
        kernel="rlx.lowering.random", nmse=0,
    ),
    Record(
        NormalOp, (OpKind.RNG_NORMAL,), SAMPLING, FLOATS, _normal, _sample(NormalOp),
        kernel="rlx.lowering.random",
    ),
)  # fmt: skip

Random = Dialect("random", [r.op for r in RECORDS], [])
