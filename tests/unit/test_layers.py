"""Imports point one way: what each folder may import is the table of docs/design.md."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rlx
from rlx.runtime.program import PACKING

ROOT = Path(rlx.__file__).parent

# Folder -> what it may import; `errors`, `checks`, `files` and `wording` are for all.
ALLOWED = {
    "contract": "dialects flow passes",
    "dialects": "contract",
    "ops": "contract dialects reference",
    "lowering": "contract dialects ops",
    "passes": "contract dialects lowering ops reference runtime",
    "runtime": "lowering",
    "flow": "contract dialects ops",
    "frontends": "contract flow",
    "models": "contract flow frontends",
    "reference": "dialects frontends ops",
    "jit": "compiler contract dialects lowering numpy ops passes runtime",
}
# Exceptions by file: the only ones that may use a folder that their own may import.
ONLY = {
    ("contract", "dialects"): {"module.py"},
    ("contract", "flow"): {"module.py"},
    ("contract", "passes"): {"module.py"},
    ("passes", "reference"): {"constant_fold.py"},
    ("passes", "runtime"): {"arena_search.py", "pipelines.py"},
    ("flow", "ops"): {"attention.py", "encoder.py"},
    ("jit", "dialects"): {"build.py", "report.py"},
    ("jit", "ops"): {"build.py"},
    ("jit", "passes"): {"report.py"},
}


def imported(path: Path) -> set[str]:
    """Return the modules of rlx that a file imports when it runs, at the top or in a function."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    return {f"{n.module}.{a.name}" for n in nodes for a in n.names if n.module.startswith("rlx")}


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_it_may(folder: str):
    allowed = {folder, "errors", "checks", "files", "wording", *ALLOWED[folder].split()}
    for path in (ROOT / folder).glob("*.py"):
        for module in imported(path):
            target = module.split(".")[1]
            assert target in allowed, f"{folder}/{path.name} imports {module}"
            files = ONLY.get((folder, target))
            assert files is None or path.name in files, f"{folder}/{path.name} imports {module}"


def test_the_runtime_uses_plain_files_of_the_lowering():
    plain = {
        "abi", "checksum", "emitter", "enter", "instructions", "manifest", "sync", "target",
        "values",
    }  # fmt: skip
    for path in (ROOT / "runtime").glob("*.py"):
        for module in imported(path):
            parts = module.split(".")
            assert parts[1] != "lowering" or parts[2] in plain, f"{path.name} imports {module}"


def test_what_packs_is_in_the_key_of_packed_weights():
    """But for what only says how code is written, or what is said of rows elsewhere."""
    others = "emitter values target gemm_unit".split()
    todo, found = ["pack"], set[str]()
    while todo:
        name = todo.pop()
        found.add(name)
        modules = [m.split(".") for m in imported(ROOT / "lowering" / f"{name}.py")]
        todo += [m[2] for m in modules if m[1] == "lowering" and m[2] not in {*found, *others}]
    assert found <= {*PACKING}, found


def test_the_rules_name_every_folder():
    folders = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    assert folders == {*ALLOWED, "deploy", "tools"}


def test_a_benchmark_without_a_package_is_one_message():
    """Before the parts that take minutes."""
    folder = ROOT.parent / "benchmarks"
    code = f"import sys; sys.modules['gguf'] = None; sys.path.insert(0, {str(folder)!r}); "
    code += "import startup; startup.main()"
    command = [sys.executable, "-c", code, "--only", "imports,layers"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "models of random weights: no package gguf: pip install gguf\n"


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_what_scripts_import_is_there(folder: str):
    """Many of their imports are in functions that no test calls."""
    for path in (ROOT.parent / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlx":
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    there = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                    assert there, f"{folder}/{path.name} imports {node.module}.{name.name}"
