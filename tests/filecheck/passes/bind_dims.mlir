// RUN: rlx-opt %s --split-input-file -p 'bind-dims{sizes="seq = 4"}' | filecheck %s

// What derives from bound dimensions is bound; starts keep their names, which are constants now
// CHECK: rlx.dims = #hir.dim_table<seq = 4, past = 0 to 12, keys = past + seq, twice = 8>
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 12, keys = past + seq, twice = seq + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x16xf32>
  // CHECK: func.func @main(%x: tensor<4x16xf32> {rlx.name = "x"}) -> (tensor<8x16xf32> {rlx.name = "y"})
  func.func @main(%x: tensor<?x16xf32, #hir.dims<seq, _>> {rlx.name = "x"}) -> (tensor<?x16xf32, #hir.dims<twice, _>> {rlx.name = "y"}) {
    // CHECK-NEXT: hir.append %x to @k start "past" : tensor<4x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %k = hir.append %x to @k start "past" : tensor<?x16xf32, #hir.dims<seq, _>> -> tensor<?x16xf32, #hir.dims<keys, _>>
    // CHECK-NEXT: mir.concat axis 0(%x, %x) : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %y = mir.concat axis 0 (%x, %x) : (tensor<?x16xf32, #hir.dims<seq, _>>, tensor<?x16xf32, #hir.dims<seq, _>>) -> tensor<?x16xf32, #hir.dims<twice, _>>
    func.return %y : tensor<?x16xf32, #hir.dims<twice, _>>
  }
}

// -----

// In branches and loops, their arguments and results too
// CHECK-LABEL: @regions
builtin.module @regions attributes {rlx.dims = #hir.dim_table<seq = 1 to 8>} {
  func.func @main(%x: tensor<?xf32, #hir.dims<seq>> {rlx.name = "x"}, %c: tensor<i1> {rlx.name = "c"}) -> (tensor<?xf32, #hir.dims<seq>> {rlx.name = "y"}) {
    // CHECK: mir.while(%x) {
    // CHECK-NEXT: ^bb0(%a: tensor<4xf32>):
    %y = mir.while (%x) {
    ^bb0(%a: tensor<?xf32, #hir.dims<seq>>):
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%a: tensor<?xf32, #hir.dims<seq>>):
      // CHECK: mir.if %c -> (tensor<4xf32>)
      %b = mir.if %c -> (tensor<?xf32, #hir.dims<seq>>) {
        mir.yield %a : tensor<?xf32, #hir.dims<seq>>
      } else {
        mir.yield %x : tensor<?xf32, #hir.dims<seq>>
      } : tensor<i1>
      mir.yield %b : tensor<?xf32, #hir.dims<seq>>
    } : (tensor<?xf32, #hir.dims<seq>>) -> (tensor<?xf32, #hir.dims<seq>>)
    // CHECK: func.return %{{.*}} : tensor<4xf32>
    func.return %y : tensor<?xf32, #hir.dims<seq>>
  }
}
