// RUN: rlx-opt %s -p derive-phases | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8>} {
  hir.weight @w "w.weight" : tensor<8x8xf32>

  // A branch or a loop has a phase as a whole, and what it holds has none. %l multiplies, so it is
  // compute; %r does not, and comes after the last compute; %e is needed in a loop.
  func.func @main(%x: tensor<8x8xf32>, %if: tensor<i1>) -> tensor<8x8xf32> {
    %w = mir.load_weight @w : tensor<8x8xf32>
    %p = mir.pack %w : tensor<8x8xf32> -> tensor<8x8xf32>
    %c = mir.constant dense<1.0> : tensor<8x8xf32>
    %e = mir.unary exp %p : tensor<8x8xf32>
    %l = mir.while (%x) {
    ^bb0(%v: tensor<8x8xf32>):
      mir.yield %if : tensor<i1>
    } do {
    ^bb0(%v: tensor<8x8xf32>):
      %d = mir.dot %v, %e : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
      mir.yield %d : tensor<8x8xf32>
    } : (tensor<8x8xf32>) -> (tensor<8x8xf32>)
    %f = mir.unary exp %c : tensor<8x8xf32>
    %r = mir.if %if -> (tensor<8x8xf32>) {
      %n = mir.unary neg %l : tensor<8x8xf32>
      mir.yield %n : tensor<8x8xf32>
    } else {
      %k = mir.kernel -> (tensor<8x8xf32>) {
        %a = mir.binary add %l, %f : tensor<8x8xf32>
        mir.yield %a : tensor<8x8xf32>
      }
      mir.yield %k : tensor<8x8xf32>
    } : tensor<i1>
    func.return %r : tensor<8x8xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:    %w = mir.load_weight @w : tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %p = mir.pack %w : tensor<8x8xf32> -> tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %c = mir.constant dense<1.000000e+00> : tensor<8x8xf32> {phase = #mir<phase prologue>}
  // CHECK-NEXT:    %e = mir.unary exp %p : tensor<8x8xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:    %l = mir.while(%x) {
  // CHECK-NEXT:    ^bb0(%v: tensor<8x8xf32>):
  // CHECK-NEXT:      mir.yield %if : tensor<i1>
  // CHECK-NEXT:    } do {
  // CHECK-NEXT:    ^bb0(%v_1: tensor<8x8xf32>):
  // CHECK-NEXT:      %d = mir.dot %v_1, %e : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  // CHECK-NEXT:      mir.yield %d : tensor<8x8xf32>
  // CHECK-NEXT:    } attributes {phase = #mir<phase steady_state>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT:    %f = mir.unary exp %c : tensor<8x8xf32> {phase = #mir<phase epilogue>}
  // CHECK-NEXT:    %r = mir.if %if -> (tensor<8x8xf32>) {
  // CHECK-NEXT:      %n = mir.unary neg %l : tensor<8x8xf32>
  // CHECK-NEXT:      mir.yield %n : tensor<8x8xf32>
  // CHECK-NEXT:    } else {
  // CHECK-NEXT:      %k = mir.kernel -> (tensor<8x8xf32>) {
  // CHECK-NEXT:        %a = mir.binary add %l, %f : tensor<8x8xf32>
  // CHECK-NEXT:        mir.yield %a : tensor<8x8xf32>
  // CHECK-NEXT:      }
  // CHECK-NEXT:      mir.yield %k : tensor<8x8xf32>
  // CHECK-NEXT:    } attributes {phase = #mir<phase epilogue>} : tensor<i1>

  // A leaf whose size each step gives is made in each step.
  func.func private @sizes() -> (tensor<?xf32, #hir.dims<seq>>, tensor<4xf32>) {
    %i = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>>
    %j = mir.iota axis 0 : tensor<4xf32>
    func.return %i, %j : tensor<?xf32, #hir.dims<seq>>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @sizes(
  // CHECK-NEXT:    %i = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:    %j = mir.iota axis 0 : tensor<4xf32> {phase = #mir<phase prologue>}
}
