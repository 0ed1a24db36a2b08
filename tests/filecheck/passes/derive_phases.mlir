// RUN: rlx-opt %s -p derive-phases | filecheck %s

builtin.module {
  hir.weight @table "token_embd.weight" : tensor<64x32xf32>
  hir.weight @w "blk.{layer}.w.weight" : tensor<32x32xf32>
  hir.weight @g "output_norm.weight" : tensor<32xf32>
  hir.state @keys keys head_dim 16 : tensor<256x32xf32>

  // A layer runs in the steady state, but for its leaves and what is written.
  func.func private @layer(%x: tensor<1x32xf32>) -> tensor<1x32xf32> {
    %w = mir.load_weight @w : tensor<32x32xf32>
    %n = mir.unary neg %w : tensor<32x32xf32> {phase = #mir<phase prologue>}
    %p = mir.pack %n : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>>
    %state = mir.load_state @keys : tensor<256x32xf32>
    %y = mir.kernel -> (tensor<1x32xf32>) {
      %m = mir.matmul %x, %p : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %e = mir.unary exp %m : tensor<1x32xf32>
      mir.yield %e : tensor<1x32xf32>
    }
    %z = mir.unary silu %y : tensor<1x32xf32>
    func.return %z : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %w = mir.load_weight @w : tensor<32x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %n = mir.unary neg %w : tensor<32x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %p = mir.pack %n : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<256x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:     %m = mir.matmul %x, %p : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     %e = mir.unary exp %m : tensor<1x32xf32>
  // CHECK-NEXT:     mir.yield %e : tensor<1x32xf32>
  // CHECK-NEXT:   } attributes {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %z = mir.unary silu %y : tensor<1x32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   func.return %z : tensor<1x32xf32>

  // The contract's rule: the last compute operation ends the steady state; the final norm stands
  // before it. What only %last needs moves up to it, although its place is in the epilogue.
  func.func @main(%ids: tensor<1xi32>, %params: tensor<8xi32>) -> (tensor<1xi32>, tensor<1x64xf32>, tensor<1x64xf32>) {
    %t = mir.load_weight @table : tensor<64x32xf32>
    %p = mir.pack %t : tensor<64x32xf32> -> tensor<64x32x!hir.packed<f32>>
    %e = mir.embedding %ids, %p : tensor<1xi32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %y = mir.repeat @layer(%e) layers 0 to 2 : (tensor<1x32xf32>) -> tensor<1x32xf32>
    %g = mir.load_weight @g : tensor<32xf32>
    %n = mir.rms_norm %y, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %logits = mir.matmul %n, %p : tensor<1x32xf32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x64xf32>
    %scaled = mir.unary tanh %logits : tensor<1x64xf32>
    %id = mir.sample %scaled, %params : tensor<1x64xf32>, tensor<8xi32> -> tensor<1xi32>
    %abs = mir.unary abs %logits : tensor<1x64xf32>
    %last = mir.unary exp %abs : tensor<1x64xf32> {phase = #mir<phase steady_state>}
    func.return %id, %scaled, %last : tensor<1xi32>, tensor<1x64xf32>, tensor<1x64xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:   %t = mir.load_weight @table : tensor<64x32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %p = mir.pack %t : tensor<64x32xf32> -> tensor<64x32x!hir.packed<f32>> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %e = mir.embedding %ids, %p : tensor<1xi32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %y = mir.repeat @layer(%e) layers 0 to 2 : (tensor<1x32xf32>) -> tensor<1x32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %g = mir.load_weight @g : tensor<32xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:   %n = mir.rms_norm %y, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %logits = mir.matmul %n, %p : tensor<1x32xf32>, tensor<64x32x!hir.packed<f32>> -> tensor<1x64xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %scaled = mir.unary tanh %logits : tensor<1x64xf32> {phase = #mir<phase epilogue>}
  // CHECK-NEXT:   %id = mir.sample %scaled, %params : tensor<1x64xf32>, tensor<8xi32> -> tensor<1xi32> {phase = #mir<phase epilogue>}
  // CHECK-NEXT:   %abs = mir.unary abs %logits : tensor<1x64xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %last = mir.unary exp %abs : tensor<1x64xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   func.return %id, %scaled, %last : tensor<1xi32>, tensor<1x64xf32>, tensor<1x64xf32>
}
