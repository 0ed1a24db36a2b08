"""What flows between the stages of a model while it is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from xdsl.ir import SSAValue

from rlx.dialects.common import Dim

Shape: TypeAlias = tuple[Dim, ...]
"""Dimensions as numbers and names, outermost first; the element type is the value's."""

HirNodeId: TypeAlias = SSAValue
"""A node of HIR is known by the value that it defines."""


@dataclass(frozen=True)
class FlowValue:
    """A value of HIR and its shape: what stages take and give."""

    id: HirNodeId
    shape: Shape


@dataclass
class DecodeBindings:
    """The inputs of attention while decoding: RoPE tables, and each layer's keys and values."""

    cos: HirNodeId
    sin: HirNodeId
    mask: HirNodeId | None = None
    past_k: list[HirNodeId] = field(default_factory=list[HirNodeId])
    past_v: list[HirNodeId] = field(default_factory=list[HirNodeId])


@dataclass
class GdnInputSlots:
    """The inputs of a gated delta net (Yang et al., 2024)."""

    q: HirNodeId
    k: HirNodeId
    v: HirNodeId
    g: HirNodeId
    beta: HirNodeId


@dataclass
class FlowState:
    """
    What earlier stages left for later ones.

    `loaded_params` holds what `FlowCtx.load_param` gave, by key (a transposed one under the key,
    a NUL and `t`); `loaded_weights` what `FlowCtx.load_weight` gave.
    """

    rope_cos: HirNodeId | None = None
    rope_sin: HirNodeId | None = None
    places: HirNodeId | None = None
    """The sequence and position of each row, where rows are of several sequences."""
    zero_beta: HirNodeId | None = None
    embed_weight: HirNodeId | None = None
    hidden_shape: Shape | None = None
    decode: DecodeBindings | None = None
    residual_skip: HirNodeId | None = None
    residual_shape: Shape | None = None
    streams: dict[str, FlowValue] = field(default_factory=dict[str, FlowValue])
    inputs: dict[str, tuple[HirNodeId, Shape]] = field(
        default_factory=dict[str, tuple[HirNodeId, Shape]]
    )
    named: dict[str, HirNodeId] = field(default_factory=dict[str, HirNodeId])
    gdn: GdnInputSlots | None = None
    loaded_params: dict[str, HirNodeId] = field(default_factory=dict[str, HirNodeId])
    loaded_weights: dict[str, HirNodeId] = field(default_factory=dict[str, HirNodeId])

    def inner(self) -> FlowState:
        """Return the state for the body of a function: it sees this one and can't change it."""
        return replace(
            self,
            streams=dict(self.streams),
            inputs=dict(self.inputs),
            named=dict(self.named),
            loaded_params={},
            loaded_weights={},
        )
