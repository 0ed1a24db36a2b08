"""
Operations that run over the rows of a sequence in order: primitives of MIR, which HIR may use too.

What they carry from row to row is an operand and a result like others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    operand_def,
    opt_operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import infer, shapes
from rlx.dialects.common import Dim, dims_of, spell, tensor
from rlx.dialects.definition import op_definition
from rlx.dialects.ops import AnyTensor


@op_definition
class GatedDeltaNetOp(IRDLOperation):
    """
    A linear attention that forgets by a gate and corrects by the delta rule (Yang et al., 2024).

    For each row in order, with a state S `[n, e]` for each head: S = S * exp(g), then
    S = S + k ((v - S^T k) * beta)^T; the output is S^T q / sqrt(n).

    Queries and keys are `[batch..., rows, key_heads, n]`, values `[batch..., rows, heads, e]`, g
    and beta `[batch..., rows, heads]`, a state `[batch..., heads, n, e]`, zeros if none is given.
    The results are the output, of the values' type, and the state after the last row. Heads share
    keys in groups, as in `mir.sdpa`. Elements are f32.
    """

    name = "mir.gated_delta_net"
    Q: ClassVar = VarConstraint("Q", AnyTensor)
    V: ClassVar = VarConstraint("V", AnyTensor)
    G: ClassVar = VarConstraint("G", AnyTensor)
    query = operand_def(Q)
    keys = operand_def(Q)
    values = operand_def(V)
    gate = operand_def(G)
    beta = operand_def(G)
    state = opt_operand_def(AnyTensor)
    output = result_def(V)
    final = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$query `,` $keys `,` $values `,` $gate `,` $beta (`state` $state^ `:` type($state))? `:`"
        " type($query) `,` type($values) `,` type($gate) `->` type($final) attr-dict"
    )

    def __init__(
        self,
        query: SSAValue,
        keys: SSAValue,
        values: SSAValue,
        gate: SSAValue,
        beta: SSAValue,
        state: SSAValue | None = None,
    ):
        super().__init__(
            operands=[query, keys, values, gate, beta, state],
            result_types=[values.type, _state_type(query.type, values.type, gate.type)],
        )

    def verify_(self) -> None:
        wanted = _state_type(self.query.type, self.values.type, self.gate.type)
        shapes.expect(self, self.final.type, wanted)
        if self.state is not None and self.state.type != wanted:
            raise VerifyException(
                f"{self.name}: expected a state {spell(wanted)}, got {spell(self.state.type)}"
            )


def _state_type(query: Attribute, values: Attribute, gate: Attribute) -> Attribute:
    """Return the type of the state. Raises VerifyException where the operands don't fit."""
    name = GatedDeltaNetOp.name
    for type_ in (query, values, gate):
        infer.check_element(name, type_, (f32,))
    q, v = dims_of(query), dims_of(values)
    if min(len(q), len(v)) < 3 or not _fits(q, v, dims_of(gate)):
        raise VerifyException(
            f"{name}: expected queries and keys [batch..., rows, key_heads, n], values [batch..., "
            "rows, heads, e] and gates [batch..., rows, heads], with numbers for all but batch and "
            f"rows and heads a multiple of key_heads, got {spell(query)}, {spell(values)} and "
            f"{spell(gate)}"
        )
    return tensor([*v[:-3], v[-2], q[-1], v[-1]])


def _fits(query: Sequence[Dim], values: Sequence[Dim], gate: Sequence[Dim]) -> bool:
    heads, key_heads = values[-2], query[-2]
    if not isinstance(heads, int) or not isinstance(key_heads, int):
        return False
    features = isinstance(query[-1], int) and isinstance(values[-1], int)
    same = list(query[:-2]) == list(values[:-2]) and list(gate) == list(values[:-1])
    return features and same and key_heads > 0 and heads % key_heads == 0


SCANS = (GatedDeltaNetOp,)
"""Every operation that runs over rows in order."""
