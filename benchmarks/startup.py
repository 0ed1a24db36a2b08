"""
Starts of SmolLM2: from a process's start to its first token, with an empty cache and a full one.

Every sample is a process of its own, and what is told are medians. The part `peers` runs those of
`start_peers.py`, each where `--peer NAME=PYTHON` names the interpreter of an environment that has
it, on the files in `--peers-folder`, which `start_peers.py` prepares. The part `layers` needs the
package gguf.

    python benchmarks/startup.py [--only starts,beside,layers,imports,lengths,peers] [--rounds 5]
        [--peers-folder DIR --peer torch=PYTHON --peer JAX=PYTHON ...] [--add FILE] [--json FILE]
        [--update]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import machine, median, table, today, update_section, write_json
from llm import generate, model_path, random_models
from start_peers import PROMPT as TOKENS

HERE = Path(__file__).resolve().parent
PARTS = ("starts", "beside", "layers", "imports", "lengths", "peers")
PROMPT = ",".join(map(str, TOKENS))
LAYERS = (30, 60, 120)
SIZES = {"d": 576, "ffn": 1536, "heads": 9, "kv_heads": 3, "vocab": 512}
"""Of SmolLM2, but for its vocabulary."""
GENERATIONS, LONGEST, MOST_PROMPTS = 300, 2000, 8
LONG_S = 20
"""A peer that takes longer has three samples at most."""
SUMS = {
    "reading the model's head": ["reading the file's head"],
    "imports, HIR": ["imports and HIR", "imports"],
    "passes": ["legalize-hir", "constant-fold", "simplify-algebra", "eliminate-moves", "cse", "dce",
               "hoist-params", "fuse-attention", "fuse-shared-input", "fuse-epilogue",
               "fuse-prologue", "fuse-norm", "fuse-residual-norm", "fuse-rows", "derive-phases"],
    "verification": ["verification"],
    "planning": ["plan-lir"],
    "emission": ["emission", "reading LLVM IR"],
    "LLVM": ["LLVM"],
    "digest of the file": ["digest of the file"],
    "packing": ["packing"],
}  # fmt: skip
"""What a first start is spent on, as sums of stages; those of decode are in a process beside."""


def starts(rounds: int) -> dict[str, Any]:
    """Return the figures of starts with an empty cache, with a full one, and of a folder."""
    model, args = model_path(), ["--prompt-ids", PROMPT, "-n", "1"]
    found: dict[str, list[Any]] = {"empty": [], "full": [], "folder": []}
    with tempfile.TemporaryDirectory() as place:
        made = str(Path(place, "made"))
        for i in range(rounds):
            cache = str(Path(place, f"cache{i}"))
            found["empty"].append(generate(model, cache, *args))
            found["full"].append(generate(model, cache, *args))
            if i == 0:
                command = [sys.executable, "-m", "rlx.tools.cli", "compile", model, "-o", made]
                environment = {**os.environ, "RLX_CACHE_DIR": cache}
                subprocess.run(command, check=True, env=environment, capture_output=True)
            found["folder"].append(generate(made, str(Path(place, "none")), *args))
    return found


def beside(rounds: int) -> dict[str, list[Any]]:
    """Return the figures of first starts with the second program compiled beside, and without."""
    scripts = {"with": "", "without": "import rlx.beside; rlx.beside.pays = lambda: False; "}
    found: dict[str, list[Any]] = {name: [] for name in scripts}
    for i in range(rounds):
        for name in sorted(scripts, reverse=i % 2 == 1):
            script = f"{scripts[name]}from rlx.tools.cli import main; main()"
            args = ["generate", model_path(), "--prompt-ids", PROMPT, "-n", "1", "--json"]
            with tempfile.TemporaryDirectory() as cache:
                done = subprocess.run(
                    [sys.executable, "-c", script, *args],
                    check=True,
                    env={**os.environ, "RLX_CACHE_DIR": cache},
                    capture_output=True,
                )
            found[name].append(json.loads(done.stdout))
    return found


def layers(rounds: int) -> dict[str, list[float]]:
    """Return seconds of compiling models of random weights with more and more layers."""
    write_llama = random_models()
    times: dict[str, list[float]] = {str(n): [] for n in LAYERS}
    with tempfile.TemporaryDirectory() as place:
        for n in LAYERS:
            write_llama(Path(place, f"{n}.gguf"), layers=n, **SIZES)
        for i in range(rounds):
            for n in LAYERS if i % 2 == 0 else LAYERS[::-1]:
                with tempfile.TemporaryDirectory() as cache:
                    path = str(Path(place, f"{n}.gguf"))
                    figures = generate(path, cache, "--prompt-ids", "1", "-n", "1")
                times[str(n)].append(figures["compile_s"])
    return times


def imports(rounds: int) -> dict[str, list[float]]:
    """Return seconds of processes that import numpy, and rlx besides, and that print the help."""
    scripts = {
        "numpy": ["-c", "import numpy"],
        "rlx": ["-c", "import numpy, rlx"],
        "help": ["-m", "rlx.tools.cli", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(4 * rounds):
        for name, args in scripts.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *args], check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    return times


def lengths() -> dict[str, int]:
    """Return the compilations before and after many generations of prompts of all lengths."""
    import rlx
    from rlx.runtime.compilations import Compilations

    model, draw = rlx.load(model_path()), random.Random(0)
    # The first batch compiles its program.
    list(model.generate_ids([1, 2, 3], 2))
    model.generate_batch([[1, 2, 3], [4, 5]], 2)
    before = model.stats.compilations, Compilations.count
    with rlx.no_compile():
        for _ in range(GENERATIONS):
            count = draw.randint(1, MOST_PROMPTS)
            longest = LONGEST // count
            prompts = [
                [draw.randrange(model.vocab) for _ in range(draw.randint(1, longest))]
                for _ in range(count)
            ]
            model.generate_batch(prompts, 2)
    after = model.stats.compilations, Compilations.count
    return {"generations": GENERATIONS, "more": sum(after) - sum(before)}


def peers(
    rounds: int, folder: str, pythons: dict[str, str], found: dict[str, Any]
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds to the first token of each peer, with an empty cache and a full one."""
    found = dict(found)
    for name, python in pythons.items():
        # PyTorch as it is keeps nothing.
        states = ("empty",) if name == "torch" else ("empty", "full")
        found[name] = {state: [] for state in states}
        while len(found[name]["empty"]) < _samples(found[name]["empty"], rounds):
            with tempfile.TemporaryDirectory() as cache:
                for state in states:
                    environment = {
                        **os.environ,
                        "START_CACHE": cache,
                        "HF_HUB_OFFLINE": "1",
                        "PYTHONPATH": f"{HERE.parent}",
                    }
                    done = subprocess.run(
                        [python, str(HERE / "start_peers.py"), name, folder],
                        check=True,
                        env=environment,
                        capture_output=True,
                        text=True,
                    )
                    seconds = json.loads(done.stdout.splitlines()[-1])["first_token_s"]
                    found[name][state].append(seconds)
    return found


def _samples(times: Sequence[float], rounds: int) -> int:
    """Return how many samples of a peer to take: fewer of one that takes long."""
    return min(rounds, 3) if times and times[0] > LONG_S else rounds


# The report


def _seconds(samples: Sequence[float]) -> str:
    return f"{median(samples):.2f} s (best {min(samples):.2f})"


def _stage(figures: dict[str, Any], names: Sequence[str]) -> float:
    return sum(s["seconds"] for s in figures["stages"] if s["name"] in names)


def starts_rows(found: dict[str, Any]) -> list[list[str]]:
    def each(state: str, name: str) -> list[float]:
        return [f[name] for f in found[state]]

    programs = [_stage(f, ["programs", "loading the code"]) for f in found["full"]]
    return [
        ["process to first token, empty cache", _seconds(each("empty", "first_token_s"))],
        ["of it compiling both programs", _seconds(each("empty", "compile_s"))],
        ["process to first token, cached", _seconds(each("full", "first_token_s"))],
        ["of it loading the model", _seconds(each("full", "load_s"))],
        ["of it loading the programs", f"{median(programs) * 1e3:.1f} ms"],
        ["process to first token, compiled folder", _seconds(each("folder", "first_token_s"))],
        ["of it loading the model", _seconds(each("folder", "load_s"))],
    ]  # fmt: skip


def peers_rows(found: dict[str, Any]) -> list[list[str]]:
    return [
        [f"{name}: process to first token, {_cache(name, state)}", _seconds(times)]
        for name, states in found.items()
        for state, times in states.items()
    ]


def _cache(name: str, state: str) -> str:
    return "no cache" if name == "torch" else f"{state} cache"


def spent_table(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{median([_stage(f, names) for f in found['empty']]) * 1e3:.0f}"]
        for name, names in SUMS.items()
    ]
    rows.insert(0, ["start of Python, numpy", _of(found, "start of Python, numpy")])
    waits = "waiting for the process that compiles decode"
    return table(["a first start", "ms"], [*rows, [waits, _of(found, waits)]])


def _of(found: dict[str, Any], name: str) -> str:
    return f"{median([_stage(f, [name]) for f in found['empty']]) * 1e3:.0f}"


def report(result: dict[str, Any]) -> str:
    """Return the whole result as Markdown."""
    rows = starts_rows(result["starts"]) if "starts" in result else []
    rows += peers_rows(result.get("peers", {}))
    for name, figures in result.get("beside", {}).items():
        seconds = _seconds([f["first_token_s"] for f in figures])
        rows.append([f"empty cache, {name} a process that compiles decode beside", seconds])
    if times := result.get("layers"):
        first = median(times[str(LAYERS[0])])
        for n in LAYERS:
            more = median(times[str(n)]) - first
            rows.append([f"compiling {n} layers", f"{_seconds(times[str(n)])}, {more:+.2f} s"])
    if times := result.get("imports"):
        more = median(times["rlx"]) - median(times["numpy"])
        rows.append(["`import rlx`, beyond numpy", f"{more * 1e3:.1f} ms"])
        rows.append(["`rlx --help`", _seconds(times["help"])])
    if found := result.get("lengths"):
        name = f"compilations in {found['generations']} generations of 1 to {MOST_PROMPTS} prompts"
        rows.append([name, f"+{found['more']}"])
    parts = [f"{result['date']}; {result['machine']}.", table(["", "median"], rows)]
    if "starts" in result:
        parts.append(spent_table(result["starts"]))
    return "\n\n".join(parts)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    add = parser.add_argument
    add("--only", default=",".join(PARTS[:-1]), help="parts with commas between (default: ours)")
    add("--rounds", type=int, default=5)
    add("--peers-folder", metavar="DIR", default="", help="what start_peers.py prepared")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="a peer to measure")
    add("--add", metavar="FILE", help="go on with what --json wrote")
    add("--json", metavar="FILE", help="write every sample")
    add("--update", action="store_true", help="put the tables in benchmarks/README.md")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"--only: expected parts of {', '.join(PARTS)}, got {', '.join(unknown)}")
    args.peer = dict(peer.partition("=")[::2] for peer in args.peer)
    if "peers" in args.only and not (args.peers_folder and args.peer):
        parser.error("the part peers needs --peers-folder and --peer")
    if "layers" in args.only:
        # Said before the parts that take minutes.
        random_models()
    return args


def main() -> None:
    args = parse()
    result: dict[str, Any] = json.loads(Path(args.add).read_text()) if args.add else {}
    result |= {"date": today(), "machine": machine()}
    parts = {
        "starts": lambda: starts(args.rounds),
        "beside": lambda: beside(args.rounds),
        "layers": lambda: layers(args.rounds),
        "imports": lambda: imports(args.rounds),
        "lengths": lengths,
        "peers": lambda: peers(args.rounds, args.peers_folder, args.peer, result.get("peers", {})),
    }
    for name in args.only:
        print(f"{name} ...", file=sys.stderr)
        result[name] = parts[name]()
        # Each takes minutes: what is there stays, should a later one fail.
        write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "startup", text)


if __name__ == "__main__":
    main()
