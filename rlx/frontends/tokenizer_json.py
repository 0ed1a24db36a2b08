"""Texts to token ids by a `tokenizer.json`, which the `tokenizers` library reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import RlxError

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
        if not path.is_file():
            raise RlxError(f"{path}: expected a tokenizer, which is missing: give token ids")
        try:
            self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_file(str(path))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(limit)  # pyright: ignore[reportUnknownMemberType]: **kwargs
        # The library raises a bare Exception for a file that it can't read.
        except Exception as error:
            raise RlxError(f"{path}: expected a tokenizer in JSON: {error}") from error

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text. Raises TypeError or UnicodeEncodeError for what is none."""
        return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts))]
