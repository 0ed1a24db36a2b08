// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: :[[# @LINE + 2]]:3: error: mir.append: expected places [4, 2] i64, got [4, 2] i32
func.func @f(%x: tensor<4x64xf32>, %s: tensor<16x64xf32>, %p: tensor<4x2xi32>) {
  %y = mir.append %x to %s at %p : tensor<4x2xi32> keys head_dim 16 start "n" : tensor<4x64xf32>, tensor<16x64xf32> -> tensor<16x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.append: expected the result [16, 64] f32, got [8, 64] f32
func.func @f(%x: tensor<4x64xf32>, %s: tensor<16x64xf32>, %p: tensor<4x2xi64>) {
  %y = mir.append %x to %s at %p : tensor<4x2xi64> keys head_dim 16 start "n" : tensor<4x64xf32>, tensor<16x64xf32> -> tensor<8x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.attention: expected places [4, 2] i64, got [3, 2] i64
func.func @f(%x: tensor<4x64xf32>, %k: tensor<16x64xf32>, %p: tensor<3x2xi64>) {
  %y = mir.attention %x, %k, %k at %p : tensor<3x2xi64> head_dim 16 scale 0.25 : tensor<4x64xf32>, tensor<16x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sample: expected parameters [8] i32 or [4, 8] i32, got [3, 8] i32
func.func @f(%x: tensor<4x64xf32>, %p: tensor<3x8xi32>) {
  %y = mir.sample %x, %p : tensor<4x64xf32>, tensor<3x8xi32> -> tensor<3xi32>
  func.return
}
