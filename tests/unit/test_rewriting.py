"""The driver of patterns: it ends, and says which patterns do not."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpTraits
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.traits import HasCanonicalizationPatternsTrait

from rlx.dialects.kinds import UnaryKind
from rlx.dialects.mir import UnaryOp
from rlx.errors import RlxError
from rlx.passes.diagnostics import IrError
from rlx.passes.registry import PASSES
from rlx.passes.rewriting import REWRITES, REWRITES_PER_OPERATION, rewrite
from rlx.passes.source import context, parse

TEXT = """\
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = mir.unary exp %x : tensor<4xf32>
  %b = mir.unary neg %a : tensor<4xf32>
  func.return %b : tensor<4xf32>
}
"""


def module_of(text: str = TEXT) -> ModuleOp:
    return parse(context(), text.encode(), "test.mlir")


@dataclass
class Swap(RewritePattern):
    """unary a x --> unary b x."""

    old: UnaryKind
    new: UnaryKind

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if isinstance(op, UnaryOp) and op.kind.data == self.old:
            rewriter.replace(op, UnaryOp(self.new, op.input))


class Ping(Swap):
    pass


class Pong(Swap):
    pass


PING_PONG = [Ping(UnaryKind.EXP, UnaryKind.ABS), Pong(UnaryKind.ABS, UnaryKind.EXP)]


class Grow(RewritePattern):
    """x --> exp x, everywhere, for ever."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if isinstance(op, UnaryOp):
            rewriter.insert(UnaryOp(UnaryKind.EXP, op.input))


class Raise(RewritePattern):
    def __init__(self, error: Exception):
        self.error = error

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if isinstance(op, UnaryOp):
            raise self.error


def kinds(module: ModuleOp) -> list[str]:
    return [op.kind.data.value for op in module.walk() if isinstance(op, UnaryOp)]


def test_patterns_are_applied_until_nothing_changes():
    module = module_of()
    swaps = [Swap(UnaryKind.EXP, UnaryKind.NEG), Swap(UnaryKind.NEG, UnaryKind.ABS)]
    assert rewrite(module, swaps)
    assert kinds(module) == ["abs", "abs"]
    assert not rewrite(module, swaps)


def test_the_first_pattern_that_changes_something_counts():
    module = module_of()
    assert rewrite(module, [Swap(UnaryKind.EXP, to) for to in (UnaryKind.ABS, UnaryKind.NEG)])
    assert kinds(module) == ["abs", "neg"]


def test_patterns_by_operation():
    module = module_of()
    swap = Swap(UnaryKind.EXP, UnaryKind.ABS)
    assert not rewrite(module, lambda op: [] if isinstance(op, UnaryOp) else [swap])
    assert rewrite(module, lambda op: [swap] if isinstance(op, UnaryOp) else [])
    assert kinds(module) == ["abs", "neg"]


def test_patterns_that_undo_each_other_are_named():
    with pytest.raises(IrError) as e:
        rewrite(module_of(), PING_PONG)
    message = str(e.value)
    assert message.startswith("rewriting does not end: Ping and Pong were applied ")
    assert f"{REWRITES + REWRITES_PER_OPERATION * 5 + 1:,} times" in message
    assert "mir.unary" in message
    report = e.value.report("test.mlir")
    assert report.startswith("test.mlir:1:1: error: rewriting does not end")
    assert "func.func @main" in report


def test_a_pattern_that_grows_the_module_is_stopped():
    with pytest.raises(IrError, match="Grow was applied"):
        rewrite(module_of(), [Swap(UnaryKind.NEG, UnaryKind.SQRT), Grow()])


def test_patterns_that_do_little_are_not_blamed():
    with pytest.raises(IrError) as e:
        rewrite(module_of(), [*PING_PONG, Swap(UnaryKind.NEG, UnaryKind.SQRT)])
    assert "Swap" not in str(e.value)


def test_more_rewrites_than_the_least_bound_are_allowed_in_a_large_module():
    ops = "\n".join(f"%v{i} = mir.unary exp %x : tensor<4xf32>" for i in range(REWRITES // 2))
    module = module_of(f"func.func @f(%x: tensor<4xf32>) {{\n{ops}\nfunc.return\n}}")
    chain = [UnaryKind.EXP, UnaryKind.ABS, UnaryKind.NEG, UnaryKind.SQRT, UnaryKind.RELU]
    swaps = [Swap(a, b) for a, b in pairwise(chain)]
    assert rewrite(module, swaps)
    assert set(kinds(module)) == {"relu"}


@pytest.mark.parametrize("error", [RlxError("plain"), KeyError("k")])
def test_errors_of_patterns_are_as_they_were_raised(error):
    with pytest.raises(type(error)) as e:
        rewrite(module_of(), [Raise(error)])
    assert e.value is error


@dataclass(frozen=True)
class PingPongPass(ModulePass):
    name = "ping-pong"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, PING_PONG)


def test_the_tool_shows_the_error(rlx_opt, monkeypatch):
    monkeypatch.setitem(PASSES, "ping-pong", lambda: PingPongPass)
    result = rlx_opt("-p", "ping-pong", stdin=TEXT)
    assert (result.code, result.out) == (1, "")
    assert "error: pass 'ping-pong': rewriting does not end: Ping and Pong" in result.err
    assert "internal error" not in result.err
    assert len(result.err.splitlines()) <= 12


def test_canonicalize_is_stopped_too(rlx_opt, monkeypatch):
    class Endless(HasCanonicalizationPatternsTrait):
        @classmethod
        def get_canonicalization_patterns(cls):
            return tuple(PING_PONG)

    traits = [*UnaryOp.traits.traits, Endless()]
    monkeypatch.setattr(UnaryOp, "traits", OpTraits(lambda: traits))
    result = rlx_opt("-p", "canonicalize", stdin=TEXT)
    assert result.code == 1
    assert "pass 'canonicalize': rewriting does not end: Ping and Pong" in result.err
