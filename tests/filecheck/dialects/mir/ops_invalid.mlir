// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Weights
// CHECK: :[[# @LINE + 2]]:3: error: mir.pack: expected the result [8, 64] packed q4_1, got [8, 64] packed q4_0
func.func @f(%w: tensor<8x64x!hir.q<q4_1>>) {
  %p = mir.pack %w : tensor<8x64x!hir.q<q4_1>> -> tensor<8x64x!hir.packed<q4_0>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: unknown weight format 'i32': expected f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k
func.func @f(%w: tensor<8x64xi32>) {
  %p = mir.pack %w : tensor<8x64xi32> -> tensor<8x64x!hir.packed<f32>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: linear: expected a weight whose last dimension is the input's 32, got [4, 32] f32 and [8, 64] packed f32
func.func @f(%x: tensor<4x32xf32>, %w: tensor<8x64x!hir.packed<f32>>) {
  %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<8x64x!hir.packed<f32>> -> tensor<4x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.matmul: expected a packed weight, got [8, 64] f32: mir.pack it
func.func @f(%x: tensor<4x64xf32>, %w: tensor<8x64xf32>) {
  %y = mir.matmul %x, %w : tensor<4x64xf32>, tensor<8x64xf32> -> tensor<4x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.matmul: expected the result [4, 8] f32, got [4, 64] f32
func.func @f(%x: tensor<4x64xf32>, %w: tensor<8x64x!hir.packed<f32>>) {
  %y = mir.matmul %x, %w : tensor<4x64xf32>, tensor<8x64x!hir.packed<f32>> -> tensor<4x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: embedding: expected ids [rows] i32, got [4] i64
func.func @f(%i: tensor<4xi64>, %w: tensor<8x64x!hir.packed<f32>>) {
  %y = mir.embedding %i, %w : tensor<4xi64>, tensor<8x64x!hir.packed<f32>> -> tensor<4x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.rms_norm: expected a weight [64] for the input [4, 64] f32, got [32] packed f32
func.func @f(%x: tensor<4x64xf32>, %w: tensor<32x!hir.packed<f32>>) {
  %y = mir.rms_norm %x, %w eps 1.0e-05 : tensor<4x64xf32>, tensor<32x!hir.packed<f32>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.rms_norm: expected a weight of f32, got [64] packed q8_0
func.func @f(%x: tensor<4x64xf32>, %w: tensor<64x!hir.packed<q8_0>>) {
  %y = mir.rms_norm %x, %w eps 1.0e-05 : tensor<4x64xf32>, tensor<64x!hir.packed<q8_0>>
  func.return
}

// -----

// State
// CHECK: :[[# @LINE + 2]]:3: error: mir.append: expected rows of one width, got [4, 64] f32 and [16, 32] f32
func.func @f(%x: tensor<4x64xf32>, %s: tensor<16x32xf32>) {
  %y = mir.append %x to %s keys head_dim 16 start "past" : tensor<4x64xf32>, tensor<16x32xf32> -> tensor<16x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.append: expected rows of one width, got [4, 64] f32 and [16, 32] f32
func.func @f(%x: tensor<4x64xf32>, %s: tensor<16x64xf32>) {
  %y = mir.append %x to %s keys head_dim 16 start "past" : tensor<4x64xf32>, tensor<16x64xf32> -> tensor<16x32xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.append: expected a width that is a multiple of head_dim 24, got [16, 64] f32
func.func @f(%x: tensor<4x64xf32>, %s: tensor<16x64xf32>) {
  %y = mir.append %x to %s keys head_dim 24 start "past" : tensor<4x64xf32>, tensor<16x64xf32> -> tensor<16x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.append: expected a result of the state's elements, got [16, 64] bf16 and [16, 64] f32
func.func @f(%x: tensor<4x64xf32>, %s: tensor<16x64xbf16>) {
  %y = mir.append %x to %s keys head_dim 16 start "past" : tensor<4x64xf32>, tensor<16x64xbf16> -> tensor<16x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.first_rows: expected rows of one width, got [16, 64] f32 and [16, 32] f32
func.func @f(%s: tensor<16x64xf32>) {
  %y = mir.first_rows %s : tensor<16x64xf32> -> tensor<16x32xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.first_rows: expected at most 16 rows, got [17, 64] f32
func.func @f(%s: tensor<16x64xf32>) {
  %y = mir.first_rows %s : tensor<16x64xf32> -> tensor<17x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.attention: expected widths that are whole heads of 16, and query heads that are a multiple of the key heads, got [4, 64] f32 and [8, 48] f32
func.func @f(%x: tensor<4x64xf32>, %k: tensor<8x48xf32>) {
  %y = mir.attention %x, %k, %k head_dim 16 scale 0.25 : tensor<4x64xf32>, tensor<8x48xf32>
  func.return
}

// -----

// Operations that HIR has too
// CHECK: :[[# @LINE + 2]]:3: error: mir.rope_table: expected two tables [positions, n_rot] with an even n_rot, got [8, 7] f32 and [8, 7] f32
func.func @f(%x: tensor<4x64xf32>) {
  %c, %s = mir.rope_table base 1.0e+05 : tensor<8x7xf32>, tensor<8x7xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.rope: expected at most head_dim 4 rotated features, got [8, 8] f32
func.func @f(%x: tensor<4x64xf32>, %c: tensor<8x8xf32>) {
  %y = mir.rope %x, %c, %c start "past" head_dim 4 : tensor<4x64xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.last_rows: expected at most 4 rows, got [5, 64] f32
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.last_rows %x : tensor<4x64xf32> -> tensor<5x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sample: expected parameters [8] i32 or [4, 8] i32, got [8] f32
func.func @f(%x: tensor<4x64xf32>, %p: tensor<8xf32>) {
  %y = mir.sample %x, %p : tensor<4x64xf32>, tensor<8xf32> -> tensor<1xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.repeat: expected layers first to last with 0 <= first < last, got 5 to 3
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.repeat @layer(%x) layers 5 to 3 : (tensor<4x64xf32>) -> tensor<4x64xf32>
  func.return
}

// -----

// Kernels
// CHECK: :[[# @LINE + 3]]:5: error: mir.kernel: expected a body that ends in a terminator, got mir.unary
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.kernel -> (tensor<4x64xf32>) {
    %z = mir.unary exp %x : tensor<4x64xf32>
  }
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:5: error: 'func.return' expects parent op 'func.func'
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.kernel -> (tensor<4x64xf32>) {
    func.return
  }
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.kernel: expected the yielded types (), got ([4, 64] f32)
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.kernel -> (tensor<4x64xf32>) {
    mir.yield
  }
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.kernel: expected the yielded types ([4, 64] f32), got ([4] f32)
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.kernel -> (tensor<4xf32>) {
    mir.yield %x : tensor<4x64xf32>
  }
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.kernel: expected a body without arguments, which uses outer values directly
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.kernel -> (tensor<4x64xf32>) {
  ^bb0(%a: tensor<4x64xf32>):
    mir.yield %a : tensor<4x64xf32>
  }
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:64: error: Expected `prologue`, `steady_state`, or `epilogue`.
func.func @f(%x: tensor<4x64xf32>) {
  %y = mir.unary exp %x : tensor<4x64xf32> {phase = #mir<phase later>}
  func.return
}
