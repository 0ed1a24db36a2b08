"""Programs for sizes: one for each, or one for each bucket of sizes."""

import numpy as np
import pytest
from graphs import symbolic

import rlx
from rlx import DimBinding, Graph, HirModule, ModelVariant, RlxError, Shape, bind_graph, sym
from rlx.contract.specialize import Buckets, Specializations
from rlx.passes.source import context, parse


def test_buckets():
    ladder = Buckets.powers_of_two(16, 100)
    assert ladder.sizes == [16, 32, 64, 100]
    assert [ladder.of(n) for n in (0, 1, 16, 17, 64, 65, 100)] == [16, 16, 16, 32, 64, 100, 100]
    with pytest.raises(RlxError, match="at most 100, the largest bucket, got 101"):
        ladder.of(101)
    assert Buckets.powers_of_two(4, 16).sizes == [4, 8, 16]
    assert Buckets.powers_of_two(3, 3).sizes == [3]
    assert Buckets([8, 2, 8]).sizes == [2, 8]
    with pytest.raises(RlxError, match="1 <= low <= high"):
        Buckets.powers_of_two(0, 4)


def counting() -> tuple[list[DimBinding], Specializations[Graph]]:
    asked: list[DimBinding] = []

    def build(binding: DimBinding) -> Graph:
        asked.append(binding)
        return bind_graph(symbolic(), binding)

    return asked, Specializations(build, capacity=2)


def test_every_size_of_a_symbolic_program_is_built_once():
    asked, programs = counting()
    graph = programs.get(ModelVariant.prefill(2, 16))
    assert graph.node(2).shape == Shape([2, 16, 8])
    assert programs.get(ModelVariant.prefill(2, 16)) is graph
    assert programs.get(ModelVariant.prefill(2, 17)).node(2).shape == Shape([2, 17, 8])
    assert asked == [DimBinding.batch_seq(2, 16), DimBinding.batch_seq(2, 17)]


def test_the_first_built_goes_first():
    asked, programs = counting()
    for seq in (1, 2, 1, 3, 2, 1):
        programs.get(ModelVariant.prefill(1, seq))
    assert [binding.get(sym.SEQ) for binding in asked] == [1, 2, 3, 1]
    assert len(programs) == 2


def test_sizes_of_one_bucket_share_a_program():
    ladder = Buckets.powers_of_two(16, 64)
    programs = Specializations(
        lambda binding: list(binding), {sym.SEQ: ladder, sym.PAST_SEQ: ladder, 9: Buckets([5])}
    )
    assert programs.get(ModelVariant.prefill(1, 17)) is programs.get(ModelVariant.prefill(1, 32))
    assert programs.get(ModelVariant.prefill(1, 33)) == [(0, 1), (1, 64)]
    decode = ModelVariant.decode(1, 20, 1).with_extra(9, 3).with_extra(8, 3)
    assert programs.bucket(decode) == (
        ModelVariant.decode(1, 32, 16).with_extra(9, 5).with_extra(8, 3)
    )
    with pytest.raises(RlxError, match="dimension seq: expected a size of at most 64"):
        programs.get(ModelVariant.prefill(1, 65))
    with pytest.raises(RlxError, match="dimension symbol 9"):
        programs.get(ModelVariant.prefill(1, 1).with_extra(9, 6))


def test_what_fails_to_build_is_not_kept():
    def fail(binding: DimBinding) -> int:
        raise RlxError("no")

    programs = Specializations(fail)
    with pytest.raises(RlxError, match="no"):
        programs.get(ModelVariant.encoder(1, 1))
    assert len(programs) == 0
    with pytest.raises(RlxError, match="capacity"):
        Specializations(fail, capacity=0)


TEMPLATE = """
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 32>} {
  func.func @main(%x: tensor<?x3xf32, #hir.dims<seq, _>> {rlx.name = "x"})
      -> (tensor<3xf32> {rlx.name = "y"}) {
    %y = mir.reduce sum %x axes [0] : tensor<?x3xf32, #hir.dims<seq, _>> -> tensor<3xf32>
    func.return %y : tensor<3xf32>
  }
}
"""


def test_a_module_is_specialised_by_bucket():
    template = HirModule(parse(context(), TEMPLATE.encode(), "template"))
    buckets = {sym.SEQ: Buckets.powers_of_two(4, 32)}
    programs = Specializations(lambda b: rlx.compile(template.bind(b).module), buckets)
    rng = np.random.default_rng(1)
    for seq in (1, 3, 4, 5, 9, 16, 32):
        variant = ModelVariant.prefill(1, seq)
        rows = programs.bucket(variant).seq
        x = np.zeros((rows, 3), np.float32)
        x[:seq] = rng.standard_normal((seq, 3))
        np.testing.assert_allclose(programs.get(variant)(x), x.sum(axis=0), rtol=1e-5)
    assert len(programs) == 4
    assert "seq" in str(template)


def test_the_symbolic_module_serves_every_size():
    f = rlx.compile(TEMPLATE)
    for seq in (1, 7, 32):
        x = np.random.default_rng(seq).standard_normal((seq, 3)).astype(np.float32)
        np.testing.assert_allclose(f(x), x.sum(axis=0), rtol=1e-5, atol=1e-6)
