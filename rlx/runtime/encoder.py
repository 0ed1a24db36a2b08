"""An encoder of texts at work: texts are packed row behind row, without padding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.checks import integer, iterated
from rlx.errors import RlxError
from rlx.runtime.program import Program
from rlx.runtime.threads import Team
from rlx.runtime.turns import Turns

SHORT_ROWS = 128
"""Rows that take no longer than a native call may, on any machine: they are one."""
BATCH = 4096
"""Texts that become token ids at a time."""

Progress = Callable[[int, int], None]
"""Called with the texts that are done, and how many there are."""


class TextTokenizer(Protocol):
    """Makes token ids of texts."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...


@dataclass
class EncoderStats:
    """Facts of a loaded encoder and of its last call; seconds and bytes."""

    load_s: float = 0.0
    compile_s: float = 0.0
    compilations: int = 0
    threads: int = 1
    products: str = "f32"
    """What is multiplied is rounded to: `f32`, not at all, or `bf16-weights`, weights too."""
    arena_bytes: int = 0
    weight_bytes: int = 0
    packed_file_bytes: int = 0
    barriers_per_step: int = 0
    kernels_per_step: int = 0
    kernels: int = 0
    texts: int = 0
    tokens: int = 0
    steps: int = 0
    """Calls of the program that the texts took."""
    tokenize_s: float = 0.0
    encode_s: float = 0.0
    """Inside the program."""

    @property
    def tok_s(self) -> float:
        return self.tokens / self.encode_s if self.encode_s else 0.0


class TextEncoder:
    """
    A loaded encoder of texts; made by `rlx.load`.

    It serves one thread at a time, others wait.
    """

    def __init__(
        self,
        program: Program,
        make_tokenizer: Callable[[], TextTokenizer],
        vocab: int,
        limit: int,
        stats: EncoderStats,
        print_ir: Callable[[str], str],
    ):
        self.vocab = vocab
        self.limit = limit
        """Tokens of a text, at most; of more the first ones count."""
        self.stats = stats
        self._make_tokenizer = make_tokenizer
        self._print_ir = print_ir
        self._program = program
        self._rows = program.manifest.most("rows")
        self._turns = Turns()
        self._tokens, self._positions, self._starts = (
            np.zeros(self._rows, np.int32) for _ in range(3)
        )
        (output,) = program.manifest.outputs
        self.d = int(output.dims[1])
        """The numbers of an embedding."""
        self._embeddings = np.zeros((self._rows, self.d), np.float32)
        program.bind_input("tokens", self._tokens)
        program.bind_input("positions", self._positions)
        program.bind_input("starts", self._starts)
        program.bind_output("embeddings", self._embeddings)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """Return the model's tokenizer. Raises RlxError for one that is missing or damaged."""
        return self._make_tokenizer()

    @property
    def team(self) -> Team:
        """Return the threads that it runs on."""
        return self._program.team

    def ir(self, stage: str) -> str:
        """Return the program's IR at a stage: `hir`, `mir`, `lir` or `llvm`."""
        return self._print_ir(stage)

    def encode(
        self, texts: Sequence[str] | Sequence[Sequence[int]], progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """
        Return the embeddings of texts, float32 `[texts, d]` in their order, each of length 1.

        A text is cut at `limit` tokens. It may be given as token ids too, with those that a
        tokenizer adds. An embedding does not depend on what other texts are with it. Raises
        RlxError, before anything is computed, for ids out of range, texts without tokens and what
        is neither text nor ids; and for an embedding that is not finite.
        """
        started = time.perf_counter()
        ids = self._ids(texts)
        stats = self.stats
        stats.texts, stats.tokens = len(ids), sum(map(len, ids))
        stats.tokenize_s = time.perf_counter() - started
        result = np.empty((len(ids), self.d), np.float32)
        calls = packed([len(i) for i in ids], self._rows)
        stats.steps, stats.encode_s, done = len(calls), 0.0, 0
        with self._turns.turn():
            for members in calls:
                result[members] = self._step([ids[i] for i in members])
                done += len(members)
                if progress is not None:
                    progress(done, len(ids))
        bad = np.flatnonzero(~np.isfinite(result).all(axis=1))
        if bad.size:
            raise RlxError(
                f"text {bad[0]}: its embedding is not finite: the model's weights are damaged, or "
                "a value left the range of the precision (exact has the widest)"
            )
        return result

    def _step(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Run the program for texts that fit; what it gives is valid up to the next step."""
        start = 0
        for segment, ids in enumerate(texts):
            end = start + len(ids)
            self._starts[segment] = start
            self._tokens[start:end] = ids
            self._positions[start:end] = np.arange(len(ids), dtype=np.int32)
            start = end
        sizes = {"rows": start, "segments": len(texts)}
        before = time.perf_counter()
        self._program.step(sizes, in_calls=start > SHORT_ROWS)
        self.stats.encode_s += time.perf_counter() - before
        return self._embeddings[: len(texts)]

    # Texts

    def _ids(self, texts: object) -> list[NDArray[np.int32]]:
        """Return the token ids of each text, checked and cut."""
        given = list(iterated("texts", texts, "a list of texts or of token ids"))
        where = [i for i, text in enumerate(given) if isinstance(text, str)]
        for start in range(0, len(where), BATCH):
            some = where[start : start + BATCH]
            for i, ids in zip(some, self._encoded([given[i] for i in some]), strict=True):
                given[i] = ids
        return [self._checked(i, ids) for i, ids in enumerate(given)]

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        try:
            return self.tokenizer.encode(texts)
        # The library says of half a character that it is no text.
        except (UnicodeEncodeError, TypeError) as error:
            raise RlxError(f"texts: expected Unicode text: {error}") from error

    def _checked(self, number: int, ids: object) -> NDArray[np.int32]:
        """Return the ids of a text as an array. Raises RlxError for what is none."""
        what = f"text {number}"
        items = list(iterated(what, ids, "a text or token ids"))[: self.limit]
        if not items:
            raise RlxError(f"{what}: expected at least one token, got none")
        try:
            found = np.array(items)
        except (ValueError, OverflowError):
            found = np.empty(0, np.object_)
        integers = found.ndim == 1 and found.dtype.kind in "iu"
        if not integers or found.min() < 0 or found.max() >= self.vocab:
            # Names the first that is wrong.
            last, tokens = self.vocab - 1, enumerate(items)
            found = np.array([integer(f"{what}: token {i}", t, 0, last) for i, t in tokens])
        return found.astype(np.int32)


def packed(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """
    Return which texts go together: none beyond `rows`, in calls that are about as long.

    Long ones come first, in a call too: so threads that take one after the other end together.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    left = sum(lengths)
    calls: list[list[int]] = []
    filled = enough = rows
    for i in order:
        if filled >= enough or filled + lengths[i] > rows:
            # As many calls as are needed for what is left share it evenly.
            filled, enough = 0, -(-left // -(-left // rows))
            calls.append([])
        calls[-1].append(i)
        filled += lengths[i]
        left -= lengths[i]
    return calls
