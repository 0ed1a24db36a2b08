// RUN: rlx-opt %s -p fuse-residual-norm | filecheck %s
// RUN: rlx-opt %s -p 'fuse-residual-norm{report=true}' | filecheck %s --check-prefix=REPORT

builtin.module {
  // In a layer function: the sum is the next residual too, so it is yielded.
  func.func private @layer(%x: tensor<4x32xf32>, %y: tensor<4x32xf32>, %g: tensor<32xf32>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %s = mir.binary add %x, %y : tensor<4x32xf32>
    %n = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    func.return %s, %n : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:    %s, %n = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
  // CHECK-NEXT:      %s_1 = mir.binary add %x, %y : tensor<4x32xf32>
  // CHECK-NEXT:      %n_1 = mir.layer_norm %s_1, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
  // CHECK-NEXT:      mir.yield %s_1, %n_1 : tensor<4x32xf32>, tensor<4x32xf32>
  // CHECK-NEXT:    }
  // CHECK-NEXT:    func.return %s, %n : tensor<4x32xf32>, tensor<4x32xf32>

  // With the bias of a product, whose broadcast is copied; nobody else reads the sums.
  func.func private @bias(%x: tensor<4x32xf32>, %y: tensor<4x32xf32>, %v: tensor<32xf32>, %g: tensor<32xf32>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %b = mir.broadcast %v : tensor<32xf32> -> tensor<4x32xf32>
    %t = mir.binary add %y, %b : tensor<4x32xf32>
    %s = mir.binary add %t, %x : tensor<4x32xf32>
    %n = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    %o = mir.unary neg %b : tensor<4x32xf32>
    func.return %n, %o : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @bias(
  // CHECK-NEXT:    %b = mir.broadcast %v : tensor<32xf32> -> tensor<4x32xf32>
  // CHECK-NEXT:    %n = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:      %b_1 = mir.broadcast %v : tensor<32xf32> -> tensor<4x32xf32>
  // CHECK-NEXT:      %t = mir.binary add %y, %b_1 : tensor<4x32xf32>
  // CHECK-NEXT:      %s = mir.binary add %t, %x : tensor<4x32xf32>
  // CHECK-NEXT:      %n_1 = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
  // CHECK-NEXT:      mir.yield %n_1 : tensor<4x32xf32>
  // CHECK-NEXT:    }
  // CHECK-NEXT:    %o = mir.unary neg %b : tensor<4x32xf32>

  // Refused: the sum is a product's epilogue. Not tried: a difference.
  func.func private @refused(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %s = mir.kernel -> (tensor<4x32xf32>) {
      %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %t = mir.binary add %x, %y : tensor<4x32xf32>
      mir.yield %t : tensor<4x32xf32>
    }
    %n = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    %d = mir.binary sub %x, %n : tensor<4x32xf32>
    %m = mir.layer_norm %d, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    func.return %n, %m : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @refused(
  // CHECK-NEXT:    %s = mir.kernel
  // CHECK:         %n = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
  // CHECK-NEXT:    %d = mir.binary sub %x, %n : tensor<4x32xf32>
  // CHECK-NEXT:    %m = mir.layer_norm %d, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>

  // In a branch; not across one.
  func.func @main(%x: tensor<4x32xf32>, %g: tensor<32xf32>, %if: tensor<i1>) -> tensor<4x32xf32> {
    %s = mir.binary add %x, %x : tensor<4x32xf32>
    %r = mir.if %if -> (tensor<4x32xf32>) {
      %n = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
      %t = mir.binary add %n, %s : tensor<4x32xf32>
      %m = mir.layer_norm %t, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
      mir.yield %m : tensor<4x32xf32>
    } else {
      mir.yield %x : tensor<4x32xf32>
    } : tensor<i1>
    func.return %r : tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:    %s = mir.binary add %x, %x : tensor<4x32xf32>
  // CHECK-NEXT:    %r = mir.if %if -> (tensor<4x32xf32>) {
  // CHECK-NEXT:      %n = mir.layer_norm %s, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
  // CHECK-NEXT:      %m = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:        %t = mir.binary add %n, %s : tensor<4x32xf32>
  // CHECK-NEXT:        %m_1 = mir.layer_norm %t, %g, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>

  // REPORT: function = "refused", op = "layer_norm %n", kernel = "matmul %y, binary add %t", fused = false
  // REPORT-SAME: reason = "the sum is part of a kernel already"
  // REPORT-SAME: function = "main", op = "layer_norm %n", kernel = "binary add %s", fused = false
  // REPORT-SAME: reason = "they stand in different blocks"
}
