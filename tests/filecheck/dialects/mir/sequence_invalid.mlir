// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: :[[# @LINE + 2]]:3: error: mir.gated_delta_net: expected queries and keys [batch..., rows, key_heads, n], values [batch..., rows, heads, e] and gates [batch..., rows, heads], with numbers for all but batch and rows and heads a multiple of key_heads, got [5, 2, 8] f32, [5, 3, 6] f32 and [5, 3] f32
func.func @f(%q: tensor<5x2x8xf32>, %v: tensor<5x3x6xf32>, %g: tensor<5x3xf32>) {
  %o, %s = mir.gated_delta_net %q, %q, %v, %g, %g : tensor<5x2x8xf32>, tensor<5x3x6xf32>, tensor<5x3xf32> -> tensor<3x8x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.gated_delta_net: expected the result [4, 8, 6] f32, got [4, 6, 8] f32
func.func @f(%q: tensor<5x2x8xf32>, %v: tensor<5x4x6xf32>, %g: tensor<5x4xf32>) {
  %o, %s = mir.gated_delta_net %q, %q, %v, %g, %g : tensor<5x2x8xf32>, tensor<5x4x6xf32>, tensor<5x4xf32> -> tensor<4x6x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.gated_delta_net: expected a state [4, 8, 6] f32, got [8, 6] f32
func.func @f(%q: tensor<5x2x8xf32>, %v: tensor<5x4x6xf32>, %g: tensor<5x4xf32>, %s: tensor<8x6xf32>) {
  %o, %t = mir.gated_delta_net %q, %q, %v, %g, %g state %s : tensor<8x6xf32> : tensor<5x2x8xf32>, tensor<5x4x6xf32>, tensor<5x4xf32> -> tensor<4x8x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.gated_delta_net: expected elements of f32, got [5, 2, 8] f64
func.func @f(%q: tensor<5x2x8xf64>, %v: tensor<5x4x6xf32>, %g: tensor<5x4xf32>) {
  %o, %t = mir.gated_delta_net %q, %q, %v, %g, %g : tensor<5x2x8xf64>, tensor<5x4x6xf32>, tensor<5x4xf32> -> tensor<4x8x6xf32>
  func.return
}
