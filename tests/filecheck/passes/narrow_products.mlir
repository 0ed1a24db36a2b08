// RUN: rlx-opt %s -p narrow-products | filecheck %s
// RUN: rlx-opt %s -p narrow-products,simplify-algebra,fuse-shared-input,fuse-epilogue,fuse-rows | filecheck %s --check-prefix=FUSED

// Products of rows, attention's queries and its result are rounded once; a single row is not.

// CHECK-LABEL: @main
// CHECK: [[x:%[0-9a-z_]+]] = mir.cast %x : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<?x64xbf16, #hir.dims<seq, _>>
// CHECK-NEXT: mir.matmul [[x]]
// CHECK-NEXT: mir.matmul [[x]]
// CHECK: mir.matmul %one, %w : tensor<1x64xf32>

// FUSED-LABEL: @main
// FUSED: mir.cast %x
// FUSED: mir.kernel
// FUSED-NEXT: mir.matmul
// FUSED-NEXT: mir.matmul
// FUSED-NEXT: mir.binary mul
// FUSED-NEXT: mir.cast {{.*}} -> tensor<?x64xbf16
// FUSED-NEXT: mir.yield
builtin.module attributes {rlx.products = "bf16", rlx.dims = #hir.dim_table<seq = 1 to 512>} {
  hir.weight @w "w" : tensor<64x64xf32>
  func.func @main(%x : tensor<?x64xf32, #hir.dims<seq, _>> {hir.name = "x"}, %one : tensor<1x64xf32> {hir.name = "one"}) -> (tensor<?x64xf32, #hir.dims<seq, _>> {hir.name = "y"}, tensor<1x64xf32> {hir.name = "z"}) {
    %plain = mir.load_weight @w : tensor<64x64xf32>
    %w = mir.pack %plain : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %a = mir.matmul %x, %w : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %b = mir.matmul %x, %w : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %c = mir.binary mul %a, %b : tensor<?x64xf32, #hir.dims<seq, _>>
    %y = mir.matmul %c, %w : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %z = mir.matmul %one, %w : tensor<1x64xf32>, tensor<64x64x!hir.packed<f32>> -> tensor<1x64xf32>
    func.return %y, %z : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<1x64xf32>
  }
}
