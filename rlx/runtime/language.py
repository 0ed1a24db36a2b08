"""A language model at work: prompts in chunks through prefill, tokens one by one through decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.checks import integer, iterated
from rlx.errors import RlxError
from rlx.lowering.abi import Sampling
from rlx.runtime.batch import Answer, Batch, BatchStats, Host
from rlx.runtime.memory import Resident
from rlx.runtime.pace import Pace
from rlx.runtime.prefix import Prefix
from rlx.runtime.program import CALL_SECONDS, Program
from rlx.runtime.recorder import Recorder
from rlx.runtime.request import Request, Settings, checked_ids, checked_token
from rlx.runtime.turns import Turns
from rlx.wording import several

if TYPE_CHECKING:
    from rlx.frontends.tokenizer import Tokenizer
    from rlx.runtime.profile import Profile
    from rlx.runtime.threads import Team

BATCH_SLOTS = 32
"""Answers that `generate_batch` makes at the same time, at most."""


@dataclass
class Stats:
    """Facts of a loaded model and of its last generation; seconds, bytes and tokens per second."""

    load_s: float = 0.0
    compile_s: float = 0.0
    compilations: int = 0
    threads: int = 1
    kv_cache: str = "f32"
    """What keys and values are kept in."""
    arena_bytes: int = 0
    arena_lower_bound_bytes: int = 0
    state_bytes: int = 0
    weight_bytes: int = 0
    packed_file_bytes: int = 0
    weight_bytes_per_step: int = 0
    barriers_per_step: int = 0
    kernels_per_step: int = 0
    """Launches in a step, of fewer different kernels."""
    kernels: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Of the prompt, those that were in the state already."""
    new_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_steps: int = 0

    @property
    def prefill_tok_s(self) -> float:
        fed = self.prompt_tokens - self.reused_tokens
        return fed / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tok_s(self) -> float:
        return self.decode_steps / self.decode_s if self.decode_s else 0.0


class PrintIr(Protocol):
    """Prints a program's IR at a stage."""

    def __call__(self, stage: str, program: str) -> str: ...


Marked: TypeAlias = Callable[[Recorder], tuple[Program, Program]]
"""Gives the programs for prefill and decode that tell their marks to a recorder."""


@dataclass
class _Buffers:
    """What the two programs are bound to."""

    tokens: NDArray[np.int32]
    sampling: NDArray[np.uint8]
    id: NDArray[np.int32]
    logits: NDArray[np.float32]
    ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(4096, np.int32))


class LanguageModel:
    """
    A loaded language model; made by `rlx.load`.

    One generation runs at a time: another thread waits for its end, and gets an error where that
    can't come (see `Turns`).
    """

    def __init__(
        self,
        prefill: Program,
        decode: Program,
        make_tokenizer: Callable[[], Tokenizer],
        end_tokens: frozenset[int],
        vocab: int,
        capacity: int,
        stats: Stats,
        marked: Marked,
        resident: Callable[[], Resident],
        print_ir: PrintIr,
        batch_program: Callable[[], Program],
        reuse_prefix: bool = True,
    ):
        self.end_tokens = end_tokens
        """Tokens that end an answer."""
        self._make_tokenizer = make_tokenizer
        self.vocab = vocab
        self.capacity = capacity
        """Positions that prompt and answer share."""
        self.stats = stats
        self._marked = marked
        self.resident = resident
        """Gives what of this process is in memory now."""
        self._print_ir = print_ir
        self._make_batch_program = batch_program
        self._chunk = prefill.manifest.most("seq")
        self.reuse_prefix = reuse_prefix
        """Whether what a prompt shares with the one before it is not computed again."""
        self._past = 0
        self._prefix = Prefix()
        self._turns = Turns()
        self._pace = Pace(self.stats.threads)
        self._use(prefill, decode)

    def _use(self, prefill: Program, decode: Program) -> None:
        """Run with two programs from now on, and buffers of their own."""
        self._prefill, self._decode = prefill, decode
        self._buffers = _Buffers(
            np.zeros(self._chunk, np.int32),
            np.zeros(32, np.uint8),
            np.zeros(1, np.int32),
            np.zeros((1, self.vocab), np.float32),
        )
        for program in (prefill, decode):
            program.bind_input("tokens", self._buffers.tokens)
            program.bind_input("sampling", self._buffers.sampling)
            program.bind_output("id", self._buffers.id)
            program.bind_output("logits", self._buffers.logits)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises RlxError for a kind that is not supported."""
        return self._make_tokenizer()

    @cached_property
    def _batch_program(self) -> Program:
        return self._make_batch_program()

    @property
    def team(self) -> Team:
        """Return the threads that it runs on."""
        return self._decode.team

    def ir(self, stage: str, program: str = "decode") -> str:
        """
        Return the IR of a program (`prefill`, `decode`, `batch`) at a stage (`hir`, `mir`, `lir`,
        `llvm`).

        Raises RlxError for another stage or program.
        """
        return self._print_ir(stage, program)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """
        Yield the answer to a prompt (text, or token ids) in pieces of text.

        Greedy at temperature 0. `top_k` 0 and `top_p` 1 are off. It ends at an end token, after
        `max_tokens`, or when the context is full. Raises RlxError, before the first piece, for an
        empty prompt, one beyond the context, ids out of range, or sampling values out of range.
        """
        settings = Settings(max_tokens, temperature, top_k, top_p, seed)
        return self._pieces(self._request(prompt, settings))

    def _pieces(self, request: Request) -> Iterator[str]:
        stream = self.tokenizer.stream()
        for token in self._tokens(request):
            if token in self.end_tokens:
                break
            piece = stream.push(token)
            if piece:
                yield piece
        rest = stream.flush()
        if rest:
            yield rest

    def generate_ids(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: bool = True,
    ) -> Iterator[int]:
        """Yield token ids, as `generate` does text; an end token is the last, unless not `stop`."""
        settings = Settings(max_tokens, temperature, top_k, top_p, seed, stop)
        return self._tokens(self._request(prompt, settings))

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """
        Return the answers to several prompts: each is what `generate` gives for it alone.

        They are made at the same time, in a batch of up to `BATCH_SLOTS`, and all prompts are
        checked before the first. Raises RlxError as `generate` does.
        """
        settings = Settings(max_tokens, temperature, top_k, top_p, seed)
        each = [*iterated("prompts", prompts, "a sequence of texts or of token ids")]
        requests = [self._request(prompt, settings) for prompt in each]
        if not requests:
            return []
        with self.batch(min(len(requests), BATCH_SLOTS)) as batch:
            answers: list[Answer] = []
            while len(answers) < len(requests) or batch.busy:
                while batch.free and len(answers) < len(requests):
                    answers.append(batch.add(requests[len(answers)].prompt, *settings))
                batch.step()
            self._note(batch.stats)
        return [self._text(answer.ids) for answer in answers]

    def batch(self, slots: int = 8) -> Batch:
        """
        Return a batch that makes up to `slots` answers (1 to 64) at the same time; see `Batch`.

        Each has the whole context of the model; of its memory a slot takes what its tokens need.
        The first batch compiles its program, or finds it in the cache. Raises RlxError for another
        number of slots, and where memory lacks.
        """
        program = self._batch_program
        count = integer("slots", slots, 1, program.manifest.most("rows"))
        host = Host(
            program,
            self.stats.kv_cache,
            self._chunk,
            self.reuse_prefix,
            self._turns.turn,
            self._request,
            self._feed_elsewhere,
        )
        return Batch(host, count)

    def profile(self, prompt: str | Sequence[int], steps: int = 32) -> Profile:
        """
        Return where the time of a greedy answer goes: prefill, and `steps` decode steps.

        The programs are compiled again, with marks, and run beside those without; the roofline is
        measured between their calls. Raises RlxError as `generate` does, and for steps beyond the
        context.
        """
        from rlx.runtime.profile import profile

        ids = self._checked_prompt(prompt)
        left = self.capacity - len(ids)
        if integer("steps", steps, 1) > left:
            raise RlxError(
                f"steps: the context holds {self.capacity} tokens, {len(ids)} of them the "
                f"prompt's: expected at most {several(left, 'step')}, got {steps}"
            )
        return profile(self, ids, steps)

    def with_marks(self, recorder: Recorder) -> LanguageModel:
        """Return this model, on the same threads and state, with programs that have marks."""
        twin = copy(self)
        twin.stats = replace(self.stats)
        twin._use(*self._marked(recorder))
        return twin

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """
        Return the logits after each token of a text, float32 `[n, vocab]`.

        Raises RlxError for no tokens, more than the context holds, or ids out of range.
        """
        ids = self._checked_ids(token_ids)
        result = np.empty((len(ids), self.vocab), np.float32)
        with self._turns.turn():
            self._past = 0
            self._set_sampling(Sampling())
            self._feed(ids, result)
        return result

    def extend(self, token_ids: Sequence[int], restart: bool = False) -> NDArray[np.float32]:
        """
        Feed tokens after those fed before, or from the start; return their logits `[n, vocab]`.

        A single token goes through the decode program, several through prefill. Raises RlxError as
        `logits` does.
        """
        with self._turns.turn():
            past = 0 if restart else self._past
            ids = self._checked_ids(token_ids, past)
            result = np.empty((len(ids), self.vocab), np.float32)
            self._past = past
            self._set_sampling(Sampling())
            if len(ids) == 1:
                self._prefix.cut(past)
                self._buffers.tokens[0] = ids[0]
                self._decode.bind_output("logits", self._buffers.logits)
                self._decode.bind_steps(self._buffers.ids, [])
                self._decode.step({"past": self._past})
                self._past += 1
                result[:] = self._buffers.logits
            else:
                self._feed(ids, result)
        return result

    # Steps

    def _tokens(self, request: Request) -> Iterator[int]:
        stats, turns, ids = self.stats, self._turns, request.prompt
        with turns.turn():
            stats.prompt_tokens, stats.new_tokens, stats.decode_steps = len(ids), 0, 0
            stats.decode_s = 0.0
            self._past = self._prefix.shared(ids) if self.reuse_prefix else 0
            stats.reused_tokens = self._past
            self._set_sampling(request.sampling)
            before = time.perf_counter()
            self._feed(ids[self._past :], None)
            stats.prefill_s = time.perf_counter() - before
            token = checked_token(int(self._buffers.id[0]), 1, stats.kv_cache)
            stats.new_tokens = 1
            yield token
            self._decode.bind_steps(self._buffers.ids, sorted(request.stops))
            left = request.limit - 1
            while left > 0 and token not in request.stops:
                turns.move_on()
                self._buffers.tokens[0] = token
                taken = self._take(left)
                left -= taken
                number = stats.new_tokens + 1
                stats.new_tokens += taken
                for number, token in enumerate(self._buffers.ids[:taken].tolist(), number):
                    yield checked_token(token, number, stats.kv_cache)

    def _take(self, limit: int) -> int:
        """Run as many decode steps as fit one native call; return how many it took."""
        stats = self.stats
        self._prefix.cut(self._past)
        step = stats.decode_s / stats.decode_steps if stats.decode_steps else CALL_SECONDS
        steps = max(1, min(limit, int(CALL_SECONDS / max(step, 1e-6)), len(self._buffers.ids)))
        self._decode.alone = self._pace.alone and self._decode.recorder is None
        before, used = time.perf_counter(), time.process_time()
        taken = self._decode.step({"past": self._past}, steps, step >= CALL_SECONDS)
        # A clock that is coarse may stand still.
        seconds = max(time.perf_counter() - before, 1e-9)
        # A profile is one of all threads.
        if stats.threads > 1 and self._decode.recorder is None:
            used = time.process_time() - used
            self._pace.note(seconds / taken, used / (seconds * stats.threads))
        stats.decode_s += seconds
        stats.decode_steps += taken
        self._past += taken
        return taken

    def _feed(self, ids: list[int], logits: NDArray[np.float32] | None) -> None:
        """Run a prompt through prefill in chunks; write logits of all its tokens, or draw one."""
        program, buffers = self._prefill, self._buffers
        for start in range(0, len(ids), self._chunk):
            part = ids[start : start + self._chunk]
            buffers.tokens[: len(part)] = part
            last = start + len(part) == len(ids)
            out = len(part) if logits is not None else int(last)
            program.bind_output("logits", buffers.logits if logits is None else logits[start:])
            self._prefix.cut(self._past)
            program.step({"seq": len(part), "past": self._past, "out": out}, in_calls=True)
            self._prefix.fed(self._past, part)
            self._past += len(part)

    def _feed_elsewhere(
        self, state: int, past: int, ids: Sequence[int], sampling: Sampling, last: bool
    ) -> int:
        """Run tokens through prefill on another state; return the token drawn after the last."""
        program, buffers = self._prefill, self._buffers
        self._set_sampling(sampling)
        buffers.tokens[: len(ids)] = ids
        program.bind_output("logits", buffers.logits)
        with program.on_state(state):
            sizes = {"seq": len(ids), "past": past, "out": int(last)}
            program.step(sizes, in_calls=True)
        return int(buffers.id[0])

    def _note(self, batch: BatchStats) -> None:
        """Let the statistics be those of a batch."""
        stats = self.stats
        stats.prompt_tokens, stats.reused_tokens = batch.prompt_tokens, batch.reused_tokens
        stats.new_tokens, stats.decode_steps = batch.new_tokens, batch.step_tokens
        stats.prefill_s, stats.decode_s = batch.prefill_s, batch.decode_s

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, without the token that ends it."""
        stream = self.tokenizer.stream()
        pieces = [stream.push(token) for token in ids if token not in self.end_tokens]
        return "".join([*pieces, stream.flush()])

    def _set_sampling(self, sampling: Sampling) -> None:
        self._buffers.sampling[:] = np.frombuffer(sampling.pack(), np.uint8)

    # Checks

    def _request(self, prompt: str | Sequence[int], settings: Settings) -> Request:
        return settings.request(self._checked_prompt(prompt), self.capacity, self.end_tokens)

    def _checked_prompt(self, prompt: str | Sequence[int]) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return self._checked_ids(ids)

    def _checked_ids(self, token_ids: object, past: int = 0) -> list[int]:
        return checked_ids(token_ids, self.vocab, self.capacity, past)
