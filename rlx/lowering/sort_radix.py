"""
Sorting long rows by digits: records of a key and an index go through stable passes, byte by byte.

A byte that is the same in all is passed over. Very long rows are first spread over buckets by the
upper bits of their keys, so that the passes of a bucket stay in the caches. Where only the first k
are wanted, the upper bits of the k-th key tell which elements can't be among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import Attribute

from rlx.dialects.common import dims_of, element_bytes
from rlx.lowering.body import Body
from rlx.lowering.sort_keys import SortedRows
from rlx.lowering.values import Value, i64, vec

if TYPE_CHECKING:
    from rlx.ops.sorting import SortRowsOp

_TOP_BITS = 12
"""Upper bits of a key that tell buckets apart."""
_SPREAD = 1 << 16
"""Elements of the longest row that is one bucket."""
_FEW = 24
"""Records that are put in order one by one."""


def record_bytes(type_: Attribute) -> int:
    """Return the bytes of a key and an index."""
    return 8 if element_bytes(type_) <= 4 else 16


class Radix(SortedRows):
    """Records of an unsigned key and an index, in one integer, by one byte after the other."""

    def __init__(self, body: Body, op: SortRowsOp, n: Value, k: Value):
        super().__init__(body, op, n, k)
        self.width = 8 * record_bytes(op.args[0].type)
        self.record = f"i{self.width}"
        self.top_bits = min(_TOP_BITS, self.bits)
        f, size = self.f, self.width // 8
        if body.scratch is not None:
            start = f.at(body.scratch, f.mul(body.tid, f.mul(n, 2)), size)
        else:
            longest = body.table.size(dims_of(op.args[0].type)[-1])
            start = f.scratch("sort_records", 2 * longest * size)
        self.buffers = start, f.at(start, n, size)

    def row(self, r: Value) -> None:
        self.f.if_(self.f.icmp("sgt", self.n, 0), lambda: self._row(r) or [])

    def _row(self, r: Value) -> None:
        f, source = self.f, self.source(r)
        table = f.scratch("sort_buckets", 4 << self.top_bits)

        def one_bucket() -> list[Value]:
            count = self._first(source, table) if self.op.option("k") else self._all(source)
            f.store(f.cast("trunc", count, "i32"), table)
            return [i64(1)]

        def buckets() -> list[Value]:
            self._spread(source, table)
            return [i64(1 << self.top_bits)]

        longest = self.body.table.size(dims_of(self.op.args[0].type)[-1])
        if self.op.option("k") or longest <= _SPREAD:
            (count,) = one_bucket()
        else:
            (count,) = f.if_(f.icmp("sgt", self.n, _SPREAD), buckets, one_bucket)

        def bucket(b: Value, starts: list[Value]) -> list[Value]:
            end = f.cast("zext", f.load("i32", f.at(table, b, 4)), "i64")
            f.if_(f.icmp("slt", starts[0], end), lambda: self._bucket(r, source, starts[0], end))
            return [end]

        f.for_(0, count, 1, [i64(0)], bucket)

    def _bucket(self, r: Value, source: Value, start: Value, end: Value) -> list[Value]:
        """Sort the records from one on, and store those that are wanted at their places."""
        f = self.f
        records, other = (f.at(buffer, start, self.width // 8) for buffer in self.buffers)
        count = f.sub(end, start)
        few = f.icmp("sle", count, _FEW)

        def insert() -> list[Value]:
            f.for_(1, count, 1, [], lambda i, _: self._insert(records, i))
            return [records]

        (final,) = f.if_(few, insert, lambda: [self._digits(records, other, count)])

        def write(j: Value, _: list[Value]) -> list[Value]:
            record = self._load(f.at(final, j, self.width // 8))
            index, key = self._index(record), f.lshr(record, self.width - self.bits)
            key = f.xor(f.cast("trunc", key, f"i{self.bits}"), -1 << (self.bits - 1))
            value = self.value(key, lambda: self.element_at(source, index))
            self.store(r, f.add(start, j), value, index)
            return []

        f.for_(0, f.intrinsic("smin", "i64", count, f.sub(self.k, start)), 1, [], write)
        return []

    def _insert(self, records: Value, i: Value) -> list[Value]:
        """Move a record to its place among those before it, which are in order."""
        f, size = self.f, self.width // 8
        record = self._load(f.at(records, i, size))

        def before(j: Value) -> Value:
            # In front of the first record its own memory is read, and not used.
            return self._load(f.at(records, f.intrinsic("smax", "i64", f.sub(j, 1), i64(0)), size))

        def later(v: list[Value]) -> Value:
            return f.and_(f.icmp("sgt", v[0], 0), f.icmp("ugt", before(v[0]), record))

        def move(v: list[Value]) -> list[Value]:
            f.store(before(v[0]), f.at(records, v[0], size), 8)
            return [f.sub(v[0], 1)]

        (place,) = f.while_([i], later, move)
        f.store(record, f.at(records, place, size), 8)
        return []

    def _digits(self, records: Value, other: Value, count: Value) -> Value:
        """Sort records by one byte after the other; return the buffer that has them at the end."""
        f = self.f
        tables = f.scratch("sort_digits", self.size * 1024)
        self._clear(tables, self.size * 256)
        f.for_(0, count, 1, [], lambda i, _: self._count(f.at(records, i, self.width // 8), tables))
        for digit in range(self.size):
            table = f.at(tables, digit * 1024)
            byte = self._digit(self._load(records), digit)
            same = f.icmp("eq", f.load("i32", f.at(table, byte, 4)), f.cast("trunc", count, "i32"))

            def through(
                digit: int = digit, table: Value = table, a: Value = records, b: Value = other
            ) -> list[Value]:
                self._pass(digit, table, count, a, b)
                return [b, a]

            a, b = records, other
            records, other = f.if_(same, lambda a=a, b=b: [a, b], through)
        return records

    def _load(self, at: Value) -> Value:
        return self.f.load(self.record, at, 8)

    def _index(self, record: Value) -> Value:
        """Return the index of a record, its lower 32 bits."""
        f = self.f
        return f.and_(record if self.width == 64 else f.cast("trunc", record, "i64"), 0xFFFFFFFF)

    def _digit(self, record: Value, digit: int) -> Value:
        f = self.f
        byte = f.lshr(record, self.width - self.bits + 8 * digit)
        byte = byte if self.width == 64 else f.cast("trunc", byte, "i64")
        return f.and_(byte, 255) if digit + 1 < self.size else byte

    def _unsigned(self, x: Value) -> Value:
        return self.f.xor(self.key(x), -1 << (self.bits - 1))

    def _made(self, key: Value, index: Value) -> Value:
        """Return a record: the key's bits at the top, the index at the bottom."""
        f = self.f
        key = f.cast("zext", key, self.record) if self.bits < self.width else key
        index = f.cast("zext", index, self.record) if self.width > 64 else index
        return f.or_(f.shl(key, self.width - self.bits), index)

    def _clear(self, table: Value, words: int) -> None:
        f, chunk = self.f, vec(16, "i32")
        f.for_(0, words, 16, [], lambda i, _: f.store(f.zero(chunk), f.at(table, i, 4)) or [])

    def _bump(self, at: Value) -> Value:
        """Add one to a counter; return what it was, i64."""
        f = self.f
        old = f.load("i32", at)
        f.store(f.add(old, 1), at)
        return f.cast("zext", old, "i64")

    def _record(self, source: Value, i: Value) -> Value:
        return self._made(self._unsigned(self.element_at(source, i)), i)

    def _put(self, record: Value, place: Value) -> None:
        self.f.store(record, self.f.at(self.buffers[0], place, self.width // 8), 8)

    def _all(self, source: Value) -> Value:
        """Make the record of every element; return how many there are."""
        self.f.for_(0, self.n, 1, [], lambda i, _: self._put(self._record(source, i), i) or [])
        return self.n

    def _top(self, source: Value, i: Value) -> Value:
        """Return the upper bits of an element's key."""
        f, bits = self.f, self.top_bits
        key = self._unsigned(self.element_at(source, i))
        key = f.lshr(key, self.bits - bits) if bits < self.bits else key
        return f.cast("zext", key, "i64") if self.bits < 64 else key

    def _tops(self, source: Value, table: Value) -> None:
        """Count how many elements have each of the upper bits."""
        f = self.f
        self._clear(table, 1 << self.top_bits)

        def count(i: Value, _: list[Value]) -> list[Value]:
            self._bump(f.at(table, self._top(source, i), 4))
            return []

        f.for_(0, self.n, 1, [], count)

    def _spread(self, source: Value, table: Value) -> None:
        """Make records in the order of the upper bits alone; the table has the ends of buckets."""
        f = self.f
        self._tops(source, table)
        self._starts(table, 1 << self.top_bits)

        def one(i: Value, _: list[Value]) -> list[Value]:
            self._put(self._record(source, i), self._bump(f.at(table, self._top(source, i), 4)))
            return []

        f.for_(0, self.n, 1, [], one)

    def _first(self, source: Value, table: Value) -> Value:
        """Make the records of those elements that may be among the first k; return how many."""
        f = self.f
        self._tops(source, table)

        def more(v: list[Value]) -> list[Value]:
            here = f.cast("zext", f.load("i32", f.at(table, v[0], 4)), "i64")
            return [f.add(v[0], 1), f.add(v[1], here)]

        end, _ = f.while_([i64(0), i64(0)], lambda v: f.icmp("slt", v[1], self.k), more)

        def keep(i: Value, v: list[Value]) -> list[Value]:
            self._put(self._record(source, i), v[0])
            wanted = f.icmp("slt", self._top(source, i), end)
            return [f.add(v[0], f.cast("zext", wanted, "i64"))]

        return f.for_(0, self.n, 1, [i64(0)], keep)[0]

    def _count(self, at: Value, tables: Value) -> list[Value]:
        record = self._load(at)
        for digit in range(self.size):
            self._bump(self.f.at(self.f.at(tables, digit * 1024), self._digit(record, digit), 4))
        return []

    def _pass(self, digit: int, table: Value, count: Value, a: Value, b: Value) -> None:
        """Move records from a to b, in the order of a digit."""
        f = self.f
        self._starts(table, 256)

        def move(i: Value, _: list[Value]) -> list[Value]:
            record = self._load(f.at(a, i, self.width // 8))
            to = self._bump(f.at(table, self._digit(record, digit), 4))
            f.store(record, f.at(b, to, self.width // 8), 8)
            return []

        f.for_(0, count, 1, [], move)

    def _starts(self, table: Value, count: int) -> None:
        """Turn counts into the sums of those before them."""
        f = self.f

        def start(i: Value, total: list[Value]) -> list[Value]:
            at = f.at(table, i, 4)
            here = f.load("i32", at)
            f.store(total[0], at)
            return [f.add(total[0], here)]

        f.for_(0, count, 1, [Value("i32", "0")], start)
