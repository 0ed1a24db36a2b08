// RUN: rlx-opt %s -p hoist-params | filecheck %s

builtin.module {
  hir.weight @table "token_embd.weight" : tensor<64x32xf32>
  hir.weight @w "blk.{layer}.w.weight" : tensor<32x32xf32>
  hir.state @keys keys head_dim 16 : tensor<256x32xf32>

  // In a layer the weights are the layer's own: packed once for each. The state's contents change,
  // and so may what an argument holds.
  func.func private @layer(%x: tensor<1x32xf32>, %cos: tensor<256x16xf32>, %sin: tensor<256x16xf32>) -> tensor<1x32xf32> {
    %w = mir.load_weight @w : tensor<32x32xf32>
    %p = mir.pack %w : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>>
    %y = mir.matmul %x, %p : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %state = mir.load_state @keys : tensor<256x32xf32>
    %neg = mir.unary neg %state : tensor<256x32xf32>
    %scaled = mir.unary exp %cos : tensor<256x16xf32>
    func.return %y : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %w = mir.load_weight @w : tensor<32x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %p = mir.pack %w : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %y = mir.matmul %x, %p : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<256x32xf32>
  // CHECK-NEXT:   %neg = mir.unary neg %state : tensor<256x32xf32>
  // CHECK-NEXT:   %scaled = mir.unary exp %cos : tensor<256x16xf32>
  // CHECK-NEXT:   func.return %y : tensor<1x32xf32>

  // Loads and packs of one weight become one, and so does what is computed from them twice.
  func.func @main(%ids: tensor<1xi32>, %x: tensor<1x32xf32>) -> (tensor<1x64xf32>, tensor<64x32xf32>) {
    %t = mir.load_weight @table : tensor<64x32xf32>
    %p = mir.pack %t : tensor<64x32xf32> -> tensor<64x32x!hir.packed<f32>>
    %e = mir.embedding %ids, %p : tensor<1xi32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %cos, %sin = mir.rope_table base 10000.0 : tensor<256x16xf32>, tensor<256x16xf32>
    %y = mir.repeat @layer(%e, %cos, %sin) layers 0 to 2 : (tensor<1x32xf32>, tensor<256x16xf32>, tensor<256x16xf32>) -> tensor<1x32xf32>
    %u = mir.load_weight @table : tensor<64x32xf32>
    %q = mir.pack %u : tensor<64x32xf32> -> tensor<64x32x!hir.packed<f32>>
    %logits = mir.matmul %y, %q : tensor<1x32xf32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x64xf32>
    %a = mir.unary exp %t : tensor<64x32xf32>
    %b = mir.unary exp %u : tensor<64x32xf32>
    %c = mir.unary neg %u : tensor<64x32xf32>
    %d = mir.binary add %a, %b : tensor<64x32xf32>
    %f = mir.binary mul %c, %d : tensor<64x32xf32>
    func.return %logits, %f : tensor<1x64xf32>, tensor<64x32xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:   %t = mir.load_weight @table : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %p = mir.pack %t : tensor<64x32xf32> -> tensor<64x32x!hir.packed<f32>> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %e = mir.embedding %ids, %p : tensor<1xi32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   %cos, %sin = mir.rope_table base 10000.0 : tensor<256x16xf32>, tensor<256x16xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %y = mir.repeat @layer(%e, %cos, %sin) layers 0 to 2 : (tensor<1x32xf32>, tensor<256x16xf32>, tensor<256x16xf32>) -> tensor<1x32xf32>
  // CHECK-NEXT:   %logits = mir.matmul %y, %p : tensor<1x32xf32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x64xf32>
  // CHECK-NEXT:   %a = mir.unary exp %t : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %c = mir.unary neg %t : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %d = mir.binary add %a, %a : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %f = mir.binary mul %c, %d : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   func.return %logits, %f : tensor<1x64xf32>, tensor<64x32xf32>

  // A phase that is written stays, and what depends on it is not hoisted.
  func.func private @written() -> tensor<64x32xf32> {
    %t = mir.load_weight @table : tensor<64x32xf32>
    %a = mir.unary exp %t : tensor<64x32xf32> {phase = #mir<phase steady_state>}
    %b = mir.unary neg %a : tensor<64x32xf32>
    func.return %b : tensor<64x32xf32>
  }
  // CHECK-LABEL: func.func private @written(
  // CHECK-NEXT:   %t = mir.load_weight @table : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %a = mir.unary exp %t : tensor<64x32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %b = mir.unary neg %a : tensor<64x32xf32>
  // CHECK-NEXT:   func.return %b : tensor<64x32xf32>

  // In a layer function only weights run once: the rest is computed for each layer at every step.
  func.func private @computed(%x: tensor<1x32xf32>) -> tensor<32x32xf32> {
    %c = mir.constant dense<2.0> : tensor<32x32xf32>
    %w = mir.load_weight @w : tensor<32x32xf32>
    %p = mir.pack %w : tensor<32x32xf32> -> tensor<32x32xf32>
    %a = mir.binary mul %p, %c : tensor<32x32xf32>
    func.return %a : tensor<32x32xf32>
  }
  // CHECK-LABEL: func.func private @computed(
  // CHECK-NEXT:   %c = mir.constant dense<2.000000e+00> : tensor<32x32xf32>
  // CHECK-NEXT:   %w = mir.load_weight @w : tensor<32x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %p = mir.pack %w : tensor<32x32xf32> -> tensor<32x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %a = mir.binary mul %p, %c : tensor<32x32xf32>
}
