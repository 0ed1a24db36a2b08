"""
The memory planner on given instances: how near to the lower bound, in how much CPU time.

Every FILE is planned once at each effort, as `rlx plan` does it, and the plans are checked.
`--capacity` adds a comparison with that many bytes, where the instances are known to fit.

    python benchmarks/planner.py FILE... [--efforts 0,1,2] [--capacity BYTES] [--update]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from common import machine, table, today, update_section, write_json

import rlx
from rlx.errors import RlxError
from rlx.tools.plan import plan_file

HERE = Path(__file__).resolve().parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="CSV with the header id,lower,upper,size")
    add("--efforts", default="0,1,2", metavar="E", help="default 0,1,2: about 23 s for each file")
    add("--capacity", type=int, metavar="BYTES", help="compare the peaks with this, too")
    add("--json", metavar="FILE", help="keep the figures")
    add("--update", action="store_true", help="put the table into README.md")
    return parser.parse_args()


def measure(path: str, effort: int) -> dict[str, Any]:
    """Plan a file; return what `rlx plan` prints, less the offsets, and the CPU time in seconds."""
    started = time.process_time()
    figures = plan_file(path, effort=effort).as_json()
    # Reading and checking the file, some milliseconds, are in it.
    figures["cpu_s"] = time.process_time() - started
    del figures["offsets"]
    print(f"{path}, effort {effort}: {figures['ratio']:.4f}", file=sys.stderr)
    return figures


def report(result: dict[str, Any]) -> str:
    efforts = result["efforts"]
    header = ["instance", "buffers", "lower bound"]
    header += [f"{what}, effort {e}" for e in efforts for what in ("ratio", "CPU s")]
    rows = [
        [name.partition(".")[0], f"{runs[0]['buffers']}", f"{runs[0]['lower_bound']}"]
        + [text for run in runs for text in (f"{run['ratio']:.3f}", f"{run['cpu_s']:.2f}")]
        for name, runs in result["instances"].items()
    ]
    bases = [("lower bound", lambda run: run["lower_bound"])]
    if result["capacity"]:
        bases.append(("capacity", lambda run: result["capacity"]))
    columns = list(zip(*result["instances"].values(), strict=True))
    summary = [
        [
            f"peak / {name}, effort {effort}",
            f"{sum(ratios) / len(ratios):.4f}",
            f"{max(ratios):.4f}",
        ]
        for name, base in bases
        for effort, runs in zip(efforts, columns, strict=True)
        for ratios in [[run["peak"] / base(run) for run in runs]]
    ]
    return "\n\n".join(
        [
            f"{result['date']}; {result['machine']}. rlx {result['version']}.",
            table(header, rows),
            table(["", "mean", "worst"], summary),
        ]
    )


def main() -> None:
    args = parse()
    efforts = [int(effort) for effort in args.efforts.split(",")]
    result: dict[str, Any] = {
        "date": today(),
        "machine": machine(),
        "version": rlx.__version__,
        "efforts": efforts,
        "capacity": args.capacity,
    }
    try:
        result["instances"] = {
            Path(path).name: [measure(path, effort) for effort in efforts] for path in args.files
        }
    except RlxError as e:
        raise SystemExit(f"planner.py: {e}") from e
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "planner", text)


if __name__ == "__main__":
    main()
