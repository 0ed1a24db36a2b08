"""`rlx generate`, and what else loads a language model and gives it a prompt."""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

from rlx.errors import RlxError
from rlx.files import read_bounded
from rlx.tools.age import process_age
from rlx.tools.endings import standard_input
from rlx.wording import several

if TYPE_CHECKING:
    from rlx.runtime.language import LanguageModel

MB = 1e6


_MOST_PROMPT = 4 << 20
"""Bytes of a prompt: a tokenizer takes 270 times as much memory."""


def prompt_text(args: argparse.Namespace) -> str | None:
    """Return the prompt's text; None where it was given as token ids."""
    if args.prompt is None:
        if args.chat:
            raise RlxError("--chat takes a text: give it with --prompt")
        return None
    text: str = args.prompt
    if text == "-":
        try:
            text = read_bounded(standard_input(), "stdin", _MOST_PROMPT).decode()
            text = text.removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as e:
            raise RlxError(f"stdin: expected a prompt in UTF-8: {e}") from e
    if not text:
        raise RlxError("the prompt is empty: expected at least one token")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RlxError("the prompt: expected text in UTF-8 (valid Unicode)") from None
    return text


def load_language(args: argparse.Namespace, verify: bool) -> LanguageModel:
    """Load the model that the arguments name."""
    if os.path.isdir(args.model):
        from rlx.deploy.facts import is_compiled

        if not is_compiled(args.model):
            raise RlxError(
                f"{args.model}: expected a GGUF file, found a directory, which has no rlx.json "
                "of `rlx compile` either; name the file in it, or ask rlx embed where it is that "
                "of an encoder"
            )
    from rlx.driver import load
    from rlx.runtime.language import LanguageModel

    model = load(
        args.model,
        args.precision,
        args.threads,
        args.max_context,
        verify,
        args.profile,
        args.kv_cache,
    )
    if not isinstance(model, LanguageModel):
        raise RlxError(f"{args.model}: expected a language model, got an encoder: ask rlx embed")
    return model


def prompt_ids_of(
    args: argparse.Namespace, text: str | None, model: LanguageModel
) -> list[int] | None:
    """Return the prompt's tokens; None where there is no prompt."""
    if text is None:
        return args.prompt_ids
    if args.chat:
        text = model.tokenizer.chat([{"role": "user", "content": text}])
    return model.tokenizer.encode(text)


def generate(args: argparse.Namespace) -> None:
    """Stream the answer to the prompt that the arguments give, and print figures."""
    # What can be wrong without the model comes before loading it, which may take seconds.
    text = prompt_text(args)
    from rlx.runtime.request import Settings
    from rlx.runtime.stages import recorded, stage

    sampling = (args.temperature, args.top_k, args.top_p, args.seed)
    settings = Settings(args.max_tokens, *sampling, stop=not args.no_stop)
    settings.checked()
    with recorded() as stages:
        stages.add("start of Python, numpy", process_age())
        model = load_language(args, args.verify)
        with stage("tokenizer"):
            prompt_ids = prompt_ids_of(args, text, model) or []
            stream = model.tokenizer.stream()
        ids_of = model.generate_ids(prompt_ids, *settings)
        with stage("prefill"):
            first = next(iter(ids_of))
    first_token_s = process_age()
    # An answer may have characters that the terminal's encoding has not.
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")
    ids: list[int] = []
    pieces: list[str] = []

    def show(piece: str) -> None:
        pieces.append(piece)
        if not args.json:
            print(piece, end="", flush=True)

    for token in chain([first], ids_of):
        ids.append(token)
        show(stream.push(token))
    show(stream.flush())
    figures = _figures(model, first_token_s)
    if args.json:
        facts = {"prompt_ids": prompt_ids, "ids": ids, "text": "".join(pieces), **figures}
        print(json.dumps({**facts, "stages": stages.as_json()}))
        return
    print(flush=True)
    if not args.quiet:
        print(_table(figures, args.verbose), file=sys.stderr)
    if args.verbose:
        print(stages.table(), file=sys.stderr)


def _figures(model: LanguageModel, first_token_s: float) -> dict[str, Any]:
    """Return the figures of the last generation by name: bytes, seconds, tokens per second."""
    from dataclasses import asdict

    return {
        **asdict(model.stats),
        "prefill_tok_s": model.stats.prefill_tok_s,
        "decode_tok_s": model.stats.decode_tok_s,
        "first_token_s": first_token_s,
        **model.resident()._asdict(),
        "capacity": model.capacity,
    }


def _table(figures: dict[str, Any], verbose: bool) -> str:
    """Return the figures of a generation for people; `verbose` adds those of the compiler."""

    def mb(name: str) -> str:
        value = figures[name]
        return "unknown" if value is None else f"{value / MB:.1f} MB"

    f = figures
    mapped = f"{mb('resident_weight_bytes')} of the {mb('packed_file_bytes')} of packed weights"
    rows = [
        ("prefill", f"{f['prefill_tok_s']:.1f} tok/s ({several(f['prompt_tokens'], 'token')})"),
        ("decode", f"{f['decode_tok_s']:.1f} tok/s ({several(f['decode_steps'], 'step')})"),
        ("first token", f"{f['first_token_s']:.2f} s after the start of the process"),
        ("load", f"{f['load_s']:.2f} s, {f['compile_s']:.2f} s of it compiling"),
        ("memory", f"{mb('rss_anon_bytes')} of this process alone, {mapped}"),
        ("weights", f"{mb('weight_bytes')}, {mb('weight_bytes_per_step')} read in a step"),
        ("arena, state", f"{mb('arena_bytes')}, {mb('state_bytes')} in {f['kv_cache']}"),
        ("threads", f"{f['threads']}, {several(f['barriers_per_step'], 'barrier')} in a step"),
        ("kernels", f"{f['kernels']}, {several(f['kernels_per_step'], 'launch', 'es')} in a step"),
    ]
    if verbose:
        rows += [
            ("compilations", f"{f['compilations']}"),
            ("arena bound", f"{mb('arena_lower_bound_bytes')} is the least that it could be"),
            ("context", f"{f['prompt_tokens'] + f['new_tokens']} of {f['capacity']} tokens"),
        ]
    return "\n".join(f"{name:13} {value}" for name, value in rows)
