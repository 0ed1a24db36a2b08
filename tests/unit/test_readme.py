"""README.md: each of its examples in Python runs, copied alone."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from encoders import write_bert
from models import TINY_VOCAB, write_llama

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_an_example_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Beside small models of the names that it gives."""
    sizes = {"layers": 1, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": TINY_VOCAB}
    write_llama(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf", **sizes, ctx=256)
    write_bert(tmp_path / "all-MiniLM-L6-v2")
    monkeypatch.chdir(tmp_path)
    # A file of its own: `rlx.jit` shows its lines in errors.
    (tmp_path / "example.py").write_text(block)
    runpy.run_path("example.py")
