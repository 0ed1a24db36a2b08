// RUN: rlx-opt %s -p narrow-products | filecheck %s

// Products take bytes, but for those beside attention; nothing is rounded to bf16.

// CHECK-NOT: bf16
// CHECK: mir.matmul %x, {{%.*}} : {{.*}}, tensor<64x64x!hir.packed<f32>>
// CHECK: [[BYTES:%.*]] = mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<i8>>
// CHECK: mir.matmul {{%.*}}, [[BYTES]] : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<i8>>
// CHECK-NOT: bf16
builtin.module attributes {rlx.products = "int8-f32", rlx.dims = #hir.dim_table<rows = 1 to 512, texts = 1 to 512>} {
  hir.weight @a "a" : tensor<64x64xf32>
  hir.weight @b "b" : tensor<64x64xf32>
  func.func @main(%x : tensor<?x64xf32, #hir.dims<rows, _>> {hir.name = "x"}, %starts : tensor<?xi32, #hir.dims<texts>> {hir.name = "starts"}) -> (tensor<?x64xf32, #hir.dims<rows, _>> {hir.name = "y"}) {
    %a = mir.load_weight @a : tensor<64x64xf32>
    %pa = mir.pack %a : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %b = mir.load_weight @b : tensor<64x64xf32>
    %pb = mir.pack %b : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %q = mir.matmul %x, %pa : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %t = transformer.segment_attention(%q, %q, %q, %starts) head_dim 32 scale 0.25 : (tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?xi32, #hir.dims<texts>>) -> tensor<?x64xf32, #hir.dims<rows, _>>
    %o = mir.matmul %t, %pa : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %y = mir.matmul %o, %pb : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    func.return %y : tensor<?x64xf32, #hir.dims<rows, _>>
  }
}
