"""
Text to token ids and back, for the byte-level BPE vocabularies of GGUF files.

The encoder is the `tokenizers` library's (`encoder.py`), which a run on token ids never loads.
Decoding needs no library.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, cast

import numpy as np

from rlx.checks import integer, iterated
from rlx.errors import RlxError
from rlx.files import read_regular
from rlx.frontends.gguf import GgufFile, StringArray

if TYPE_CHECKING:
    import jinja2

    from rlx.frontends.encoder import Encoder


class PreTokenizer(NamedTuple):
    """How a text is cut into words before merging, and what else goes with that family."""

    split: str | None
    """A regular expression; each match is a word of its own. Of the family's own publication."""
    gpt2_split: bool = False
    """Cut with the GPT-2 expression, after `split`."""
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges say."""
    nfc: bool = False
    """Unicode normalisation form C first."""
    add_bos: bool = False
    """Whether a text begins with BOS if the file does not say."""


_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = PreTokenizer(None, gpt2_split=True)
_LLAMA3 = PreTokenizer(_LLAMA3_SPLIT, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer(_LLAMA3_SPLIT.replace("{1,3}", ""), nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": PreTokenizer(r"\p{N}", gpt2_split=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
}
"""By the name in `tokenizer.ggml.pre`."""

_END_OF_TURN = frozenset(
    "<|im_end|> <|endoftext|> <|end_of_text|> <|eot_id|> <|eom_id|> <|end|> <end_of_turn> "
    "<EOT> </s>".split()
)
"""Control tokens of these names end a generation, beside the ones that the file names."""

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SAVE_FORMAT = 1


def _byte_alphabet() -> dict[str, int]:
    """The GPT-2 alphabet: a printable character for every byte, to that byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTES = _byte_alphabet()


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer is made of; `control` and `literal` tokens are matched in the text."""

    pre: str
    tokens: Sequence[str]
    merges: Sequence[str]
    """Pairs "left right", the first merged first."""
    control: list[int]
    literal: list[int]
    """Tokens that stand for their own text, and are printed."""
    bos_id: int | None
    eos_id: int | None
    eos_ids: list[int]
    add_bos: bool
    chat_template: str | None


class TokenStream:
    """Turns ids into text one at a time, holding back the bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, perhaps none. Raises `RlxError` for a bad id."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The end of the text: U+FFFD if a character was left unfinished."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """
    A byte-level BPE tokenizer with its special tokens and its chat template.

    `encode` drops the bytes for which the vocabulary has no token (some have none for a few
    control characters), as the models' own tokenizers do.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_ids = frozenset(vocabulary.eos_ids)
        self._control = frozenset(vocabulary.control)
        self._literal = frozenset(vocabulary.literal)

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Self:
        """Raises `RlxError` when the file holds no tokenizer, or a kind that rlx cannot run."""
        return cls(_read_vocabulary(gguf))

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """
        The ids of `text`, in which special tokens written out become those tokens.

        With `add_special`, BOS goes first if the model wants it and the text does not have it.
        """
        if not isinstance(cast(object, text), str):
            raise RlxError(f"encode: expected a str of valid Unicode, got {text!r:.80}")
        try:
            ids = self._encoder.encode(text)
        except (TypeError, UnicodeEncodeError) as error:
            raise RlxError(f"encode: expected a str of valid Unicode: {error}") from error
        bos = self.bos_id
        if add_special and self.vocabulary.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """
        The text of `ids`: control tokens give none, bytes that are no UTF-8 give U+FFFD.

        Raises `RlxError` for an id outside the vocabulary.
        """
        each = iterated("decode", ids, "a sequence of token ids")
        return b"".join(map(self.token_bytes, each)).decode(errors="replace")

    def stream(self) -> TokenStream:
        """An incremental `decode`: the pushed pieces and the flush join to the same text."""
        return TokenStream(self)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes, perhaps a part of a character, that a token adds to the text."""
        token_id = integer("decode: token id", token_id, 0, self.vocab_size - 1)
        if token_id in self._control:
            return b""
        token = self.vocabulary.tokens[token_id]
        if token_id in self._literal:
            return token.encode()
        try:
            return bytes(BYTES[character] for character in token)
        except KeyError:
            # Not of the byte alphabet, such as a filler token: it stands for its own text.
            return token.encode()

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """
        The prompt that the model's chat template makes of `messages`, to `encode` as it is.

        A message is `{"role": ..., "content": ...}`. Raises `RlxError` when the model has no
        template, or the template refuses the messages.
        """
        variables = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._text(self.vocabulary.bos_id),
            "eos_token": self._text(self.vocabulary.eos_id),
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        template = self._template
        try:
            return template.render(variables)
        # The template is a program of the file's: it can raise anything.
        except Exception as error:
            raise RlxError(
                f"chat: the model's chat template refused the messages: {error!s:.200}"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all that `load` needs, atomically: readers see the old file or the new one."""
        path = Path(path)
        lists = {"tokens": list(self.vocabulary.tokens), "merges": list(self.vocabulary.merges)}
        saved = {"format": _SAVE_FORMAT, "vocabulary": {**asdict(self.vocabulary), **lists}}
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_text(json.dumps(saved, ensure_ascii=False), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise RlxError(f"{path}: cannot save the tokenizer: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The tokenizer that `save` wrote. Raises `RlxError` if the file is not one of those."""
        try:
            saved = json.loads(read_regular(path))
            if saved["format"] != _SAVE_FORMAT:
                raise ValueError(f"format {saved['format']}, not {_SAVE_FORMAT}")
            return cls(Vocabulary(**saved["vocabulary"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RlxError(
                f"{path}: expected a tokenizer that this version of rlx saved: {error}; delete it"
            ) from error

    def _text(self, token_id: int | None) -> str:
        return "" if token_id is None else self.vocabulary.tokens[token_id]

    @cached_property
    def _encoder(self) -> Encoder:
        from rlx.frontends.encoder import Encoder

        return Encoder(self.vocabulary)

    @cached_property
    def _template(self) -> jinja2.Template:
        return _compile_template(self.vocabulary.chat_template)


def _raise_exception(message: str) -> NoReturn:
    raise ValueError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _compile_template(source: str | None) -> jinja2.Template:
    if source is None:
        raise RlxError(
            "chat: the model has no chat template (tokenizer.chat_template): give it a plain prompt"
        )
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise RlxError("chat needs the package jinja2: pip install 'rlx[models]'") from error

    def tojson(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    # The options that the published templates are written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    try:
        return environment.from_string(source)
    # A template with too many blocks in blocks is a program that Python refuses.
    except Exception as error:
        raise RlxError(f"chat: the model's chat template is damaged: {error!s:.200}") from error


def _read_vocabulary(gguf: GgufFile) -> Vocabulary:
    kind = gguf.value("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise RlxError(
            f"{gguf.path}: expected the tokenizer model 'gpt2' (byte-level BPE), found "
            f"{kind!r:.80}; give token ids instead of text"
        )
    pre = gguf.value("tokenizer.ggml.pre", str)
    if pre not in PRE_TOKENIZERS:
        raise RlxError(
            f"{gguf.path}: expected a pre-tokenizer out of {', '.join(PRE_TOKENIZERS)}, found "
            f"{pre!r:.80}; give token ids instead of text"
        )
    tokens = gguf.value("tokenizer.ggml.tokens", StringArray)
    types = gguf.value("tokenizer.ggml.token_type", np.ndarray, np.ones(len(tokens), np.int32))
    if len(types) != len(tokens):
        raise RlxError(
            f"{gguf.path}: expected one tokenizer.ggml.token_type for each of the {len(tokens)} "
            f"tokens, found {len(types)}"
        )
    control: list[int] = np.flatnonzero(types == _CONTROL).tolist()
    literal: list[int] = np.flatnonzero((types == _USER_DEFINED) | (types == _UNKNOWN)).tolist()

    def special(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        index = gguf.value(key, int, None)
        if index is not None and not 0 <= index < len(tokens):
            raise RlxError(f"{gguf.path}: expected {key} below {len(tokens)}, found {index}")
        return index

    eos = special("eos")
    ends = {eos, special("eot"), special("eom")} - {None}
    ends |= {index for index in control if tokens[index] in _END_OF_TURN}
    return Vocabulary(
        pre=pre,
        tokens=tokens,
        merges=gguf.value("tokenizer.ggml.merges", StringArray),
        control=control,
        literal=literal,
        bos_id=special("bos"),
        eos_id=eos,
        eos_ids=sorted(cast("set[int]", ends)),
        add_bos=gguf.value("tokenizer.ggml.add_bos_token", bool, PRE_TOKENIZERS[pre].add_bos),
        chat_template=gguf.value("tokenizer.chat_template", str, None),
    )
