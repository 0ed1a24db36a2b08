"""`rlx embed`: an embedding for each line of a text, with a progress bar where someone looks on."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from rlx.errors import RlxError
from rlx.runtime.encoder import TextEncoder
from rlx.runtime.replacing import errors_of, replacing
from rlx.tools.endings import standard_input, standard_output
from rlx.wording import several

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WIDTH = 30
"""Characters of the bar."""
_PACE_S = 0.1
"""Between two pictures of it."""
_MOST_LINE = 1 << 20
"""Bytes of a line: no encoder reads on, and a tokenizer takes 150 times as much memory."""
_MOST_MEMORY = 1 << 30
"""Bytes that the texts of a file take."""


class Progress:
    """A bar on stderr, where that is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]: closed
        self._started = self._last = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if not self._shown or (done < total and now - self._last < _PACE_S):
            return
        self._last = now
        filled = _WIDTH * done // max(total, 1)
        rate = done / max(now - self._started, 1e-9)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        print(f"\r[{bar}] {done}/{total}, {rate:.0f} texts/s ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def embed(args: argparse.Namespace) -> None:
    """Run the command."""
    texts = _lines(args.file)
    if args.output is None:
        _embed(args, texts, None)
        return
    from rlx.deploy import facts
    from rlx.encoders import TOKENIZER, WEIGHTS
    from rlx.models.bert import CONFIG, LIMITS, POOLING

    names = (WEIGHTS, TOKENIZER, CONFIG, LIMITS, POOLING, facts.FACTS, facts.WEIGHTS)
    parts = [os.path.join(args.model, name) for name in names]
    objects = os.path.join(args.model, facts.OBJECTS)
    if os.path.isdir(objects):
        parts += [entry.path for entry in os.scandir(objects)]
    # Opened before the model is loaded and at work, which may take minutes.
    with replacing(args.output, args.file, args.profile or "", *parts) as file:
        _embed(args, texts, file)


def _embed(args: argparse.Namespace, texts: list[str], file: BinaryIO | None) -> None:
    """Print the embeddings of texts, or write them to the file."""
    from rlx.driver import load

    model = load(args.model, args.precision, args.threads, args.max_context, profile=args.profile)
    if not isinstance(model, TextEncoder):
        raise RlxError(f"{args.model}: expected the folder of an encoder, got a language model")
    progress = Progress()
    try:
        embeddings = model.encode(texts, progress)
    finally:
        progress.end()
    figures = {**asdict(model.stats), "tok_s": model.stats.tok_s}
    if file is not None:
        with errors_of(args.output):
            # Without a suffix of its own, as the caller named it.
            np.save(file, embeddings)
            file.flush()
    elif args.json:
        print(json.dumps({"embeddings": _numbers(embeddings), **figures}))
    else:
        out = standard_output()
        for row in _numbers(embeddings):
            out.write(f"{' '.join(map(str, row))}\n")
    if file is not None and args.json:
        print(json.dumps({"output": args.output, **figures}))
    elif not args.json and not args.quiet:
        print(_table(figures), file=sys.stderr)


def _lines(path: str) -> list[str]:
    """Return the lines of a file, or of stdin for `-`, without their ends."""
    if path == "-":
        return _texts(standard_input(), "stdin")
    with open(path, "rb") as file:
        return _texts(file, path)


def _texts(file: BinaryIO, name: str) -> list[str]:
    texts: list[str] = []
    left = _MOST_MEMORY
    # Not `splitlines`, for which a page break ends a line too.
    while line := file.readline(_MOST_LINE + len(b"\r\n")):
        where = f"{name}, line {len(texts) + 1}"
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > _MOST_LINE:
            raise RlxError(
                f"{where}: expected a text of at most {_MOST_LINE >> 20} MiB, got more, perhaps "
                "without end: give a file with a line for each text"
            )
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise RlxError(f"{where}: expected text in UTF-8: {error}") from error
        left -= sys.getsizeof(text)
        if left < 0:
            raise RlxError(
                f"{where}: expected texts that take at most {_MOST_MEMORY >> 30} GiB of memory, "
                "got more, perhaps without end: give them in several files"
            )
        texts.append(text)
    return texts


def _numbers(embeddings: NDArray[np.float32]) -> list[list[float]]:
    """Return the numbers with as many digits as f32 has."""
    return [[float(f"{x:.9g}") for x in row] for row in embeddings.tolist()]


def _table(figures: dict[str, Any]) -> str:
    f, texts = figures, several(figures["texts"], "text")
    rows = [
        ("embed", f"{f['tok_s']:.0f} tok/s ({texts}, {several(f['tokens'], 'token')})"),
        ("tokenize", f"{f['tokenize_s']:.2f} s"),
        ("load", f"{f['load_s']:.2f} s, {f['compile_s']:.2f} s of it compiling"),
        ("threads", f"{f['threads']}, {several(f['barriers_per_step'], 'barrier')} in a step"),
    ]
    return "\n".join(f"{name:13} {value}" for name, value in rows)
