// RUN: rlx-opt %s -p narrow-products | filecheck %s

// A sum of more products of bytes than 32 bits hold: rows are bf16, and the weight is no bytes.

// CHECK: mir.matmul {{%.*}}, {{%.*}} : tensor<?x66311xbf16, #hir.dims<rows, _>>, tensor<64x66311x!hir.packed<i8>>
// CHECK: mir.matmul {{%.*}}, {{%.*}} : tensor<?x66312xbf16, #hir.dims<rows, _>>, tensor<64x66312x!hir.packed<{{b?f(16|32)}}>>
builtin.module attributes {rlx.products = "int8", rlx.dims = #hir.dim_table<rows = 1 to 512>} {
  hir.weight @a "a" : tensor<64x66311xf32>
  hir.weight @b "b" : tensor<64x66312xf32>
  func.func @main(%x : tensor<?x66311xf32, #hir.dims<rows, _>>, %y : tensor<?x66312xf32, #hir.dims<rows, _>>) -> (tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>) {
    %a = mir.load_weight @a : tensor<64x66311xf32>
    %pa = mir.pack %a : tensor<64x66311xf32> -> tensor<64x66311x!hir.packed<f32>>
    %b = mir.load_weight @b : tensor<64x66312xf32>
    %pb = mir.pack %b : tensor<64x66312xf32> -> tensor<64x66312x!hir.packed<f32>>
    %c = mir.matmul %x, %pa : tensor<?x66311xf32, #hir.dims<rows, _>>, tensor<64x66311x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %d = mir.matmul %y, %pb : tensor<?x66312xf32, #hir.dims<rows, _>>, tensor<64x66312x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    func.return %c, %d : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<?x64xf32, #hir.dims<rows, _>>
  }
}
