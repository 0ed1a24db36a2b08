// RUN: rlx-opt %s -p narrow-products | filecheck %s
// RUN: rlx-opt %s -p rlx-default | filecheck %s --check-prefix=PLAN

// A matrix that is multiplied with rounded rows alone is packed as bf16; its own panels stay for others.

// CHECK: mir.pack %a : tensor<64x64xf32> -> tensor<64x64x!hir.packed<bf16>>
// CHECK: mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>

// What comes from outside is rounded where it is multiplied, what is computed where it is made.

// PLAN-DAG: lir.weight @a.bf16 "a" {{.*}} : tensor<64x64x!hir.packed<bf16>>
// PLAN-DAG: lir.weight @b "b" {{.*}} : tensor<64x64x!hir.packed<f32>>
// PLAN: lir.kernel @cast_matmul
// PLAN: mir.cast
// PLAN-NEXT: mir.matmul
// PLAN-NEXT: mir.cast
// PLAN-NEXT: mir.yield
builtin.module attributes {rlx.products = "bf16-weights", rlx.dims = #hir.dim_table<seq = 1 to 512>} {
  hir.weight @a "a" : tensor<64x64xf32>
  hir.weight @b "b" : tensor<64x64xf32>
  func.func @main(%x : tensor<?x64xf32, #hir.dims<seq, _>> {hir.name = "x"}, %one : tensor<1x64xf32> {hir.name = "one"}) -> (tensor<?x64xf32, #hir.dims<seq, _>> {hir.name = "y"}, tensor<1x64xf32> {hir.name = "z"}) {
    %a = mir.load_weight @a : tensor<64x64xf32>
    %pa = mir.pack %a : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %b = mir.load_weight @b : tensor<64x64xf32>
    %pb = mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %m = mir.matmul %x, %pa : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %y = mir.matmul %m, %pb : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %z = mir.matmul %one, %pb : tensor<1x64xf32>, tensor<64x64x!hir.packed<f32>> -> tensor<1x64xf32>
    func.return %y, %z : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<1x64xf32>
  }
}
