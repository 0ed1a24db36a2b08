"""What the families of primitives have a member for: kinds of maps, comparisons and reductions."""

from __future__ import annotations

from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.str_enum import StrEnum


class UnaryKind(StrEnum):
    NEG = "neg"
    ABS = "abs"
    SIGN = "sign"
    NOT = "not"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIP = "recip"
    EXP = "exp"
    LOG = "log"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ATAN = "atan"
    TANH = "tanh"
    ERF = "erf"
    SIGMOID = "sigmoid"
    LOG_SIGMOID = "log_sigmoid"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    ELU = "elu"
    SOFTPLUS = "softplus"
    SOFTSIGN = "softsign"
    HARD_SIGMOID = "hard_sigmoid"
    HARD_SWISH = "hard_swish"
    MISH = "mish"


class BinaryKind(StrEnum):
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAX = "max"
    MIN = "min"
    POW = "pow"
    MOD = "mod"
    ATAN2 = "atan2"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHL = "shl"
    SHR = "shr"


class CompareKind(StrEnum):
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


class ReduceKind(StrEnum):
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    PROD = "prod"


FLOAT_UNARY = tuple(k for k in UnaryKind if k is not UnaryKind.NOT)
INTEGER_UNARY = (UnaryKind.NEG, UnaryKind.ABS, UnaryKind.SIGN, UnaryKind.NOT)
FLOAT_BINARY = tuple(BinaryKind)[:9]
INTEGER_BINARY = tuple(k for k in BinaryKind if k not in (BinaryKind.POW, BinaryKind.ATAN2))
BOOL_BINARY = (BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR)


@irdl_attr_definition
class UnaryAttr(EnumAttribute[UnaryKind], SpacedOpaqueSyntaxAttribute):
    name = "mir.unary_kind"


@irdl_attr_definition
class BinaryAttr(EnumAttribute[BinaryKind], SpacedOpaqueSyntaxAttribute):
    name = "mir.binary_kind"


@irdl_attr_definition
class CompareAttr(EnumAttribute[CompareKind], SpacedOpaqueSyntaxAttribute):
    name = "mir.compare_kind"


@irdl_attr_definition
class ReduceAttr(EnumAttribute[ReduceKind], SpacedOpaqueSyntaxAttribute):
    name = "mir.reduce_kind"
