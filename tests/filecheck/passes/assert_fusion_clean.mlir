// RUN: rlx-opt %s -p 'fuse-epilogue{report=true},fuse-norm{report=true},assert-fusion-clean' --split-input-file --verify-diagnostics | filecheck %s

// Nothing was missed: the report goes.
// CHECK: builtin.module {
// CHECK-NEXT: func.func @clean
// CHECK: mir.kernel
builtin.module {
  func.func @clean(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<4x32xf32> {
    %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %y = mir.unary silu %a : tensor<4x32xf32>
    func.return %y : tensor<4x32xf32>
  }
}

// -----

// Each thread would normalise all of the rows again.
// CHECK: fusion.assert_clean: missed fusions: 1, of which the first are
// CHECK-NEXT: fuse-norm @missed: rms_norm %n + matmul %y: declined: each thread would normalise all of the 4 rows again
builtin.module {
  func.func @missed(%x: tensor<4x32xf32>, %g: tensor<32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<4x32xf32> {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    %y = mir.matmul %n, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    func.return %y : tensor<4x32xf32>
  }
}
