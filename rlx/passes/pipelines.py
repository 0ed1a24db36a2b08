"""Pipelines of passes by name, as text that `rlx-opt -p` takes; the compiler runs the same text."""

DEFAULT = (
    "legalize-hir,fuse-shared-input,fuse-epilogue,fuse-norm,hoist-params,derive-phases,plan-lir"
)
"""From HIR to LIR."""

PIPELINES = {"rlx-default": DEFAULT}
"""Name -> the passes that it stands for."""
