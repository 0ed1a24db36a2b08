"""
SmolLM2 reading prompts, side by side with PyTorch in bf16 and llama.cpp.

rlx multiplies bf16 (`auto`) or f32 (`exact`). Every contestant works in a process of its own, which
sleeps while another works; the order alternates from round to round, and a ratio is the median of
those of the rounds. The matrix unit's rate is measured in every round. `--torch-python` names the
interpreter of an environment with torch, transformers and gguf; `--llama-python` that of one with
xllamacpp.

    python benchmarks/prefill.py [--threads 1,2] [--lengths 16,502] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import (
    Bf16Unit,
    Handler,
    Worker,
    machine,
    median,
    serve,
    table,
    today,
    update_section,
    write_json,
)
from llm import llama_worker, model_path, prompt_ids
from matmul import fall_asleep

HERE = Path(__file__).resolve().parent
LENGTHS = (16, 64, 128, 256, 502, 1024, 2048)
CONTEXT = 2048
OURS = {"bf16": "auto", "exact": "exact"}
"""Contestants of rlx, and the precision of each."""
CONTESTANTS = (*OURS, "torch", "llama.cpp")
SAMPLE_S = 0.05
"""Seconds of prompts that make a sample at least."""
LLAMA_TOKENS = 1500
"""After so many tokens of a length llama.cpp reads it in no more rounds."""
WARM_TOKENS = {**dict.fromkeys(OURS, 512), "torch": 512, "llama.cpp": 64}
"""What each reads before it is measured."""
GAP = 0.5
"""How far below the largest logit, of f32's, that of a contestant's token may be."""
PROSE = ("docs/tour.md", "docs/design.md")
PROSE_TOKENS = 500


# The contestants, each in its worker


def rlx_worker(path: str, threads: int, precision: str) -> Handler:
    import rlx

    model = rlx.load(path, precision, threads, CONTEXT, reuse_prefix=False)

    def read(ids: list[int]) -> tuple[float, int | str]:
        first = next(model.generate_ids(ids, 1, stop=False))
        return model.stats.prefill_s, first

    return prompts(read)


def torch_worker(path: str, threads: int, copy: str) -> Handler:
    import torch  # pyright: ignore[reportMissingImports]: it is in an environment of its own

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model, versions = torch_model(path, copy)

    def read(ids: list[int]) -> tuple[float, int | str]:
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            before = time.perf_counter()
            logits = model(tokens, use_cache=True, logits_to_keep=1).logits
            first = int(logits[0, -1].argmax())
            return time.perf_counter() - before, first

    timed = prompts(read)

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        if job["what"] == "about":
            return {"versions": versions}
        if job["what"] == "logits":
            import numpy as np

            with torch.inference_mode():
                np.save(job["file"], model(torch.tensor([job["prompt"]])).logits[0].float().numpy())
            return {}
        return timed(job)

    return handle


def torch_model(path: str, copy: str) -> tuple[Any, str]:
    """
    Return the model in bf16, and the versions that make it.

    It is saved in the folder `copy`, and comes from there: reading GGUF takes transformers long.
    """
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    if not Path(copy, "config.json").exists():
        folder, name = Path(path).parent, Path(path).name
        auto = transformers.AutoModelForCausalLM
        loaded = auto.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        config = transformers.LlamaConfig(**loaded.config.to_dict())
        del config.quantization_config
        plain = transformers.LlamaForCausalLM(config)
        plain.load_state_dict(loaded.state_dict())
        plain.to(torch.bfloat16).save_pretrained(copy)
    model = transformers.LlamaForCausalLM.from_pretrained(
        copy, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    return model.eval(), f"torch {torch.__version__}, transformers {transformers.__version__}"


def llama_cpp_worker(path: str, threads: int) -> Handler:
    # Room for the token that follows the longest prompt.
    inner = llama_worker(path, threads, CONTEXT + 256)

    def read(ids: list[int]) -> tuple[float, int | str]:
        answer = inner({"what": "generate", "prompt": ids, "new": 1})
        if answer["prompt_tokens"] != len(ids):
            raise RuntimeError(f"{answer['prompt_tokens']} tokens were read, not {len(ids)}")
        return len(ids) / answer["prefill"], answer["text"]

    timed = prompts(read)
    return lambda job: inner(job) if job["what"] == "about" else timed(job)


def prompts(read: Callable[[list[int]], tuple[float, int | str]]) -> Handler:
    """Return what reads a prompt for a while: the seconds of each time, and what follows."""

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        samples: list[float] = []
        first: int | str = ""
        if job.get("warm"):
            read(job["prompt"])
        while not samples or sum(samples) < SAMPLE_S:
            seconds, first = read(job["prompt"])
            samples.append(seconds)
        fall_asleep()
        return {"samples": samples, "first": first}

    return handle


WORKERS = {
    "rlx": rlx_worker,
    "torch": torch_worker,
    "llama.cpp": llama_cpp_worker,
}


def spawn(name: str, python: str = sys.executable, **config: Any) -> Worker:
    return Worker(python, [str(HERE / "prefill.py"), "--worker", name, json.dumps(config)])


# What is right


def expected(path: str, lengths: Sequence[int]) -> dict[str, list[int | str]]:
    """Return what may follow prompts of some lengths, by float64: tokens, and their texts."""
    import numpy as np

    from rlx.driver import CHUNK, open_model
    from rlx.frontends.tokenizer import Tokenizer
    from rlx.reference import GgufWeights, Reference

    model = open_model(path, CONTEXT, precision="exact")
    tokenizer = Tokenizer.from_gguf(model.file)
    reference = Reference(model.build("prefill"), GgufWeights(model.file), np.float64)
    # One prompt is the beginning of another, and is read once.
    ids = np.array(prompt_ids(path, max(lengths)), np.int32)
    found: dict[str, list[int | str]] = {}
    past = 0
    for end in sorted({*lengths, *range(CHUNK, max(lengths), CHUNK)}):
        inputs = {"tokens": ids[past:end], "sampling": np.zeros(8, np.int32)}
        dims = {"seq": end - past, "past": past, "out": 1}
        logits = reference.run(inputs, dims)["logits"][-1]
        if end in lengths:
            near: list[int] = np.flatnonzero(logits >= logits.max() - GAP).tolist()
            found[str(end)] = [*near, *(tokenizer.decode([token]) for token in near)]
        past = end
    return found


# Measurements


def flops(path: str, n: int) -> float:
    """Return those of products and attention, of what is seen alone, for a prompt of n tokens."""
    from rlx.driver import open_model

    c = open_model(path, CONTEXT).config
    wide, narrow = c.heads * c.head_dim, c.kv_heads * c.head_dim
    products = c.d * (2 * wide + 2 * narrow) + 3 * c.d * c.ffn
    attention = 2 * wide * (n + 1) / 2
    return 2 * c.layers * n * (products + attention) + 2 * c.vocab * c.d


def side_by_side(
    args: argparse.Namespace, path: str, threads: int, right: dict[str, list[int | str]]
) -> Iterator[dict[str, Any]]:
    """Give the samples of every contestant with a number of threads, one length after the other."""
    unit = Bf16Unit(threads)
    with ExitStack() as stack:
        config = {"path": path, "threads": threads}
        workers = {
            name: stack.enter_context(spawn("rlx", **config, precision=precision))
            for name, precision in OURS.items()
        }
        llama = stack.enter_context(spawn("llama.cpp", args.llama_python, **config))
        config |= {"copy": args.torch_copy or stack.enter_context(tempfile.TemporaryDirectory())}
        workers["torch"] = stack.enter_context(spawn("torch", args.torch_python, **config))
        workers["llama.cpp"] = llama
        about = workers["torch"].ask(what="about")["versions"]
        facts = {"torch": about, "llama.cpp": llama.ask(what="about")}
        for name, worker in workers.items():
            worker.ask(what="read", prompt=prompt_ids(path, WARM_TOKENS[name]), warm=False)
        for n in args.lengths:
            samples: dict[str, list[Any]] = {name: [] for name in (*CONTESTANTS, "loop")}
            ids = prompt_ids(path, n)
            for turn in range(args.rounds):
                for name in CONTESTANTS if turn % 2 else CONTESTANTS[::-1]:
                    if name == "llama.cpp" and turn and turn * n >= LLAMA_TOKENS:
                        continue
                    # oneDNN compiles for the sizes that it meets, the others for all.
                    warm = turn == 0 and name == "torch"
                    got = workers[name].ask(what="read", prompt=ids, warm=warm)
                    if got["first"] not in right[str(n)]:
                        raise SystemExit(
                            f"{name}, {n} tokens: expected one of {right[str(n)]} to follow, "
                            f"got {got['first']!r}"
                        )
                    samples[name].append(got["samples"])
                samples["loop"].append(median(unit.loop() for _ in range(5)))
            print(f"{threads} threads, {n}: {', '.join(row(path, n, samples))}", file=sys.stderr)
            yield {
                **facts,
                "peak": [unit.peak() for _ in range(3)],
                "lengths": {str(n): samples},
                "idle_cpu_s": {name: worker.idle_cpu_s for name, worker in workers.items()},
            }


def measure_accuracy(args: argparse.Namespace, path: str) -> dict[str, Any]:
    """Return how logits of bf16 differ from those of f32, ours and torch's, for some texts."""
    import numpy as np
    from accuracy import GOLDEN, log_softmax, prose, rms_error

    import rlx

    exact, ours = (rlx.load(path, p, max_context=CONTEXT) for p in ("exact", "auto"))
    golden = json.loads(GOLDEN.read_text())["nll_text"]
    texts = {"the golden text": exact.tokenizer.encode(golden)}
    for name in PROSE:
        texts[name] = exact.tokenizer.encode(prose(HERE.parent / name))[:PROSE_TOKENS]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        copy = args.torch_copy or folder
        torch = spawn("torch", args.torch_python, path=path, threads=2, copy=copy)
        stack.enter_context(torch)
        for name, ids in texts.items():
            file = str(Path(folder, "logits.npy"))
            torch.ask(what="logits", prompt=ids, file=file)
            truth = exact.logits(ids)
            nlls = {}
            for who, given in (
                ("exact", truth),
                ("rlx, bf16", ours.logits(ids)),
                ("torch, bf16", np.load(file)),
            ):
                nll = -float(log_softmax(given)[np.arange(len(ids) - 1), ids[1:]].mean())
                nlls[who] = {
                    "nll": nll,
                    "nmse": rms_error(given, truth.astype(np.float64)) ** 2,
                    "same_top": float((given.argmax(1) == truth.argmax(1)).mean()),
                }
            found[name] = {"tokens": len(ids), "contestants": nlls}
    return found


# Reports


def ratio(samples: dict[str, list[Any]], name: str, ours: str = "bf16") -> float:
    """
    Return a contestant's time over ours: the median of those of the rounds.

    What slows the machine for a while slows all that run in a round.
    """
    pairs = zip(samples[name], samples[ours], strict=False)
    return median(median(theirs) / median(own) for theirs, own in pairs)


def row(path: str, n: int, samples: dict[str, list[Any]]) -> list[str]:
    rates: list[str] = []
    for name in CONTESTANTS:
        times = [seconds for found in samples[name] for seconds in found]
        rates += [f"{n / median(map(median, samples[name])):.0f}", f"{n / min(times):.0f}"]
    loops = samples["loop"]
    share = median(
        flops(path, n) / median(own) / 1e12 / loop
        for own, loop in zip(samples["bf16"], loops, strict=True)
    )
    return [
        str(n),
        *rates,
        f"**{ratio(samples, 'torch'):.2f}**",
        f"**{ratio(samples, 'llama.cpp'):.1f}**",
        f"{ratio(samples, 'torch', 'exact'):.2f}",
        f"{median(loops):.2f}",
        f"{share:.0%}",
    ]


def accuracy_table(found: dict[str, Any]) -> str:
    rows = [
        [
            f"{text}, {facts['tokens']} tokens",
            name,
            f"{each['nll']:.5f}",
            f"{each['nll'] / facts['contestants']['exact']['nll'] - 1:+.3%}",
            f"{each['same_top']:.1%}",
            f"{each['nmse']:.1e}",
        ]
        for text, facts in found.items()
        for name, each in facts["contestants"].items()
    ]
    return table(["text", "logits", "NLL", "beside exact", "same top token", "NMSE"], rows)


def report(result: dict[str, Any], path: str) -> str:
    """Return the whole result as Markdown."""
    header = ["tokens"]
    for name in ("rlx bf16, tok/s", "rlx exact", "torch bf16", "llama.cpp"):
        header += [name, "best"]
    header += ["bf16 / torch", "bf16 / llama.cpp", "exact / torch", "loop", "bf16 of loop"]
    runs = result["runs"]
    some = next(iter(runs.values()))[0]
    idle = max(s for parts in runs.values() for p in parts for s in p["idle_cpu_s"].values())
    text = [
        f"{result['date']}; {result['machine']}. {some['torch']}; llama.cpp in xllamacpp "
        f"{some['llama.cpp']['version']}. CPU time of idle contestants: at most {idle:.3f} s."
    ]
    for threads, parts in sorted(runs.items()):
        lengths = {int(n): samples for part in parts for n, samples in part["lengths"].items()}
        peak = [rate for part in parts for rate in part["peak"]]
        rows = [row(path, n, samples) for n, samples in sorted(lengths.items())]
        text.append(
            f"Threads: {threads}. Products that stay in registers: {median(peak):.2f} TFLOP/s, "
            f"best {max(peak):.2f}."
        )
        text.append(table(header, rows))
    if "accuracy" in result:
        text.append(accuracy_table(result["accuracy"]))
    return "\n\n".join(text)


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    add = parser.add_argument
    add("--threads", type=numbers, default=[1, 2], metavar="N,M", help="default 1,2; or none")
    add("--lengths", type=numbers, default=list(LENGTHS), metavar="N,M", help="of prompts")
    add("--rounds", type=int, default=5)
    add("--accuracy", action="store_true", help="how near bf16's logits are to f32's, too")
    add("--torch-python", default=sys.executable, metavar="PYTHON")
    add("--torch-copy", metavar="FOLDER", help="keep torch's copy of the weights, and take it")
    add("--llama-python", default=sys.executable, metavar="PYTHON")
    add("--json", metavar="FILE", help="keep every sample")
    add("--add", metavar="FILE", help="report what such a file holds too")
    add("--update", action="store_true", help="put the tables into README.md")
    args = parser.parse_args()
    if not all(1 <= n <= CONTEXT for n in args.lengths):
        parser.error(f"lengths: expected 1 to {CONTEXT} tokens each")
    return args


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        _, _, name, config = sys.argv
        return serve(WORKERS[name](**json.loads(config)))
    args = parse()
    path = model_path()
    result: dict[str, Any] = {"runs": {}, "expected": {}}
    if args.add:
        result = json.loads(Path(args.add).read_text())
    result |= {"date": today(), "machine": machine()}
    if not {*map(str, args.lengths)} <= {*result["expected"]}:
        result["expected"] |= expected(path, args.lengths)
    for threads in args.threads:
        for found in side_by_side(args, path, threads, result["expected"]):
            result["runs"].setdefault(str(threads), []).append(found)
            write_json(args.json, result)
    if args.accuracy:
        result["accuracy"] = measure_accuracy(args, path)
    write_json(args.json, result)
    if not result["runs"]:
        return None
    text = report(result, path)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "prefill", text)
    return None


if __name__ == "__main__":
    main()
