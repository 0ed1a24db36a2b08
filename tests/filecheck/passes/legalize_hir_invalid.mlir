// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p legalize-hir | filecheck %s

// CHECK: error: pass 'legalize-hir': hir.append: state @k is not declared in this module
builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 15>} {
  func.func @main(%x: tensor<1x16xf32>) {
    %ks = hir.append %x to @k start "past" : tensor<1x16xf32> -> tensor<16x16xf32>
    func.return
  }
}

// -----

// A weight of that name is not a state.
// CHECK: error: pass 'legalize-hir': hir.append: state @k is not declared in this module
builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 15>} {
  hir.weight @k "k" : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32>) {
    %ks = hir.append %x to @k start "past" : tensor<1x16xf32> -> tensor<16x16xf32>
    func.return
  }
}
