// RUN: rlx-opt %s -p 'fuse-shared-input{report=true},fuse-epilogue{report=true},fuse-norm{report=true}' | filecheck %s
// RUN: rlx-opt %s -p 'fuse-epilogue{report=true target=wgpu}' | filecheck %s --check-prefix=GATE
// RUN: rlx-opt %s -p 'fuse-shared-input,fuse-epilogue,fuse-norm' | filecheck %s --check-prefix=OFF

// The passes add their entries one after the other: what was fused, then what was declined.
// Bytes of the first: before, each matmul reads 4 x 32 f32 and a weight of 32 x 32, and writes
// 4 x 32; after, the input is read once.

// CHECK: builtin.module attributes {rlx.fusion_report = [
// CHECK-SAME: {rule = "fuse-shared-input", function = "f", op = "matmul %a", kernel = "matmul %b", fused = true, launches = [2 : i64, 1 : i64], bytes = [10240 : i64, 9728 : i64], score_ns = 6.024000e+01 : f64, reason = ""}
// CHECK-SAME: {rule = "fuse-epilogue", function = "f", op = "binary mul %p", kernel = "matmul %a, matmul %b", fused = true, launches = [2 : i64, 1 : i64], bytes = [11264 : i64, 9216 : i64], score_ns = 90.96{{[0-9]*}} : f64, reason = ""}
// CHECK-SAME: {rule = "fuse-norm", function = "f", op = "rms_norm %n", kernel = "matmul %a, matmul %b, binary mul %p", fused = false, launches = [2 : i64, 1 : i64], bytes = [10368 : i64, 9344 : i64], score_ns = 7.048000e+01 : f64, reason = "each thread would normalise all of the 4 rows again"}
// CHECK-SAME: ]} {

// 3000 ns of a launch and 10 of bytes are not the 10000 that this target's gate asks for. Declined
// too: %b could take the product with %a as its residual.

// GATE: {rule = "fuse-epilogue", function = "f", op = "binary mul %p", kernel = "matmul %b", fused = false, launches = [2 : i64, 1 : i64], bytes = [6656 : i64, 5632 : i64], score_ns = 3.010240e+03 : f64, reason = "the target's gate asks for at least 10000 ns"}
// GATE-NOT: mir.kernel

// OFF: builtin.module {

builtin.module {
  func.func @f(%x: tensor<4x32xf32>, %g: tensor<32xf32>, %v: tensor<32x32x!hir.packed<f32>>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<4x32xf32> {
    %n = mir.rms_norm %x, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    %a = mir.matmul %n, %v : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %b = mir.matmul %n, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %p = mir.binary mul %a, %b : tensor<4x32xf32>
    func.return %p : tensor<4x32xf32>
  }
}
