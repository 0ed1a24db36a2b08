// RUN: rlx-opt %s -p hoist-params | filecheck %s

builtin.module {
  hir.weight @w "w.weight" : tensor<8x8xf32>

  // What depends on weights moves out of branches and loops, is merged and runs once. The loop
  // itself stays: were it not wanted, it would run for nothing, or never end.
  func.func @main(%x: tensor<8x8xf32>, %if: tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
    %l = mir.while (%x) {
    ^bb0(%v: tensor<8x8xf32>):
      mir.yield %if : tensor<i1>
    } do {
    ^bb0(%v: tensor<8x8xf32>):
      %w = mir.load_weight @w : tensor<8x8xf32>
      %p = mir.pack %w : tensor<8x8xf32> -> tensor<8x8xf32>
      %t = mir.transpose %p [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32>
      %a = mir.binary add %v, %t : tensor<8x8xf32>
      mir.yield %a : tensor<8x8xf32>
    } : (tensor<8x8xf32>) -> (tensor<8x8xf32>)
    %w2 = mir.load_weight @w : tensor<8x8xf32>
    %p2 = mir.pack %w2 : tensor<8x8xf32> -> tensor<8x8xf32>
    %r = mir.if %if -> (tensor<8x8xf32>) {
      %t2 = mir.transpose %p2 [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32>
      %d = mir.dot %t2, %p2 : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
      mir.yield %d : tensor<8x8xf32>
    } else {
      %no = mir.constant dense<0> : tensor<i1>
      %k = mir.while (%p2) {
      ^bb0(%v: tensor<8x8xf32>):
        mir.yield %no : tensor<i1>
      } do {
      ^bb0(%v: tensor<8x8xf32>):
        mir.yield %v : tensor<8x8xf32>
      } : (tensor<8x8xf32>) -> (tensor<8x8xf32>)
      mir.yield %k : tensor<8x8xf32>
    } : tensor<i1>
    func.return %l, %r : tensor<8x8xf32>, tensor<8x8xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:    %w = mir.load_weight @w : tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %p = mir.pack %w : tensor<8x8xf32> -> tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %t = mir.transpose %p [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %l = mir.while(%x) {
  // CHECK:           %a = mir.binary add %v_1, %t : tensor<8x8xf32>
  // CHECK-NEXT:      mir.yield %a : tensor<8x8xf32>
  // CHECK-NEXT:    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT:    %d = mir.dot %t, %p : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %no = mir.constant dense<false> : tensor<i1> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %r = mir.if %if -> (tensor<8x8xf32>) {
  // CHECK-NEXT:      mir.yield %d : tensor<8x8xf32>
  // CHECK-NEXT:    } else {
  // CHECK-NEXT:      %k = mir.while(%p) {
}
