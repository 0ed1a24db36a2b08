"""
Text to token ids with the `tokenizers` library, from a vocabulary's tokens and merges.

To build the library's encoder of 49,000 tokens takes 0.1 s. A text can only become tokens that are
parts of it, so the first one, where it is short, is encoded with those alone.
"""

from __future__ import annotations

from typing import Any

from rlx.errors import RlxError
from rlx.frontends.tokenizer import BYTES, PRE_TOKENIZERS, Vocabulary
from rlx.frontends.tokenizer_json import refused_by_library

try:
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers
except ImportError as error:
    raise RlxError(
        "encoding text needs the package tokenizers: pip install 'rlx[models]'"
    ) from error

SHORT = 512
"""The most bytes of a text in which each token is looked for."""
DAMAGED = "the model's tokenizer.ggml.tokens and merges do not fit, the file is damaged"
_CHARACTERS = {byte: character for character, byte in BYTES.items()}


class Encoder:
    """Encodes texts with a vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._whole: tokenizers.Tokenizer | None = None
        self._used = False

    def encode(self, text: str) -> list[int]:
        """
        Return the ids of a text, without BOS.

        Raises RlxError for a vocabulary that is none, TypeError or UnicodeEncodeError for a text.
        """
        used, self._used = self._used, True
        if self._whole is None and not used and len(text.encode()) <= SHORT:
            return self._encoded(self._part(text), text)
        self._whole = self._whole or self._build()
        return self._encoded(self._whole, text)

    @staticmethod
    def _encoded(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
        with refused_by_library(DAMAGED):
            return encoder.encode(text, add_special_tokens=False).ids

    def _ids(self) -> dict[str, int]:
        tokens = self._vocabulary.tokens
        ids = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(ids) != len(tokens):
            raise _damaged("a token is there twice")
        return ids

    def _part(self, text: str) -> tokenizers.Tokenizer:
        """Return an encoder with the tokens that a text can become, and the special ones."""
        vocabulary, ids = self._vocabulary, self._ids()
        ranks = dict(zip(vocabulary.merges, range(len(vocabulary.merges)), strict=True))
        if PRE_TOKENIZERS[vocabulary.pre].nfc:
            text = normalizers.NFC().normalize_str(text)
        letters = "".join(_CHARACTERS[byte] for byte in text.encode())
        found = {token for token in ids if token in letters}
        pairs = [(part[:i], part[i:]) for part in found for i in range(1, len(part))]
        pairs = [pair for pair in pairs if " ".join(pair) in ranks]
        pairs.sort(key=lambda pair: ranks[" ".join(pair)])
        return self._encoder({token: ids[token] for token in found.union(self._special())}, pairs)

    def _build(self) -> tokenizers.Tokenizer:
        """Return an encoder with the whole vocabulary."""
        ids, merges = self._ids(), list(self._vocabulary.merges)
        # One flat list of the parts, paired up again: far quicker than a split for each merge.
        parts = " ".join(merges).split(" ")
        if not all(merge.count(" ") == 1 for merge in merges):
            raise _damaged("a merge is not two tokens with a space between")
        return self._encoder(ids, list(zip(parts[::2], parts[1::2], strict=False)))

    def _encoder(self, ids: dict[str, int], pairs: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        vocabulary = self._vocabulary
        pre = PRE_TOKENIZERS[vocabulary.pre]
        with refused_by_library(DAMAGED):
            model = models.BPE(ids, pairs, ignore_merges=pre.ignore_merges)
        encoder = tokenizers.Tokenizer(model)
        if pre.nfc:
            encoder.normalizer = normalizers.NFC()
        steps: list[Any] = [pre_tokenizers.ByteLevel(False, use_regex=pre.gpt2_split)]
        if pre.split is not None:
            steps.insert(0, pre_tokenizers.Split(tokenizers.Regex(pre.split), "isolated"))
        encoder.pre_tokenizer = pre_tokenizers.Sequence(steps)
        special = [
            tokenizers.AddedToken(token, normalized=False, special=True)
            for token in self._special()
            if token
        ]
        encoder.add_special_tokens(special)  # pyright: ignore[reportUnknownMemberType]: says `list`
        return encoder

    def _special(self) -> list[str]:
        """Return the tokens that are matched in a text before it is cut."""
        vocabulary = self._vocabulary
        return [vocabulary.tokens[i] for i in (*vocabulary.control, *vocabulary.literal)]


def _damaged(why: str) -> RlxError:
    return RlxError(f"{DAMAGED}: {why}")
