"""What is asked of a language model, checked: a prompt, and how its answer is drawn."""

from __future__ import annotations

from typing import NamedTuple

from rlx.checks import boolean, integer, iterated, real
from rlx.errors import RlxError
from rlx.lowering.abi import Sampling
from rlx.wording import several


class Request(NamedTuple):
    """What is asked of a model, checked."""

    prompt: list[int]
    limit: int
    """New tokens at most, no more than the context holds."""
    sampling: Sampling
    stops: frozenset[int]
    """Tokens that end the answer."""


class Settings(NamedTuple):
    """How an answer is made: the arguments of `LanguageModel.generate_ids`, as they were given."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: bool = True

    def checked(self) -> tuple[Sampling, int]:
        """
        Return how to draw tokens, and how many at most.

        Raises RlxError, naming it, for a value out of range.
        """
        sampling = Sampling(
            # The compiled code takes f32.
            real("temperature", self.temperature, 0.0, 3e38),
            integer("top_k (0 is off)", self.top_k, 0, 2**31 - 1),
            real("top_p (1 is off)", self.top_p, 0.0, 1.0, above=True),
            integer("seed", self.seed, 0, 2**64 - 1),
        )
        return sampling, integer("max_tokens", self.max_tokens, 1)

    def request(self, prompt: list[int], capacity: int, ends: frozenset[int]) -> Request:
        """
        Return what is asked with a checked prompt, of a context of `capacity` positions.

        `ends` are the tokens that end an answer, unless not `stop`. Raises RlxError as `checked`.
        """
        sampling, count = self.checked()
        stops = ends if boolean("stop", self.stop) else frozenset[int]()
        return Request(prompt, min(count, capacity - len(prompt) + 1), sampling, stops)


def checked_ids(token_ids: object, vocab: int, capacity: int, past: int = 0) -> list[int]:
    """
    Return token ids below `vocab`, to be fed after `past` others to a context of `capacity`.

    Raises RlxError for what is no sequence of them, for none, and for more than the context holds.
    """
    last, tokens = vocab - 1, enumerate(iterated("token ids", token_ids, "a sequence of integers"))
    ids = [integer(f"token {i} of the prompt", token, 0, last) for i, token in tokens]
    if not ids:
        raise RlxError("the prompt is empty: expected at least one token")
    if past + len(ids) > capacity:
        raise RlxError(
            f"the prompt has {several(past + len(ids), 'token')}, and the context holds "
            f"{capacity}: shorten it, or load the model with a larger max_context"
        )
    return ids


def no_token(number: int, kv_cache: str) -> RlxError:
    """Return why an answer has no token, its `number`-th: none could be drawn."""
    why = "the model's weights are damaged, or its numbers leave the range of f32"
    if kv_cache == "f16":
        why = (
            "a key or a value left the range of kv_cache='f16', which ends at 65,504 (load the "
            "model with kv_cache='f32' or 'bf16'), or the model's weights are damaged"
        )
    return RlxError(f"token {number} of the answer: all logits before it are NaN: {why}")


def checked_token(token: int, number: int, kv_cache: str) -> int:
    """Return an answer's token, its `number`-th; raises RlxError where none could be drawn."""
    if token < 0:
        raise no_token(number, kv_cache)
    return token
