"""
`rlx-opt`: reads a module in text, runs passes over it, and prints it or what it becomes.

Only what a request needs is imported: asking for the version loads no compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rlx.tools.endings import ended


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
        return _printed(version)
    if "--print-default-pipeline" in args:
        return _printed(_default_pipeline)
    from rlx.tools.opt.driver import run

    return run(args)


def _default_pipeline() -> str:
    from rlx.passes.pipelines import DEFAULT

    return DEFAULT


def _printed(text: Callable[[], str]) -> int:
    """Print a text and return the exit code."""

    def say(message: str, _: Exception) -> None:
        print(f"rlx-opt: error: {message}", file=sys.stderr)

    return ended(lambda: print(text()), say, debug=False)
