"""What `rlx.json` says of a folder, and what is wrong with its files."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rlx.errors import RlxError
from rlx.files import read_regular
from rlx.lowering import abi

FORMAT = 3
FACTS, OBJECTS, WEIGHTS, TOKENIZER = "rlx.json", "objects", "weights.packed", "tokenizer.json"
LANGUAGE, ENCODER = "language model", "encoder"


class Facts(NamedTuple):
    """What `rlx.json` says of a folder."""

    model: str
    """The name of the file or folder that it was made of."""
    kind: str
    """`LANGUAGE` or `ENCODER`."""
    programs: dict[str, str]
    """The key of each program's object, by name."""
    team: str
    """The key of the object that runs threads; another version of Python or LLVM makes its own."""
    weights: str
    """The key of the packed weights; empty where the programs have none."""
    tokenizer: str
    """A digest of its file; empty where there is none."""
    vocab: int
    capacity: int
    """Tokens of a prompt and its answer together, or of a text, at most."""
    about: dict[str, Any]
    """What the runtime must know of a model of this kind."""
    precision: str
    runtime: str
    """What the runtime and compiled code agree on: `runtime_digest`."""
    triple: str
    cpu: str
    features: list[str]
    """What the CPU must have."""

    def to_json(self) -> str:
        facts = self._asdict()
        return json.dumps({"format": FORMAT, "digest": digest(_text(facts)), **facts}, indent=1)

    @staticmethod
    def read(path: Path) -> Facts:
        """Return the facts of a folder's file. Raises RlxError where it has none, or damaged."""
        try:
            facts: dict[str, Any] = json.loads(read_regular(path))
            form, known = facts.pop("format"), facts.pop("digest")
        except OSError as e:
            refuse(path, e)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            refuse(path)
        if form != FORMAT:
            raise RlxError(
                f"{path}: expected format {FORMAT}, which this version of rlx reads, found "
                f"{form!r:.80}: compile the model again with it"
            )
        if known != digest(_text(facts)):
            refuse(path)
        if facts["runtime"] != runtime_digest():
            raise RlxError(
                f"{path}: another version of rlx compiled the model, whose code this one can't "
                "run: compile it again"
            )
        return Facts(**facts)


def _text(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is one of `rlx compile`, perhaps an incomplete one."""
    return any(os.path.exists(os.path.join(path, name)) for name in (FACTS, WEIGHTS))


def digest(data: str | bytes) -> str:
    data = data.encode() if isinstance(data, str) else data
    return blake2b(data, digest_size=16).hexdigest()


def runtime_digest() -> str:
    """Return a digest of what says how the runtime calls compiled code, and reads its manifest."""
    folder = Path(abi.__file__).parent
    names = "abi.py", "manifest.py", "sync.py", "in_turn.py", "checksum.py"
    return digest(b"".join((folder / name).read_bytes() for name in names))


def refuse(path: Path, error: OSError | None = None) -> NoReturn:
    """Raise RlxError for a file of a folder that is missing, can't be read, or is damaged."""
    if error is None:
        what = "it is damaged"
    elif isinstance(error, FileNotFoundError):
        what = "expected it in a folder of `rlx compile`, it is missing"
    else:
        raise RlxError(f"{path}: cannot read it: {error.strerror}") from None
    raise RlxError(f"{path}: {what}: copy the folder again, or compile the model again") from None
