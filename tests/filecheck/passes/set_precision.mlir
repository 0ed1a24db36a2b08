// RUN: rlx-opt %s -p 'set-precision{policy=auto-mixed-bf16}' | filecheck %s
// RUN: rlx-opt %s -p 'set-precision{policy=auto-mixed-conservative}' | filecheck %s --check-prefix=SAFE
// RUN: rlx-opt %s -p 'set-precision{policy=custom compute=f16}' | filecheck %s --check-prefix=CUSTOM
// RUN: rlx-opt %s -p 'set-precision{policy=always-f32}' | filecheck %s --check-prefix=SAME

builtin.module {
  // The results of maps and products are rounded, not those of reductions. What is returned stays
  // as it was computed, and so does what a reduction reads where the policy says so.
  func.func private @layer(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
    %e = mir.unary exp %x : tensor<4x8xf32>
    %n = mir.unary neg %e : tensor<4x8xf32>
    %s = mir.reduce sum %e axes [1] : tensor<4x8xf32> -> tensor<4xf32>
    %t = mir.unary tanh %s : tensor<4xf32>
    func.return %n, %t : tensor<4x8xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:    %e = mir.unary exp %x : tensor<4x8xf32>
  // CHECK-NEXT:    %e_1 = mir.cast %e : tensor<4x8xf32> -> tensor<4x8xbf16>
  // CHECK-NEXT:    %e_2 = mir.cast %e_1 : tensor<4x8xbf16> -> tensor<4x8xf32>
  // CHECK-NEXT:    %n = mir.unary neg %e_2 : tensor<4x8xf32>
  // CHECK-NEXT:    %s = mir.reduce sum %e_2 axes [1] : tensor<4x8xf32> -> tensor<4xf32>
  // CHECK-NEXT:    %t = mir.unary tanh %s : tensor<4xf32>
  // CHECK-NEXT:    func.return %n, %t : tensor<4x8xf32>, tensor<4xf32>
  // SAFE-LABEL: func.func private @layer(
  // SAFE:          mir.unary neg %e_2 : tensor<4x8xf32>
  // SAFE:          mir.reduce sum %e axes [1]
  // SAME-LABEL: func.func private @layer(
  // SAME-NOT:      mir.cast

  // In a branch and a loop; what they hand on stays, and a kernel stores nothing inside.
  func.func @main(%x: tensor<8x8xf32>, %if: tensor<i1>) -> tensor<8x8xf32> {
    %r = mir.if %if -> (tensor<8x8xf32>) {
      %d = mir.dot %x, %x : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
      %n = mir.unary neg %d : tensor<8x8xf32>
      mir.yield %n : tensor<8x8xf32>
    } else {
      %k = mir.kernel -> (tensor<8x8xf32>) {
        %a = mir.unary neg %x : tensor<8x8xf32>
        %b = mir.unary exp %a : tensor<8x8xf32>
        mir.yield %b : tensor<8x8xf32>
      }
      mir.yield %k : tensor<8x8xf32>
    } : tensor<i1>
    func.return %r : tensor<8x8xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK:           %d = mir.dot
  // CHECK-NEXT:      %d_1 = mir.cast %d : tensor<8x8xf32> -> tensor<8x8xbf16>
  // CHECK-NEXT:      %d_2 = mir.cast %d_1 : tensor<8x8xbf16> -> tensor<8x8xf32>
  // CHECK-NEXT:      %n = mir.unary neg %d_2 : tensor<8x8xf32>
  // CHECK-NEXT:      mir.yield %n : tensor<8x8xf32>
  // CHECK-NEXT:    } else {
  // CHECK-NEXT:      %k = mir.kernel
  // CHECK-NEXT:        %a = mir.unary neg %x : tensor<8x8xf32>
  // CHECK-NEXT:        %b = mir.unary exp %a : tensor<8x8xf32>
  // CUSTOM-LABEL: func.func private @layer(
  // CUSTOM-NOT:     mir.cast
  // CUSTOM-LABEL: func.func @main(
  // CUSTOM:         %d_1 = mir.cast %d : tensor<8x8xf32> -> tensor<8x8xf16>
}
