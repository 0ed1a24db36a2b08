"""Which specialisation of a model is wanted: its phase and the sizes of its symbolic dimensions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b

from rlx.contract.symbols import SEQ, DimBinding


class ModelPhase(StrEnum):
    """What one call of a model does; INFERENCE, any of them, has no constructor."""

    PREFILL = "prefill"
    DECODE = "decode"
    ENCODER = "encoder"
    INFERENCE = "inference"


@dataclass(slots=True)
class ModelVariant:
    """
    One specialisation of a model; sizes are in elements.

    `extra` holds (symbol, size) pairs beyond the well-known ones, in the order they were given.
    Compared by value and not hashable: `cache_key` is its identity in caches.
    """

    batch: int
    seq: int
    past_seq: int | None = None
    phase: ModelPhase = ModelPhase.INFERENCE
    extra: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @classmethod
    def prefill(cls, batch: int, seq: int) -> ModelVariant:
        """Return the variant that reads `seq` prompt tokens at once."""
        return cls(batch, seq, None, ModelPhase.PREFILL)

    @classmethod
    def decode(cls, batch: int, past_seq: int, new_tokens: int) -> ModelVariant:
        """Return the variant that adds `new_tokens` tokens to `past_seq` cached ones."""
        return cls(batch, new_tokens, past_seq, ModelPhase.DECODE)

    @classmethod
    def encoder(cls, batch: int, seq: int) -> ModelVariant:
        """Return the variant that encodes `seq` tokens, each seeing all others."""
        return cls(batch, seq, None, ModelPhase.ENCODER)

    def with_extra(self, symbol: int, size: int) -> ModelVariant:
        """Return this variant with (symbol, size) appended to `extra`."""
        return replace(self, extra=[*self.extra, (symbol, size)])

    def cache_key(self) -> int:
        """Return an unsigned 64-bit key of all fields; the same in every process and version."""
        fields = [self.phase.value, self.batch, self.seq, self.past_seq, self.extra]
        canonical = json.dumps(fields, separators=(",", ":")).encode()
        return int.from_bytes(blake2b(canonical, digest_size=8).digest(), "little")

    def dim_binding(self) -> DimBinding:
        """Return the sizes of all symbols; a pair of `extra` overrides what came before it."""
        if self.phase is ModelPhase.DECODE and self.past_seq is not None:
            binding = DimBinding.batch_past_seq(self.batch, self.past_seq)
        else:
            binding = DimBinding.batch_seq(self.batch, self.seq)
        if self.phase is ModelPhase.DECODE:
            binding.set(SEQ, self.seq)
        for symbol, size in self.extra:
            binding.set(symbol, size)
        return binding
