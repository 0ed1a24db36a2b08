"""`rlx plan`: its output, the check of its plans, and one message for each kind of bad file."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlx.errors import RlxError
from rlx.passes import arena
from rlx.passes.arena import Buffer, Placement
from rlx.tools import cli, plan

Row = tuple[int, int, int, int]


def random_rows(seed: int, count: int = 40) -> list[Row]:
    rng = random.Random(seed)
    rows: list[Row] = []
    for id in rng.sample(range(1000), count):
        lower = rng.randrange(100)
        rows.append((id, lower, lower + rng.randint(1, 40), rng.randrange(1, 5000)))
    return rows


def write(path: Path, rows: Sequence[Row], header: str = "id,lower,upper,size") -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run(*args)` runs `rlx plan` in this process and returns its stdout."""

    def run(*args: object) -> str:
        code = cli.main(["plan", *(str(arg) for arg in args)])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    return run


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`fail(*args)` runs `rlx plan`, which must fail, and returns its one message."""

    def fail(*args: object) -> str:
        code = cli.main(["plan", *(str(arg) for arg in args)])
        captured = capsys.readouterr()
        assert (code, captured.out) == (1, "")
        assert captured.err.startswith("rlx: error: ")
        assert captured.err.count("\n") == 1
        assert len(captured.err) < 500
        # What is foreseen has a message of its own.
        assert "--debug shows where" not in captured.err
        return captured.err

    return fail


@pytest.mark.parametrize(
    ("seed", "alignment", "effort"),
    [(0, 1, 0), (1, 1, 0), (2, 64, 0), (3, 4096, 0), (4, 1, 1)],
)
def test_json_is_a_sound_plan(
    run: Callable[..., str], tmp_path: Path, seed: int, alignment: int, effort: int
):
    rows = random_rows(seed)
    path = write(tmp_path / "a.csv", rows)
    args = (path, "--json", "--alignment", alignment, "--effort", effort)
    result = json.loads(run(*args))
    offsets = {int(id): offset for id, offset in result["offsets"].items()}
    assert list(offsets) == [row[0] for row in rows]
    # Byte by byte at every step: nothing lies on anything else.
    for step in range(141):
        taken: set[int] = set()
        for id, lower, upper, size in rows:
            if lower <= step < upper:
                place = range(offsets[id], offsets[id] + size)
                assert taken.isdisjoint(place)
                taken.update(place)
    assert all(offset % alignment == 0 for offset in offsets.values())
    padded = {id: -(-size // alignment) * alignment for id, _, _, size in rows}
    assert result["peak"] == max(offsets[id] + size for id, size in padded.items())
    assert result["lower_bound"] == max(
        sum(padded[id] for id, lower, upper, _ in rows if lower <= step < upper)
        for step in range(141)
    )
    assert result["ratio"] == result["peak"] / result["lower_bound"] >= 1
    assert result["seconds"] >= 0
    assert (result["buffers"], result["alignment"], result["effort"]) == (40, alignment, effort)
    again = json.loads(run(*args))
    assert {**again, "seconds": 0} == {**result, "seconds": 0}


def test_more_effort_is_never_worse(run: Callable[..., str], tmp_path: Path):
    path = write(tmp_path / "a.csv", random_rows(9, 60))
    peaks = [json.loads(run(path, "--json", "--effort", effort))["peak"] for effort in (0, 1)]
    assert peaks[1] <= peaks[0]


def test_the_table_has_offsets_on_request(run: Callable[..., str], tmp_path: Path):
    path = write(tmp_path / "a.csv", [(7, 0, 2, 100), (8, 1, 3, 50), (9, 2, 4, 100)])
    lines = run(path).splitlines()
    assert lines[:4] == [
        "buffers      3",
        "peak         150 bytes",
        "lower bound  150 bytes",
        "ratio        1.0000",
    ]
    assert lines[4].startswith("planned in   0.")
    assert lines[4].endswith(" s, effort 0")
    assert len(lines) == 5
    lines = run(path, "--offsets").splitlines()
    assert [line.split() for line in lines[5:7]] == [[], ["id", "offset"]]
    assert {line.split()[0] for line in lines[7:]} == {"7", "8", "9"}


@pytest.mark.parametrize(
    ("text", "peak"),
    [
        ("id,lower,upper,size\r\n1,0,2,10\r\n2,1,3,20\r\n", 30),
        ("\ufeffsize, id ,upper,lower\n10,1,2,0\n\n20, 2, 3, 1", 30),
        ('id,lower,upper,size\n"a,b",0,1,10\nb1,1,2,8\n', 10),
        ("id,lower,upper,size\n1,0,2,0\n", 0),
        (f"id,lower,upper,size\n1,0,{2**63 - 1},10\n2,{2**63 - 2},{2**63 - 1},5\n", 15),
    ],
)
def test_variants_of_the_format(run: Callable[..., str], tmp_path: Path, text: str, peak: int):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    result = json.loads(run(path, "--json"))
    assert result["peak"] == result["lower_bound"] == peak
    assert result["ratio"] == 1


HEADER = "id,lower,upper,size\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got an empty file"),
        ("\n \n", "got an empty file"),
        (HEADER, "expected a line per buffer below the header, got none"),
        ("1,0,2,10\n", "with the header id,lower,upper,size, got '1,0,2,10'"),
        ("id,lower,upper\n1,0,2\n", "got 'id,lower,upper'"),
        ("id,lower,upper,size,size\n1,0,2,3,3\n", "got 'id,lower,upper,size,size'"),
        ("id,lower,upper,size,alignment\n1,0,2,3,8\n", "got 'id,lower,upper,size,alignment'"),
        (f"\n{HEADER}1,0,2,3\n", "with the header id,lower,upper,size, got ''"),
        (f"{HEADER}1,0,2\n", "line 2: expected 4 fields, got 3"),
        (f"{HEADER}1,0,2,3\n2,0,2,3,4\n", "line 3: expected 4 fields, got 5"),
        (f"{HEADER},0,2,3\n", "line 2: expected an id"),
        (f"{HEADER}1,0,2,3\n 1,5,6,3\n", "line 3: expected one buffer per id, got '1' again"),
        (f"{HEADER}1,0,2,x\n", "line 2: expected an integer in column 'size', got 'x'"),
        (f"{HEADER}1,0,,3\n", "expected an integer in column 'upper', got ''"),
        (f"{HEADER}1,0,2,3.0\n", "expected an integer in column 'size', got '3.0'"),
        (f"{HEADER}1,0,2,1e6\n", "expected an integer in column 'size', got '1e6'"),
        (f"{HEADER}1,0,2,1_0\n", "expected an integer in column 'size', got '1_0'"),
        (f"{HEADER}1,0,2,\u0663\n", "expected an integer in column 'size'"),
        (f"{HEADER}1,0,2,nan\n", "expected an integer in column 'size', got 'nan'"),
        (f"{HEADER}1,0,2,-3\n", "expected 0 to 2**63 - 1 in column 'size', got '-3'"),
        (f"{HEADER}1,-1,2,3\n", "expected 0 to 2**63 - 1 in column 'lower', got '-1'"),
        (f"{HEADER}1,0,{2**63},3\n", "expected 0 to 2**63 - 1 in column 'upper'"),
        (f"{HEADER}1,0,2,{'9' * 5000}\n", "expected 0 to 2**63 - 1 in column 'size', got '9999"),
        (f"{HEADER}1,0,2,{'x' * 5000}\n", "expected an integer in column 'size', got 'xxxx"),
        (f"{HEADER}1,0,2,{2**62}\n", "add up to less than 2**48"),
        (f"{HEADER}1,0,2,{2**47}\n2,2,3,{2**47}\n", "add up to less than 2**48"),
        (f"{HEADER}1,2,2,3\n", "with lower < upper, got [2, 2)"),
        (f"{HEADER}1,3,2,3\n", "with lower < upper, got [3, 2)"),
        (f'{HEADER}1,0,2,"3\n', "expected a line of CSV"),
        (f"{HEADER}1,0,2,{'1' * 200_000}\n", "line 2: expected a line of CSV"),
        (b"\x7fELF\x02\x01\x00\x00", "got binary data"),
        (b"\xff\xfeid", "expected a CSV file in UTF-8"),
    ],
)
def test_bad_files(fail: Callable[..., str], tmp_path: Path, text: str | bytes, message: str):
    path = tmp_path / "a.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    error = fail(path)
    assert message in error
    assert str(path) in error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["missing.csv"], "missing.csv: No such file or directory"),
        (["."], "Is a directory"),
        (["a\0b"], "null byte"),
        ([], "the following arguments are required: FILE"),
        (["FILE", "--effort", "3"], "expected an effort of 0, 1 or 2, got 3"),
        (["FILE", "--effort", "x"], "invalid int value: 'x'"),
        (["FILE", "--alignment", "0"], "expected an alignment of at least 1 byte, got 0"),
        (["FILE", "--alignment", str(10**30)], "add up to less than 2**48"),
        (["FILE", "--json", "--offsets"], "not allowed with argument --json"),
    ],
)
def test_bad_arguments(fail: Callable[..., str], tmp_path: Path, args: list[str], message: str):
    path = write(tmp_path / "a.csv", random_rows(1))
    assert message in fail(*(path if arg == "FILE" else arg for arg in args))


BUFFERS = [Buffer(0, 0, 2, 10), Buffer(1, 1, 4, 6), Buffer(2, 2, 3, 10), Buffer(3, 1, 2, 0)]


@pytest.mark.parametrize(
    ("offsets", "peak", "sound"),
    [
        ((0, 10, 0, 0), 16, True),
        ((6, 0, 6, 3), 16, True),
        ((0, 9, 0, 0), 16, False),
        ((0, 10, 1, 0), 16, False),
        ((0, 10, 0, 0), 15, False),
        ((-1, 10, 0, 0), 16, False),
        ((0, 0, 6, 0), 16, False),
    ],
)
def test_the_check_finds_what_overlaps(offsets: tuple[int, ...], peak: int, sound: bool):
    placement = Placement(dict(enumerate(offsets)), peak, 16)
    if sound:
        plan.check(BUFFERS, placement, 1)
        return
    with pytest.raises(RlxError, match="the planner is wrong"):
        plan.check(BUFFERS, placement, 1)


def test_the_check_finds_what_is_misaligned():
    placement = Placement({0: 0, 1: 10, 2: 0, 3: 0}, 16, 16)
    plan.check(BUFFERS, placement, 2)
    with pytest.raises(RlxError, match="misaligned"):
        plan.check(BUFFERS, placement, 4)


def test_a_wrong_plan_is_not_printed(
    fail: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def wrong(buffers: Sequence[Buffer], alignment: int, effort: int) -> Placement:
        placement = arena.plan(buffers, alignment, effort)
        return Placement(dict.fromkeys(placement.offsets, 0), placement.peak, placement.lower_bound)

    monkeypatch.setattr(plan, "plan", wrong)
    assert "the planner is wrong" in fail(write(tmp_path / "a.csv", random_rows(2)))


@pytest.mark.parametrize("seed", range(20))
def test_the_check_agrees_with_pairs(seed: int):
    rng = random.Random(seed)
    rows = random_rows(seed, 6)
    buffers = [Buffer(i, *row[1:]) for i, row in enumerate(rows)]
    offsets = {b.id: rng.randrange(20_000) for b in buffers}
    placement = Placement(offsets, 25_000, 0)
    clash = any(
        max(a.lower, b.lower) < min(a.upper, b.upper)
        and max(offsets[a.id], offsets[b.id]) < min(offsets[a.id] + a.size, offsets[b.id] + b.size)
        for a in buffers
        for b in buffers[: a.id]
    )
    try:
        plan.check(buffers, placement, 1)
    except RlxError:
        assert clash
    else:
        assert not clash
