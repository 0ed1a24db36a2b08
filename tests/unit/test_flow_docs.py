"""docs/flow.md: its tables name every stage, each with its class and its test; its example runs."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.flow.profile import CompileProfile, FusionOptions
from rlx.passes.pipelines import pipeline_for

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "flow.md").read_text()
ROW = re.compile(r"^\| (\w+) \| `([\w.]+)` \| .* \| `(\w+\.py)::(\w+)` \|$", re.MULTILINE)

STAGES = """
    Embed RopeTables ZeroBeta BindDecodeInputs AttnMask LlamaDecodeLayer LlamaDecoder LlamaKvTap
    Repeat Named Sequence RmsNorm GatherLastToken LmHead Linear ResidualSave ResidualAdd SwiGlu
    SelfAttnPrefill GdnScan StoreStream LoadStream DualStream Custom BertEncoderLayer
    NomicEncoderLayer Qwen3Decoder Qwen3DecodeLayer VitSelfAttn LayerScale VisionSwiGluFfn
    ClsTokenPool LayerNorm GeluFfn GatherFromInput GatherAdd EmbedScale GemmaRmsNorm
    GemmaDecodeLayer GemmaKvTap LogitSoftcap DecodeRopeParams GeGlu
"""


def test_every_stage_is_listed_once():
    assert sorted(row[0] for row in ROW.findall(TEXT)) == sorted(STAGES.split())


@pytest.mark.parametrize(("name", "path", "file", "test"), ROW.findall(TEXT))
def test_classes_and_tests_are_there(name: str, path: str, file: str, test: str):
    module, _, cls = path.rpartition(".")
    stage = getattr(import_module(module), cls)
    assert cls == name
    assert callable(stage.emit)
    assert stage.__doc__
    assert stage.__module__ == module
    assert f"\ndef {test}(" in (ROOT / "tests" / "unit" / file).read_text()


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["f"](np.ones((5, 64), np.float32)).shape == (5, 8)


def test_the_profile_is_one(tmp_path: Path):
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "p.toml").write_text(text)
    profile = CompileProfile.from_toml(tmp_path / "p.toml")
    assert profile == CompileProfile(FusionOptions(skip=("fuse-norm",)))
    assert "fuse-norm" not in pipeline_for(profile)
