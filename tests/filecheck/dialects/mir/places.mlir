// RUN: rlx-opt %s | rlx-opt | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC
// RUN: rlx-opt %s -p legalize-hir | filecheck %s --check-prefix=LOWERED

// Rows of several sequences, each at a place of its own.

// CHECK: %ks = hir.append %x to @k_cache at %places : tensor<?x2xi64, #hir.dims<rows, _>> start "origin" : tensor<?x32xf32, #hir.dims<rows, _>> -> tensor<64x32xf32>
// CHECK: %y = hir.attention %x, %ks, %vs at %places : tensor<?x2xi64, #hir.dims<rows, _>> head_dim 16 scale 0.25 : tensor<?x32xf32, #hir.dims<rows, _>>, tensor<64x32xf32>
// CHECK: %id = hir.sample %y, %words : tensor<?x32xf32, #hir.dims<rows, _>>, tensor<?x8xi32, #hir.dims<rows, _>> -> tensor<?xi32, #hir.dims<rows>>
// GENERIC: "hir.append"(%x, %places) <{state = @k_cache, start = "origin"}>
// GENERIC: "hir.attention"(%x, %ks, %vs, %places)
// LOWERED: mir.append %x to %{{.*}} at %places : tensor<?x2xi64, #hir.dims<rows, _>> keys head_dim 16 start "origin" : tensor<?x32xf32, #hir.dims<rows, _>>, tensor<64x32xf32> -> tensor<64x32xf32>
// LOWERED: mir.attention %x, %{{.*}}, %{{.*}} at %places : tensor<?x2xi64, #hir.dims<rows, _>> head_dim 16 scale 0.25

builtin.module @places attributes {rlx.dims = #hir.dim_table<rows = 1 to 8, origin = 0>} {
  hir.state @k_cache keys head_dim 16 : tensor<64x32xf32>
  hir.state @v_cache values head_dim 16 : tensor<64x32xf32>
  func.func @main(%x: tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "x"}, %places: tensor<?x2xi64, #hir.dims<rows, _>> {rlx.name = "places"}, %words: tensor<?x8xi32, #hir.dims<rows, _>> {rlx.name = "words"}) -> (tensor<?xi32, #hir.dims<rows>> {rlx.name = "id"}) {
    %ks = hir.append %x to @k_cache at %places : tensor<?x2xi64, #hir.dims<rows, _>> start "origin" : tensor<?x32xf32, #hir.dims<rows, _>> -> tensor<64x32xf32>
    %vs = hir.append %x to @v_cache at %places : tensor<?x2xi64, #hir.dims<rows, _>> start "origin" : tensor<?x32xf32, #hir.dims<rows, _>> -> tensor<64x32xf32>
    %y = hir.attention %x, %ks, %vs at %places : tensor<?x2xi64, #hir.dims<rows, _>> head_dim 16 scale 0.25 : tensor<?x32xf32, #hir.dims<rows, _>>, tensor<64x32xf32>
    %id = hir.sample %y, %words : tensor<?x32xf32, #hir.dims<rows, _>>, tensor<?x8xi32, #hir.dims<rows, _>> -> tensor<?xi32, #hir.dims<rows>>
    func.return %id : tensor<?xi32, #hir.dims<rows>>
  }
}
