// RUN: rlx-opt %s -p fuse-norm | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 512>} {
  // One row: each thread normalises it for itself.
  func.func private @layer(%x: tensor<1x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> tensor<1x32xf32> {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %y = mir.kernel -> (tensor<1x32xf32>) {
      %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %b = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %s = mir.binary mul %a, %b : tensor<1x32xf32>
      mir.yield %s : tensor<1x32xf32>
    }
    func.return %y : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %s = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:     %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:     %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     %b = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     %s_1 = mir.binary mul %a, %b : tensor<1x32xf32>
  // CHECK-NEXT:     mir.yield %s_1 : tensor<1x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %s : tensor<1x32xf32>
  func.func @main(%x: tensor<1x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> tensor<1x32xf32> {
    %y = mir.repeat @layer(%x, %w, %g) layers 0 to 2 : (tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>>, tensor<32xf32>) -> tensor<1x32xf32>
    %n = mir.rms_norm %y, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %z = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    func.return %z : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:   %y = mir.repeat @layer(%x, %w, %g) layers 0 to 2 : (tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>>, tensor<32xf32>) -> tensor<1x32xf32>
  // CHECK-NEXT:   %z = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:     %n = mir.rms_norm %y, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:     %z_1 = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     mir.yield %z_1 : tensor<1x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %z : tensor<1x32xf32>

  // Refused: more rows than one, known or not.
  func.func private @rows(%x: tensor<2x32xf32>, %z: tensor<?x32xf32, #hir.dims<seq, _>>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> (tensor<2x32xf32>, tensor<?x32xf32, #hir.dims<seq, _>>) {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<2x32xf32>, tensor<32xf32>
    %a = mir.matmul %n, %w : tensor<2x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<2x32xf32>
    %m = mir.rms_norm %z, %g eps 1.0e-05 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32xf32>
    %b = mir.matmul %m, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>> -> tensor<?x32xf32, #hir.dims<seq, _>>
    func.return %a, %b : tensor<2x32xf32>, tensor<?x32xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func private @rows(
  // CHECK-NEXT:   %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<2x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %a = mir.matmul %n, %w : tensor<2x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<2x32xf32>
  // CHECK-NEXT:   %m = mir.rms_norm %z, %g eps 1.0e-05 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32xf32>
  // CHECK-NEXT:   %b = mir.matmul %m, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>> -> tensor<?x32xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %a, %b : tensor<2x32xf32>, tensor<?x32xf32, #hir.dims<seq, _>>

  // Refused: two launches read the row, or a launch and the caller.
  func.func private @readers(%x: tensor<1x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> (tensor<1x32xf32>, tensor<1x32xf32>, tensor<1x32xf32>) {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %b = mir.unary exp %n : tensor<1x32xf32>
    %m = mir.rms_norm %x, %g eps 1.0e-06 : tensor<1x32xf32>, tensor<32xf32>
    %c = mir.matmul %m, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %d = mir.binary add %b, %c : tensor<1x32xf32>
    func.return %m, %a, %d : tensor<1x32xf32>, tensor<1x32xf32>, tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @readers(
  // CHECK-NEXT:   %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   %b = mir.unary exp %n : tensor<1x32xf32>
  // CHECK-NEXT:   %m = mir.rms_norm %x, %g eps 1.0e-06 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %c = mir.matmul %m, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   %d = mir.binary add %b, %c : tensor<1x32xf32>
  // CHECK-NEXT:   func.return %m, %a, %d : tensor<1x32xf32>, tensor<1x32xf32>, tensor<1x32xf32>

  // Refused: the epilogue needs the row too.
  func.func private @residual(%x: tensor<1x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> tensor<1x32xf32> {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %y = mir.kernel -> (tensor<1x32xf32>) {
      %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %s = mir.binary add %n, %a : tensor<1x32xf32>
      mir.yield %s : tensor<1x32xf32>
    }
    func.return %y : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @residual(
  // CHECK-NEXT:   %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:     %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     %s = mir.binary add %n, %a : tensor<1x32xf32>
  // CHECK-NEXT:     mir.yield %s : tensor<1x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %y : tensor<1x32xf32>

  // Refused: two matmuls read the row and are not one launch; fuse-shared-input comes first.
  func.func private @matmuls(%x: tensor<1x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> (tensor<1x32xf32>, tensor<1x32xf32>) {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %b = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    func.return %a, %b : tensor<1x32xf32>, tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @matmuls(
  // CHECK-NEXT:   %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   %b = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   func.return %a, %b : tensor<1x32xf32>, tensor<1x32xf32>

  // Refused: the kernel, which the passes would not make, multiplies another row as well.
  func.func private @other_rows(%x: tensor<1x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> tensor<1x32xf32> {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %y = mir.kernel -> (tensor<1x32xf32>) {
      %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %b = mir.matmul %x, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %s = mir.binary mul %a, %b : tensor<1x32xf32>
      mir.yield %s : tensor<1x32xf32>
    }
    func.return %y : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @other_rows(
  // CHECK-NEXT:   %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:     %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     %b = mir.matmul %x, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:     %s = mir.binary mul %a, %b : tensor<1x32xf32>
  // CHECK-NEXT:     mir.yield %s : tensor<1x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %y : tensor<1x32xf32>

  // In a branch and in a loop; not into one: the norm of %x is computed once, the product may not be.
  func.func private @control(%x: tensor<1x32xf32>, %g: tensor<32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %if: tensor<i1>) -> tensor<1x32xf32> {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
    %r = mir.if %if -> (tensor<1x32xf32>) {
      %a = mir.matmul %n, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      %m = mir.rms_norm %a, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
      %b = mir.matmul %m, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      mir.yield %b : tensor<1x32xf32>
    } else {
      mir.yield %x : tensor<1x32xf32>
    } : tensor<i1>
    %l = mir.while (%r) {
    ^bb0(%v: tensor<1x32xf32>):
      mir.yield %if : tensor<i1>
    } do {
    ^bb0(%v: tensor<1x32xf32>):
      %k = mir.rms_norm %v, %g eps 1.0e-05 : tensor<1x32xf32>, tensor<32xf32>
      %c = mir.matmul %k, %w : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
      mir.yield %c : tensor<1x32xf32>
    } : (tensor<1x32xf32>) -> (tensor<1x32xf32>)
    func.return %l : tensor<1x32xf32>
  }
  // CHECK-LABEL: func.func private @control(
  // CHECK-NEXT:   %n = mir.rms_norm %x, %g
  // CHECK-NEXT:   %r = mir.if %if -> (tensor<1x32xf32>) {
  // CHECK-NEXT:     %a = mir.matmul %n, %w
  // CHECK-NEXT:     %b = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:       %m = mir.rms_norm %a, %g
  // CHECK-NEXT:       %b_1 = mir.matmul %m, %w
  // CHECK:        } do {
  // CHECK-NEXT:   ^bb0(%v_1: tensor<1x32xf32>):
  // CHECK-NEXT:     %c = mir.kernel -> (tensor<1x32xf32>) {
  // CHECK-NEXT:       %k = mir.rms_norm %v_1, %g
}
