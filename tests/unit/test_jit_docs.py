"""The page about `rlx.jit` runs from its first example to the last, and so does the example."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_page_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """They are one program, in a file of its own: its lines are shown in errors."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/jit.md").read_text(), re.DOTALL)
    assert len(blocks) >= 8
    path = tmp_path / "page.py"
    path.write_text("\n".join(blocks))
    runpy.run_path(str(path))
    said = capsys.readouterr().out
    assert "bytes moved" in said
    assert "GB/s" in said


def test_the_network_learns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["mlp.py"])
    module = runpy.run_path(str(ROOT / "examples/mlp.py"))
    assert module["main"](steps=600) > 0.9
    assert module["step"].stats.compilations == 1
