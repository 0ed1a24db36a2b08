// RUN: rlx-opt %s -p legalize-hir | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 56, keys = past + seq>} {
  hir.weight @table "table" : tensor<64x32x!hir.q<q8_0>>
  hir.weight @g "g" : tensor<32xf32>
  hir.weight @w "w.{layer}" : tensor<48x32xf32>
  hir.weight @down "down" : tensor<32x48xf16>
  hir.state @k keys head_dim 16 : tensor<64x32xf16>
  hir.state @v values head_dim 16 : tensor<64x32xf16>

  func.func private @layer(%x: tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x32xf32, #hir.dims<seq, _>> {
    %w = hir.load_weight @w : tensor<48x32xf32>
    %d = hir.load_weight @down : tensor<32x48xf16>
    %y = hir.linear %x, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<48x32xf32> -> tensor<?x48xf32, #hir.dims<seq, _>>
    %z = hir.linear %y, %d : tensor<?x48xf32, #hir.dims<seq, _>>, tensor<32x48xf16> -> tensor<?x32xf32, #hir.dims<seq, _>>
    %s = hir.glu silu %z up %w gate %w down %d : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<48x32xf32>, tensor<48x32xf32>, tensor<32x48xf16>
    func.return %s : tensor<?x32xf32, #hir.dims<seq, _>>
  }

  func.func @main(%ids: tensor<?xi32, #hir.dims<seq>>, %params: tensor<8xi32>) -> (tensor<1x32xf32>, tensor<1xi32>) {
    %t = hir.load_weight @table : tensor<64x32x!hir.q<q8_0>>
    %e = hir.embedding %ids, %t : tensor<?xi32, #hir.dims<seq>>, tensor<64x32x!hir.q<q8_0>> -> tensor<?x32xf32, #hir.dims<seq, _>>
    %g = hir.load_weight @g : tensor<32xf32>
    %n = hir.rms_norm %e, %g eps 1.0e-05 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32xf32>
    %cos, %sin = hir.rope_table base 1.0e+04 : tensor<64x16xf32>, tensor<64x16xf32>
    %r = hir.rope %n, %cos, %sin start "past" head_dim 16 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<64x16xf32>, tensor<64x16xf32>
    %ks = hir.append %r to @k start "past" : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<?x32xf16, #hir.dims<keys, _>>
    %vs = hir.append %n to @v start "past" : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<?x32xf16, #hir.dims<keys, _>>
    %a = hir.attention %r, %ks, %vs head_dim 16 scale 0.25 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<?x32xf16, #hir.dims<keys, _>>
    %l = hir.repeat @layer(%a) layers 0 to 2 : (tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x32xf32, #hir.dims<seq, _>>
    %last = hir.last_rows %l : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<1x32xf32>
    %u = mir.unary gelu_tanh %last : tensor<1x32xf32>
    %b = mir.binary max %u, %last : tensor<1x32xf32>
    %id = hir.sample %b, %params : tensor<1x32xf32>, tensor<8xi32> -> tensor<1xi32>
    func.return %b, %id : tensor<1x32xf32>, tensor<1xi32>
  }
}
// CHECK:   hir.weight @table "table" : tensor<64x32x!hir.q<q8_0>>
// CHECK-NEXT:   hir.weight @g "g" : tensor<32xf32>
// CHECK-NEXT:   hir.weight @w "w.{layer}" : tensor<48x32xf32>
// CHECK-NEXT:   hir.weight @down "down" : tensor<32x48xf16>
// CHECK-NEXT:   hir.state @k keys head_dim 16 : tensor<64x32xf16>
// CHECK-NEXT:   hir.state @v values head_dim 16 : tensor<64x32xf16>
// CHECK-LABEL: func.func private @layer(
// CHECK-NEXT:     %w = mir.load_weight @w : tensor<48x32xf32>
// CHECK-NEXT:     %d = mir.load_weight @down : tensor<32x48xf16>
// CHECK-NEXT:     %0 = mir.pack %w : tensor<48x32xf32> -> tensor<48x32x!hir.packed<f32>>
// CHECK-NEXT:     %y = mir.matmul %x, %0 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<48x32x!hir.packed<f32>> -> tensor<?x48xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %1 = mir.pack %d : tensor<32x48xf16> -> tensor<32x48x!hir.packed<f16>>
// CHECK-NEXT:     %z = mir.matmul %y, %1 : tensor<?x48xf32, #hir.dims<seq, _>>, tensor<32x48x!hir.packed<f16>> -> tensor<?x32xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %2 = mir.pack %w : tensor<48x32xf32> -> tensor<48x32x!hir.packed<f32>>
// CHECK-NEXT:     %3 = mir.matmul %z, %2 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<48x32x!hir.packed<f32>> -> tensor<?x48xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %4 = mir.pack %w : tensor<48x32xf32> -> tensor<48x32x!hir.packed<f32>>
// CHECK-NEXT:     %5 = mir.matmul %z, %4 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<48x32x!hir.packed<f32>> -> tensor<?x48xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %6 = mir.unary silu %3 : tensor<?x48xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %7 = mir.binary mul %6, %5 : tensor<?x48xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %8 = mir.pack %d : tensor<32x48xf16> -> tensor<32x48x!hir.packed<f16>>
// CHECK-NEXT:     %s = mir.matmul %7, %8 : tensor<?x48xf32, #hir.dims<seq, _>>, tensor<32x48x!hir.packed<f16>> -> tensor<?x32xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     func.return %s : tensor<?x32xf32, #hir.dims<seq, _>>
// CHECK-NEXT:   }
// CHECK-LABEL: func.func @main(
// CHECK-NEXT:     %t = mir.load_weight @table : tensor<64x32x!hir.q<q8_0>>
// CHECK-NEXT:     %0 = mir.pack %t : tensor<64x32x!hir.q<q8_0>> -> tensor<64x32x!hir.packed<q8_0>>
// CHECK-NEXT:     %e = mir.embedding %ids, %0 : tensor<?xi32, #hir.dims<seq>>, tensor<64x32x!hir.packed<q8_0>> -> tensor<?x32xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %g = mir.load_weight @g : tensor<32xf32>
// CHECK-NEXT:     %1 = mir.pack %g : tensor<32xf32> -> tensor<32x!hir.packed<f32>>
// CHECK-NEXT:     %n = mir.rms_norm %e, %1 eps 1.0e-05 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x!hir.packed<f32>>
// CHECK-NEXT:     %cos, %sin = mir.rope_table base 10000.0 : tensor<64x16xf32>, tensor<64x16xf32>
// CHECK-NEXT:     %r = mir.rope %n, %cos, %sin start "past" head_dim 16 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<64x16xf32>, tensor<64x16xf32>
// CHECK-NEXT:     %2 = mir.load_state @k : tensor<64x32xf16>
// CHECK-NEXT:     %ks = mir.append %r to %2 keys head_dim 16 start "past" : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<64x32xf16> -> tensor<?x32xf16, #hir.dims<keys, _>>
// CHECK-NEXT:     %3 = mir.load_state @v : tensor<64x32xf16>
// CHECK-NEXT:     %vs = mir.append %n to %3 values head_dim 16 start "past" : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<64x32xf16> -> tensor<?x32xf16, #hir.dims<keys, _>>
// CHECK-NEXT:     %a = mir.attention %r, %ks, %vs head_dim 16 scale 0.25 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<?x32xf16, #hir.dims<keys, _>>
// CHECK-NEXT:     %l = mir.repeat @layer(%a) layers 0 to 2 : (tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x32xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %last = mir.last_rows %l : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<1x32xf32>
// CHECK-NEXT:     %u = mir.unary gelu_tanh %last : tensor<1x32xf32>
// CHECK-NEXT:     %b = mir.binary max %u, %last : tensor<1x32xf32>
// CHECK-NEXT:     %id = mir.sample %b, %params : tensor<1x32xf32>, tensor<8xi32> -> tensor<1xi32>
// CHECK-NEXT:     func.return %b, %id : tensor<1x32xf32>, tensor<1xi32>
// CHECK-NEXT:   }
// CHECK-NEXT: }
