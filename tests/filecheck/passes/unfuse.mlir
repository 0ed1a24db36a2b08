// RUN: rlx-opt %s -p unfuse | filecheck %s
// RUN: rlx-opt %s -p 'unfuse{expand=true}' | filecheck %s --check-prefix=EXPAND

builtin.module {
  // The operations run when their kernel did.
  func.func @kernels(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> (tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x32xf32>) {
    %a, %b = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
      %m = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %s = mir.unary silu %m : tensor<4x32xf32>
      mir.yield %m, %s : tensor<4x32xf32>, tensor<4x32xf32>
    } attributes {phase = #mir<phase steady_state>}
    %c = mir.kernel -> (tensor<4x32xf32>) {
      %n = mir.binary add %a, %b : tensor<4x32xf32>
      mir.yield %n : tensor<4x32xf32>
    }
    func.return %a, %b, %c : tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func @kernels(
  // CHECK-NEXT:   %m = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %s = mir.unary silu %m : tensor<4x32xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %n = mir.binary add %m, %s : tensor<4x32xf32>
  // CHECK-NEXT:   func.return %m, %s, %n : tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x32xf32>
  // EXPAND-LABEL: func.func @kernels(
  // EXPAND-NEXT:   %m = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32> {phase = #mir<phase steady_state>}
  // EXPAND-NEXT:   %s = mir.unary sigmoid %m : tensor<4x32xf32> {phase = #mir<phase steady_state>}
  // EXPAND-NEXT:   %s_1 = mir.binary mul %m, %s : tensor<4x32xf32> {phase = #mir<phase steady_state>}
  // EXPAND-NEXT:   %n = mir.binary add %m, %s_1 : tensor<4x32xf32>
  // EXPAND-NEXT:   func.return %m, %s_1, %n : tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x32xf32>

  // In a branch and a loop of a layer.
  func.func private @layer(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
    %y = mir.if %c -> (tensor<4xf32>) {
      %k = mir.kernel -> (tensor<4xf32>) {
        %a = mir.unary exp %x : tensor<4xf32>
        mir.yield %a : tensor<4xf32>
      }
      mir.yield %k : tensor<4xf32>
    } else {
      mir.yield %x : tensor<4xf32>
    } : tensor<i1>
    %n, %z = mir.while (%c, %y) {
    ^bb0(%p: tensor<i1>, %v: tensor<4xf32>):
      mir.yield %p : tensor<i1>
    } do {
    ^bb0(%p: tensor<i1>, %v: tensor<4xf32>):
      %k, %q = mir.kernel -> (tensor<4xf32>, tensor<i1>) {
        %a = mir.unary neg %v : tensor<4xf32>
        %b = mir.unary not %p : tensor<i1>
        mir.yield %a, %b : tensor<4xf32>, tensor<i1>
      }
      mir.yield %q, %k : tensor<i1>, tensor<4xf32>
    } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
    func.return %z : tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %y = mir.if %c -> (tensor<4xf32>) {
  // CHECK-NEXT:     %a = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %a : tensor<4xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     mir.yield %x : tensor<4xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   %n, %z = mir.while(%c, %y) {
  // CHECK-NEXT:   ^bb0(%p: tensor<i1>, %v: tensor<4xf32>):
  // CHECK-NEXT:     mir.yield %p : tensor<i1>
  // CHECK-NEXT:   } do {
  // CHECK-NEXT:   ^bb0(%p_1: tensor<i1>, %v_1: tensor<4xf32>):
  // CHECK-NEXT:     %a_1 = mir.unary neg %v_1 : tensor<4xf32>
  // CHECK-NEXT:     %b = mir.unary not %p_1 : tensor<i1>
  // CHECK-NEXT:     mir.yield %b, %a_1 : tensor<i1>, tensor<4xf32>
  // CHECK-NEXT:   } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
  // CHECK-NEXT:   func.return %z : tensor<4xf32>
  // EXPAND-LABEL: func.func private @layer(
  // EXPAND-NEXT:   %y = mir.if %c -> (tensor<4xf32>) {
  // EXPAND-NEXT:     %a = mir.unary exp %x : tensor<4xf32>
  // EXPAND-NEXT:     mir.yield %a : tensor<4xf32>
  // EXPAND-NEXT:   } else {
  // EXPAND-NEXT:     mir.yield %x : tensor<4xf32>
  // EXPAND-NEXT:   } : tensor<i1>
  // EXPAND-NEXT:   %n, %z = mir.while(%c, %y) {
  // EXPAND-NEXT:   ^bb0(%p: tensor<i1>, %v: tensor<4xf32>):
  // EXPAND-NEXT:     mir.yield %p : tensor<i1>
  // EXPAND-NEXT:   } do {
  // EXPAND-NEXT:   ^bb0(%p_1: tensor<i1>, %v_1: tensor<4xf32>):
  // EXPAND-NEXT:     %a_1 = mir.unary neg %v_1 : tensor<4xf32>
  // EXPAND-NEXT:     %b = mir.unary not %p_1 : tensor<i1>
  // EXPAND-NEXT:     mir.yield %b, %a_1 : tensor<i1>, tensor<4xf32>
  // EXPAND-NEXT:   } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
  // EXPAND-NEXT:   func.return %z : tensor<4xf32>

  // Composite operations, where they are asked for; a weight that is packed can't be multiplied.
  func.func @composite(%x: tensor<2x4xf32>, %g: tensor<4xf32>, %h: tensor<4x!hir.packed<f32>>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) {
    %a = mir.softmax %x : tensor<2x4xf32>
    %b = mir.unary silu %x : tensor<2x4xf32> {phase = #mir<phase epilogue>}
    %c = mir.rms_norm %x, %g eps 1.0e-05 : tensor<2x4xf32>, tensor<4xf32>
    %d = mir.unary exp %x : tensor<2x4xf32>
    func.return %a, %b, %c, %d : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  // CHECK-LABEL: func.func @composite(
  // CHECK-NEXT:   %a = mir.softmax %x : tensor<2x4xf32>
  // CHECK-NEXT:   %b = mir.unary silu %x : tensor<2x4xf32> {phase = #mir<phase epilogue>}
  // CHECK-NEXT:   %c = mir.rms_norm %x, %g eps 1.0e-05 : tensor<2x4xf32>, tensor<4xf32>
  // CHECK-NEXT:   %d = mir.unary exp %x : tensor<2x4xf32>
  // CHECK-NEXT:   func.return %a, %b, %c, %d : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
  // EXPAND-LABEL: func.func @composite(
  // EXPAND-NEXT:   %a = mir.reduce max %x axes [1] : tensor<2x4xf32> -> tensor<2xf32>
  // EXPAND-NEXT:   %a_1 = mir.reshape %a : tensor<2xf32> -> tensor<2x1xf32>
  // EXPAND-NEXT:   %a_2 = mir.broadcast %a_1 : tensor<2x1xf32> -> tensor<2x4xf32>
  // EXPAND-NEXT:   %a_3 = mir.binary sub %x, %a_2 : tensor<2x4xf32>
  // EXPAND-NEXT:   %a_4 = mir.unary exp %a_3 : tensor<2x4xf32>
  // EXPAND-NEXT:   %a_5 = mir.reduce sum %a_4 axes [1] : tensor<2x4xf32> -> tensor<2xf32>
  // EXPAND-NEXT:   %a_6 = mir.reshape %a_5 : tensor<2xf32> -> tensor<2x1xf32>
  // EXPAND-NEXT:   %a_7 = mir.broadcast %a_6 : tensor<2x1xf32> -> tensor<2x4xf32>
  // EXPAND-NEXT:   %a_8 = mir.binary div %a_4, %a_7 : tensor<2x4xf32>
  // EXPAND-NEXT:   %b = mir.unary sigmoid %x : tensor<2x4xf32> {phase = #mir<phase epilogue>}
  // EXPAND-NEXT:   %b_1 = mir.binary mul %x, %b : tensor<2x4xf32> {phase = #mir<phase epilogue>}
  // EXPAND-NEXT:   %c = mir.binary mul %x, %x : tensor<2x4xf32>
  // EXPAND-NEXT:   %c_1 = mir.reduce mean %c axes [1] : tensor<2x4xf32> -> tensor<2xf32>
  // EXPAND-NEXT:   %c_2 = mir.reshape %c_1 : tensor<2xf32> -> tensor<2x1xf32>
  // EXPAND-NEXT:   %c_3 = mir.broadcast %c_2 : tensor<2x1xf32> -> tensor<2x4xf32>
  // EXPAND-NEXT:   %c_4 = mir.constant dense<1.000000e-05> : tensor<2x4xf32>
  // EXPAND-NEXT:   %c_5 = mir.binary add %c_3, %c_4 : tensor<2x4xf32>
  // EXPAND-NEXT:   %c_6 = mir.unary sqrt %c_5 : tensor<2x4xf32>
  // EXPAND-NEXT:   %c_7 = mir.binary div %x, %c_6 : tensor<2x4xf32>
  // EXPAND-NEXT:   %c_8 = mir.broadcast %g : tensor<4xf32> -> tensor<2x4xf32>
  // EXPAND-NEXT:   %c_9 = mir.binary mul %c_7, %c_8 : tensor<2x4xf32>
  // EXPAND-NEXT:   %d = mir.unary exp %x : tensor<2x4xf32>
  // EXPAND-NEXT:   func.return %a_8, %b_1, %c_9, %d : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
