"""Which module builds the models of which architecture, by the name that GGUF files give it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from rlx.errors import RlxError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from rlx.contract.quant import KvFormat
    from rlx.flow.profile import CompileProfile
    from rlx.flow.source import WeightSource
    from rlx.frontends.gguf import GgufFile

FAMILIES: dict[str, str] = {"llama": "rlx.models.llama"}
"""Architecture -> the module of its family, imported when it is asked for."""


class Family(Protocol):
    """What the module of a family offers."""

    def read_config(self, file: GgufFile) -> Any:
        """
        Return the family's configuration, checked: `layers`, `vocab`, `context_length`, ...

        Raises RlxError for a file that the family can't build.
        """
        ...

    def build(
        self,
        config: Any,
        source: WeightSource,
        program: str,
        max_context: int,
        chunk: int = 512,
        profile: CompileProfile | None = None,
        kv_cache: KvFormat = "f32",
    ) -> ModuleOp:
        """Return a program, `prefill` or `decode`, in HIR."""
        ...


def family(architecture: str) -> Family:
    """Return the module of an architecture. Raises RlxError for one that rlx doesn't know."""
    if architecture not in FAMILIES:
        raise RlxError(
            f"the architecture {architecture!r:.80} (general.architecture) is not supported: "
            f"expected one of {', '.join(FAMILIES)}"
        )
    return cast(Family, import_module(FAMILIES[architecture]))
