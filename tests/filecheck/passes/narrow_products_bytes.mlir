// RUN: rlx-opt %s -p narrow-products | filecheck %s
// RUN: rlx-opt %s -p rlx-default | filecheck %s --check-prefix=PLAN

// Products take bytes, but for those of one row, and for those that attention takes or gives: these take bf16.

// CHECK: mir.pack %a : tensor<64x64xf32> -> tensor<64x64x!hir.packed<bf16>>
// CHECK: mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
// CHECK: [[ROWS:%.*]] = mir.cast %x : tensor<?x64xf32, #hir.dims<rows, _>> -> tensor<?x64xbf16, #hir.dims<rows, _>>
// CHECK: mir.matmul [[ROWS]], {{%.*}} : {{.*}}, tensor<64x64x!hir.packed<bf16>>
// CHECK: transformer.segment_attention
// CHECK: mir.matmul {{%.*}}, {{%.*}} : {{.*}}, tensor<64x64x!hir.packed<bf16>>
// CHECK: [[BYTES:%.*]] = mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<i8>>
// CHECK: mir.matmul {{%.*}}, [[BYTES]] : tensor<?x64xbf16, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<i8>>
// CHECK: mir.matmul %one, {{%.*}} : tensor<1x64xf32>, tensor<64x64x!hir.packed<f32>>

// PLAN-DAG: lir.weight @a.bf16 "a" {{.*}} : tensor<64x64x!hir.packed<bf16>>
// PLAN-DAG: lir.weight @b.i8 "b" {{.*}} : tensor<64x64x!hir.packed<i8>>
// PLAN-DAG: lir.weight @b "b" {{.*}} : tensor<64x64x!hir.packed<f32>>
builtin.module attributes {rlx.products = "int8", rlx.dims = #hir.dim_table<rows = 1 to 512, texts = 1 to 512>} {
  hir.weight @a "a" : tensor<64x64xf32>
  hir.weight @b "b" : tensor<64x64xf32>
  func.func @main(%x : tensor<?x64xf32, #hir.dims<rows, _>> {hir.name = "x"}, %starts : tensor<?xi32, #hir.dims<texts>> {hir.name = "starts"}, %one : tensor<1x64xf32> {hir.name = "one"}) -> (tensor<?x64xf32, #hir.dims<rows, _>> {hir.name = "y"}, tensor<1x64xf32> {hir.name = "z"}) {
    %a = mir.load_weight @a : tensor<64x64xf32>
    %pa = mir.pack %a : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %b = mir.load_weight @b : tensor<64x64xf32>
    %pb = mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %q = mir.matmul %x, %pa : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %s = mir.unary silu %q : tensor<?x64xf32, #hir.dims<rows, _>>
    %t = transformer.segment_attention(%s, %s, %s, %starts) head_dim 32 scale 0.25 : (tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?xi32, #hir.dims<texts>>) -> tensor<?x64xf32, #hir.dims<rows, _>>
    %o = mir.matmul %t, %pa : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %y = mir.matmul %o, %pb : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %z = mir.matmul %one, %pb : tensor<1x64xf32>, tensor<64x64x!hir.packed<f32>> -> tensor<1x64xf32>
    func.return %y, %z : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<1x64xf32>
  }
}
