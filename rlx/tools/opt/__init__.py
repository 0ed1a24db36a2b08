"""
`rlx-opt`: reads a module in text, runs passes over it, and prints it or what it becomes.

Only what a request needs is imported: asking for the version loads no compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def version() -> str:
    """Return the versions of rlx and of the xDSL that it stands on."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("rlx")
    except PackageNotFoundError:
        own = "not installed"
    return f"rlx-opt {own} (xdsl {version('xdsl')})"


def main(args: Sequence[str] | None = None) -> int:
    """Run with the given arguments, those of the process by default, and return the exit code."""
    args = list(sys.argv[1:] if args is None else args)
    if "--version" in args or "-v" in args:
        print(version())
        return 0
    if "--print-default-pipeline" in args:
        from rlx.passes.pipelines import DEFAULT

        print(DEFAULT)
        return 0
    from rlx.tools.opt.driver import run

    return run(args)
