"""Texts to token ids by a `tokenizer.json`, which the `tokenizers` library reads."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import RlxError
from rlx.files import read_regular

if TYPE_CHECKING:
    import tokenizers


class JsonTokenizer:
    """
    The tokenizer of a file, which cuts a text at `limit` tokens, those that it adds among them.

    What the file says of cutting and padding is not followed: a folder of Sentence Transformers
    says that elsewhere, and rows are packed, not padded.
    """

    def __init__(self, path: Path, limit: int):
        """Raise RlxError for a file that is missing or damaged, and without the library."""
        try:
            import tokenizers
        except ImportError as error:
            raise RlxError(
                "encoding text needs the package tokenizers: pip install 'rlx[models]'"
            ) from error
        try:
            data = read_regular(path)
        except OSError as error:
            raise RlxError(
                f"{path}: expected a tokenizer: {error.strerror}: give token ids"
            ) from error
        self._path = path
        with refused_by_library(f"{path}: expected a tokenizer in JSON"):
            self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_buffer(data)
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(limit)  # pyright: ignore[reportUnknownMemberType]: **kwargs

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """
        Return the ids of each text. Raises TypeError or UnicodeEncodeError for what is none, and
        RlxError where the file says what can't be done.
        """
        with refused_by_library(f"{self._path}: it can't encode texts, it is damaged"):
            return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts))]


@contextmanager
def refused_by_library(what: str) -> Generator[None]:
    """
    Raise RlxError for whatever the library doesn't like, but for a text that is none.

    Where its code panics it has also written that to stderr: to hold that back would hold back what
    other threads write there.
    """
    try:
        yield
    except (TypeError, UnicodeEncodeError):
        raise
    except BaseException as error:
        # The library raises a bare Exception; where its code panics, what comes is not even that.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise RlxError(f"{what}: {error!s:.200}") from error
        raise
