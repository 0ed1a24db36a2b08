"""Shape rules and checks that HIR and MIR share; every message names the shapes."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, TensorType, bf16, f32, i32, i64
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from rlx.contract.quant import GGML_TYPES_BY_NAME, PACKED_FORMATS
from rlx.dialects.common import (
    Dim,
    PackedType,
    QuantType,
    dims_of,
    element_of,
    format_of,
    spell,
    tensor,
)
from rlx.dialects.infer import STORED


def expect(op: Operation, given: Attribute, inferred: Attribute) -> None:
    """Raise VerifyException unless an operation's declared result is what its operands give."""
    if given != inferred:
        raise VerifyException(
            f"{op.name}: expected the result {spell(inferred)}, got {spell(given)}"
        )


def check_numbers(what: str, type_: Attribute) -> None:
    """A weight's or a state's dimensions are numbers, known before the first run."""
    if any(not isinstance(d, int) for d in dims_of(type_)):
        raise VerifyException(f"{what}: expected numbers for dimensions, got {spell(type_)}")


def check_state(what: str, type_: Attribute, head_dim: int) -> None:
    """A state is `[capacity, width]`, a row of whole heads for each position."""
    check_numbers(what, type_)
    _kept(what, type_)
    _, width = _matrix(what, type_)
    if head_dim < 1 or not isinstance(width, int) or width % head_dim:
        raise VerifyException(
            f"{what}: expected a width that is a multiple of head_dim {head_dim}, "
            f"got {spell(type_)}"
        )


def _matrix(what: str, type_: Attribute) -> tuple[Dim, Dim]:
    dims = dims_of(type_)
    if len(dims) != 2:
        raise VerifyException(f"{what}: expected two dimensions, got {spell(type_)}")
    return dims[0], dims[1]


def _floats(what: str, *types: Attribute) -> None:
    for type_ in types:
        if element_of(type_) != f32:
            raise VerifyException(f"{what}: expected elements of f32, got {spell(type_)}")


def _multiplied(what: str, type_: Attribute) -> None:
    """What products take is f32, or was rounded to bf16 for them."""
    if element_of(type_) not in (f32, bf16):
        raise VerifyException(f"{what}: expected elements of f32 or bf16, got {spell(type_)}")


def _kept(what: str, type_: Attribute) -> None:
    """The rows of a state are computed in f32 and kept in that or in half as many bits."""
    if element_of(type_) not in STORED.values():
        raise VerifyException(
            f"{what}: expected elements of {', '.join(STORED)}, got {spell(type_)}"
        )


def check_blocks(what: str, type_: Attribute) -> None:
    """A weight's elements have a known format, and its rows are whole blocks of it."""
    if format_of(type_) not in PACKED_FORMATS:
        known = ", ".join(PACKED_FORMATS)
        raise VerifyException(f"{what}: expected elements of {known}, got {spell(type_)}")
    if not isinstance(element_of(type_), QuantType | PackedType):
        return
    format_ = format_of(type_)
    dims = dims_of(type_)
    last = dims[-1] if dims else 1
    if isinstance(last, int) and last % GGML_TYPES_BY_NAME[format_].elements:
        raise VerifyException(
            f"{what}: expected rows of whole {format_} blocks of "
            f"{GGML_TYPES_BY_NAME[format_].elements}, "
            f"got {spell(type_)}"
        )


def linear(input_: Attribute, weight: Attribute) -> TensorType[Attribute]:
    """`[rows, k] f32 or bf16 x [n, k] -> [rows, n] f32`."""
    rows, k = _matrix("linear input", input_)
    n, weight_k = _matrix("linear weight", weight)
    _multiplied("linear input", input_)
    check_blocks("linear weight", weight)
    if k != weight_k:
        raise VerifyException(
            f"linear: expected a weight whose last dimension is the input's {k}, "
            f"got {spell(input_)} and {spell(weight)}"
        )
    return tensor([rows, n])


def embedding(ids: Attribute, table: Attribute) -> TensorType[Attribute]:
    """`[rows] i32 x [vocab, d] -> [rows, d] f32`."""
    dims = dims_of(ids)
    _, d = _matrix("embedding table", table)
    if len(dims) != 1 or element_of(ids) != i32:
        raise VerifyException(f"embedding: expected ids [rows] i32, got {spell(ids)}")
    check_blocks("embedding table", table)
    return tensor([dims[0], d])


def check_norm(what: str, input_: Attribute, weight: Attribute) -> None:
    _floats(what, input_)
    if format_of(weight) != "f32":
        raise VerifyException(f"{what}: expected a weight of f32, got {spell(weight)}")
    _, d = _matrix(what, input_)
    if dims_of(weight) != (d,):
        raise VerifyException(
            f"{what}: expected a weight [{d}] for the input {spell(input_)}, got {spell(weight)}"
        )


def check_rope_table(what: str, cos: Attribute, sin: Attribute) -> None:
    _floats(what, cos, sin)
    _, n_rot = _matrix(what, cos)
    if cos != sin or not isinstance(n_rot, int) or n_rot % 2:
        raise VerifyException(
            f"{what}: expected two tables [positions, n_rot] with an even n_rot, "
            f"got {spell(cos)} and {spell(sin)}"
        )


def check_rope(what: str, input_: Attribute, cos: Attribute, sin: Attribute, head_dim: int) -> None:
    check_rope_table(what, cos, sin)
    _floats(what, input_)
    _, width = _matrix(what, input_)
    _, n_rot = _matrix(what, cos)
    if not isinstance(width, int) or head_dim < 1 or width % head_dim:
        raise VerifyException(
            f"{what}: expected a width that is a multiple of head_dim {head_dim}, "
            f"got {spell(input_)}"
        )
    if not isinstance(n_rot, int) or n_rot > head_dim:
        raise VerifyException(
            f"{what}: expected at most head_dim {head_dim} rotated features, got {spell(cos)}"
        )


def check_append(what: str, input_: Attribute, result: Attribute) -> None:
    _floats(what, input_)
    _kept(what, result)
    _, width = _matrix(what, input_)
    _, result_width = _matrix(what, result)
    if width != result_width:
        raise VerifyException(
            f"{what}: expected rows of one width, got {spell(input_)} and {spell(result)}"
        )


def check_attention(what: str, query: Attribute, keys: Attribute, head_dim: int) -> None:
    _multiplied(what, query)
    _kept(what, keys)
    _, width = _matrix(what, query)
    _, kv_width = _matrix(what, keys)
    if not isinstance(width, int) or not isinstance(kv_width, int) or head_dim < 1:
        raise VerifyException(f"{what}: expected numbers for widths, got {spell(query)}")
    if width % head_dim or kv_width % head_dim or kv_width == 0 or width % kv_width:
        raise VerifyException(
            f"{what}: expected widths that are whole heads of {head_dim}, and query heads that "
            f"are a multiple of the key heads, got {spell(query)} and {spell(keys)}"
        )


def check_some_rows(what: str, input_: Attribute, result: Attribute) -> None:
    """Some of the rows of a matrix, all of their width."""
    rows, width = _matrix(what, input_)
    result_rows, result_width = _matrix(what, result)
    if width != result_width or element_of(input_) != element_of(result):
        raise VerifyException(
            f"{what}: expected rows of one width, got {spell(input_)} and {spell(result)}"
        )
    if isinstance(rows, int) and isinstance(result_rows, int) and result_rows > rows:
        raise VerifyException(f"{what}: expected at most {rows} rows, got {spell(result)}")


def check_places(what: str, rows: Attribute, places: Attribute) -> None:
    """Each row has the number of its sequence and its position there."""
    wanted = tensor([_matrix(what, rows)[0], 2], i64)
    if places != wanted:
        raise VerifyException(f"{what}: expected places {spell(wanted)}, got {spell(places)}")


def check_sample(what: str, logits: Attribute, params: Attribute) -> None:
    _floats(what, logits)
    rows, _ = _matrix(what, logits)
    if dims_of(params) not in ((8,), (rows, 8)) or element_of(params) != i32:
        raise VerifyException(
            f"{what}: expected parameters [8] i32 or [{rows}, 8] i32, got {spell(params)}"
        )


def sampled(params: Attribute) -> TensorType[Attribute]:
    """A token, or one for each row that has parameters."""
    dims = dims_of(params)
    return tensor(dims[:1] if len(dims) == 2 else [1], i32)


def check_repeat(what: str, first: IntegerAttr, last: IntegerAttr, op: Operation) -> None:
    """A repeat's results are the types of its leading arguments, and its range is not empty."""
    if not 0 <= first.value.data < last.value.data:
        raise VerifyException(
            f"{what}: expected layers first to last with 0 <= first < last, "
            f"got {first.value.data} to {last.value.data}"
        )
    carried = [a.type for a in op.operands[: len(op.results)]]
    if carried != [r.type for r in op.results]:
        raise VerifyException(
            f"{what}: expected results of the types of the leading arguments "
            f"({', '.join(map(spell, carried))}), "
            f"got ({', '.join(spell(r.type) for r in op.results)})"
        )
