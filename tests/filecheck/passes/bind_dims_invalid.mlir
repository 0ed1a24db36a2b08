// RUN: rlx-opt %s --verify-diagnostics -p 'bind-dims{sizes="past = 4"}' | filecheck %s --check-prefix=FREE
// RUN: rlx-opt %s --verify-diagnostics -p 'bind-dims{sizes="seq = 9"}' | filecheck %s --check-prefix=RANGE
// RUN: rlx-opt %s --verify-diagnostics -p 'bind-dims{sizes="seq is 9"}' | filecheck %s --check-prefix=FORM
// RUN: rlx-opt %s --verify-diagnostics -p 'plan-lir,bind-dims{sizes="seq = 4"}' | filecheck %s --check-prefix=PLANNED
// RUN: rlx-opt %s --verify-diagnostics -p 'bind-dims{sizes="seq = 99999999999999999999"}' | filecheck %s --check-prefix=LONG

// FREE: bind-dims: expected a free dimension (seq), got 'past'
// RANGE: bind-dims: expected a size of the dimension seq = 1 to 8, got 9
// FORM: bind-dims: expected `name = size`, got 'seq is 9'
// LONG: bind-dims: expected `name = size`, got 'seq = 99999999999999999999'
// PLANNED: bind-dims: expected a module that is not planned yet
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8>} {
  func.func @main(%x: tensor<?xf32, #hir.dims<seq>> {rlx.name = "x"}) -> (tensor<?xf32, #hir.dims<seq>> {rlx.name = "y"}) {
    %y = mir.unary exp %x : tensor<?xf32, #hir.dims<seq>>
    func.return %y : tensor<?xf32, #hir.dims<seq>>
  }
}
