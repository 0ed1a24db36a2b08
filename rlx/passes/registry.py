"""Every pass by its name, imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from xdsl.passes import ModulePass


def _lazy(module: str, cls: str) -> Callable[[], type[ModulePass]]:
    return lambda: getattr(import_module(module), cls)


def _own(*names: str) -> dict[str, Callable[[], type[ModulePass]]]:
    """Return the factories of our passes; a pass's name says its module and its class."""
    return {
        name: _lazy(
            f"rlx.passes.{name.replace('-', '_')}",
            f"{''.join(word.capitalize() for word in name.split('-'))}Pass",
        )
        for name in names
    }


PASSES: dict[str, Callable[[], type[ModulePass]]] = {
    **_own(
        "bind-dims",
        "legalize-hir",
        "fuse-shared-input",
        "fuse-epilogue",
        "fuse-prologue",
        "fuse-norm",
        "set-precision",
        "narrow-products",
        "fuse-attention",
        "fuse-residual-norm",
        "fuse-rows",
        "hoist-params",
        "derive-phases",
        "plan-lir",
        "verify-plan",
        "verify-ssa",
        "verify-stage",
        "canonicalize",
        "constant-fold",
        "simplify-algebra",
        "eliminate-moves",
        "cse",
        "dce",
        "unfuse",
        "select-peaks-only-outputs",
        "assert-fusion-clean",
    ),
}
