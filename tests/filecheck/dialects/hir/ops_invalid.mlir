// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Shared attributes
// CHECK: :[[# @LINE + 2]]:50: error: unknown weight format 'q9': expected f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k
func.func @f(%x: tensor<4x64xf32>) {
  %w = hir.load_weight @w : tensor<8x32x!hir.q<q9>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:55: error: unknown weight format 'zz': expected f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k
func.func @f(%x: tensor<4x64xf32>) {
  %w = hir.load_weight @w : tensor<8x32x!hir.packed<zz>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 1]]:64: error: dimension 'a': expected 0 <= low <= high, got a = 3 to 1
builtin.module attributes {rlx.dims = #hir.dim_table<a = 3 to 1>} {}

// -----

// CHECK: :[[# @LINE + 1]]:63: error: dimension 'a' uses 'b', which is not declared before it
builtin.module attributes {rlx.dims = #hir.dim_table<a = b + b>} {}

// -----

// CHECK: :[[# @LINE + 1]]:66: error: a dimension is declared twice
builtin.module attributes {rlx.dims = #hir.dim_table<a = 1, a = 2>} {}

// -----

// CHECK: :[[# @LINE + 1]]:77: error: dimension 'a': expected an upper bound below 2^63, got more by a = 9223372036854775808
builtin.module attributes {rlx.dims = #hir.dim_table<a = 9223372036854775808>} {}

// -----

// CHECK: :[[# @LINE + 1]]:79: error: dimension 'b': expected an upper bound below 2^63, got more by b = a * a
builtin.module attributes {rlx.dims = #hir.dim_table<a = 4294967296, b = a * a>} {}

// -----

// CHECK: :[[# @LINE + 1]]:67: error: expected one of +, *, -, ceildiv, min, max
builtin.module attributes {rlx.dims = #hir.dim_table<a = 1, b = a a>} {}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: tensor<?x4xf32> has a dynamic dimension without a name: add #hir.dims
func.func @f(%x: tensor<?x4xf32>) {
  %y = mir.unary exp %x : tensor<?x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: tensor<?x4xf32, #hir.dims<seq>>: expected 2 dimension names, one for each dimension, got 1
func.func @f(%x: tensor<?x4xf32, #hir.dims<seq>>) {
  %y = mir.unary exp %x : tensor<?x4xf32, #hir.dims<seq>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: tensor<?x4xf32, #hir.dims<_, seq>>: a name stands for each '?' and '_' for each number
func.func @f(%x: tensor<?x4xf32, #hir.dims<_, seq>>) {
  %y = mir.unary exp %x : tensor<?x4xf32, #hir.dims<_, seq>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: a dimension is negative or beyond 2^63 - 1 in tensor<9223372036854775808xf32>
func.func @f(%x: tensor<9223372036854775808xf32>) {
  %y = mir.unary exp %x : tensor<9223372036854775808xf32>
  func.return
}

// -----

// Declarations
// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected numbers for dimensions, got [n, 32] f32
hir.weight @w "w" : tensor<?x32xf32, #hir.dims<n, _>>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected rows of whole q4_1 blocks of 32, got [8, 33] q4_1
hir.weight @w "w" : tensor<8x33x!hir.q<q4_1>>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected elements of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, i8, got [8, 33] i32
hir.weight @w "w" : tensor<8x33xi32>

// -----

// CHECK: :[[# @LINE + 1]]:21: error: i32 should be of base attribute tensor
hir.weight @w "w" : i32

// -----

// CHECK: :[[# @LINE + 1]]:1: error: Redefinition of symbol "w"
builtin.module {
hir.weight @w "w" : tensor<8xf32>
hir.weight @w "v" : tensor<8xf32>
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected numbers for dimensions, got [n, 64] f32
hir.state @k keys head_dim 16 : tensor<?x64xf32, #hir.dims<n, _>>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected two dimensions, got [64] f32
hir.state @k keys head_dim 16 : tensor<64xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected elements of f32, f16, bf16, got [8, 64] i32
hir.state @k keys head_dim 16 : tensor<8x64xi32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected a width that is a multiple of head_dim 24, got [8, 64] f32
hir.state @k keys head_dim 24 : tensor<8x64xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected a width that is a multiple of head_dim 0, got [8, 64] f32
hir.state @k keys head_dim 0 : tensor<8x64xf32>

// -----

// CHECK: :[[# @LINE + 1]]:14: error: Expected `keys`, or `values`.
hir.state @k queries head_dim 16 : tensor<8x64xf32>

// -----

// Matrix products
// CHECK: :[[# @LINE + 2]]:3: error: linear: expected a weight whose last dimension is the input's 64, got [4, 64] f32 and [8, 32] f32
func.func @f(%x: tensor<4x64xf32>, %w: tensor<8x32xf32>) {
  %y = hir.linear %x, %w : tensor<4x64xf32>, tensor<8x32xf32> -> tensor<4x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.linear: expected the result [4, 8] f32, got [4, 64] f32
func.func @f(%x: tensor<4x64xf32>, %w: tensor<8x64xf32>) {
  %y = hir.linear %x, %w : tensor<4x64xf32>, tensor<8x64xf32> -> tensor<4x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: linear input: expected two dimensions, got [64] f32
func.func @f(%x: tensor<64xf32>, %w: tensor<8x64xf32>) {
  %y = hir.linear %x, %w : tensor<64xf32>, tensor<8x64xf32> -> tensor<8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: linear weight: expected two dimensions, got [64] f32
func.func @f(%x: tensor<4x64xf32>, %w: tensor<64xf32>) {
  %y = hir.linear %x, %w : tensor<4x64xf32>, tensor<64xf32> -> tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: linear input: expected elements of f32 or bf16, got [4, 64] i32
func.func @f(%x: tensor<4x64xi32>, %w: tensor<8x64xf32>) {
  %y = hir.linear %x, %w : tensor<4x64xi32>, tensor<8x64xf32> -> tensor<4x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: linear weight: expected rows of whole q4_0 blocks of 32, got [8, 48] q4_0
func.func @f(%x: tensor<4x48xf32>, %w: tensor<8x48x!hir.q<q4_0>>) {
  %y = hir.linear %x, %w : tensor<4x48xf32>, tensor<8x48x!hir.q<q4_0>> -> tensor<4x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.glu: expected up and gate of one shape, got [8, 64] f32 and [9, 64] f32
func.func @f(%x: tensor<4x64xf32>, %u: tensor<8x64xf32>, %g: tensor<9x64xf32>) {
  %y = hir.glu silu %x up %u gate %g down %u : tensor<4x64xf32>, tensor<8x64xf32>, tensor<9x64xf32>, tensor<8x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.glu: expected the result [4, 32] f32, got [4, 64] f32
func.func @f(%x: tensor<4x64xf32>, %u: tensor<8x64xf32>, %d: tensor<32x8xf32>) {
  %y = hir.glu silu %x up %u gate %u down %d : tensor<4x64xf32>, tensor<8x64xf32>, tensor<8x64xf32>, tensor<32x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: embedding: expected ids [rows] i32, got [4, 64] f32
func.func @f(%x: tensor<4x64xf32>, %t: tensor<9x64xf32>) {
  %y = hir.embedding %x, %t : tensor<4x64xf32>, tensor<9x64xf32> -> tensor<4x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.embedding: expected the result [4, 64] f32, got [4, 9] f32
func.func @f(%i: tensor<4xi32>, %t: tensor<9x64xf32>) {
  %y = hir.embedding %i, %t : tensor<4xi32>, tensor<9x64xf32> -> tensor<4x9xf32>
  func.return
}

// -----

// Norms and rotations
// CHECK: :[[# @LINE + 2]]:3: error: hir.rms_norm: expected a weight [64] for the input [4, 64] f32, got [32] f32
func.func @f(%x: tensor<4x64xf32>, %w: tensor<32xf32>) {
  %y = hir.rms_norm %x, %w eps 1.0e-05 : tensor<4x64xf32>, tensor<32xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.rope_table: expected two tables [positions, n_rot] with an even n_rot, got [8, 6] f32 and [8, 8] f32
func.func @f(%x: tensor<4x64xf32>) {
  %c, %s = hir.rope_table base 1.0e+05 : tensor<8x6xf32>, tensor<8x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.rope_table: expected two tables [positions, n_rot] with an even n_rot, got [8, 7] f32 and [8, 7] f32
func.func @f(%x: tensor<4x64xf32>) {
  %c, %s = hir.rope_table base 1.0e+05 : tensor<8x7xf32>, tensor<8x7xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.rope: expected a width that is a multiple of head_dim 24, got [4, 64] f32
func.func @f(%x: tensor<4x64xf32>, %c: tensor<8x8xf32>) {
  %y = hir.rope %x, %c, %c start "past" head_dim 24 : tensor<4x64xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.rope: expected at most head_dim 4 rotated features, got [8, 8] f32
func.func @f(%x: tensor<4x64xf32>, %c: tensor<8x8xf32>) {
  %y = hir.rope %x, %c, %c start "past" head_dim 4 : tensor<4x64xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  func.return
}

// -----

// State and attention
// CHECK: :[[# @LINE + 2]]:3: error: hir.append: expected rows of one width, got [4, 64] f32 and [8, 32] f32
func.func @f(%x: tensor<4x64xf32>) {
  %y = hir.append %x to @k start "past" : tensor<4x64xf32> -> tensor<8x32xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.attention: expected widths that are whole heads of 16, and query heads that are a multiple of the key heads, got [4, 64] f32 and [8, 48] f32
func.func @f(%x: tensor<4x64xf32>, %k: tensor<8x48xf32>) {
  %y = hir.attention %x, %k, %k head_dim 16 scale 0.25 : tensor<4x64xf32>, tensor<8x48xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.attention: expected widths that are whole heads of 24, and query heads that are a multiple of the key heads, got [4, 64] f32 and [8, 48] f32
func.func @f(%x: tensor<4x64xf32>, %k: tensor<8x48xf32>) {
  %y = hir.attention %x, %k, %k head_dim 24 scale 0.25 : tensor<4x64xf32>, tensor<8x48xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.attention: expected numbers for widths, got [4, 64] f32
func.func @f(%x: tensor<4x64xf32>, %k: tensor<8x?xf32, #hir.dims<_, n>>) {
  %y = hir.attention %x, %k, %k head_dim 16 scale 0.25 : tensor<4x64xf32>, tensor<8x?xf32, #hir.dims<_, n>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.append: expected elements of f32, got [4, 32] f16
func.func @f(%x: tensor<4x32xf16>) {
  %y = hir.append %x to @k start "past" : tensor<4x32xf16> -> tensor<8x32xf16>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.append: expected elements of f32, f16, bf16, got [8, 32] f64
func.func @f(%x: tensor<4x32xf32>) {
  %y = hir.append %x to @k start "past" : tensor<4x32xf32> -> tensor<8x32xf64>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.attention: expected elements of f32 or bf16, got [4, 64] f16
func.func @f(%x: tensor<4x64xf16>, %k: tensor<8x64xbf16>) {
  %y = hir.attention %x, %k, %k head_dim 16 scale 0.25 : tensor<4x64xf16>, tensor<8x64xbf16>
  func.return
}

// -----

// Rows, sampling
// CHECK: :[[# @LINE + 2]]:3: error: hir.last_rows: expected rows of one width, got [4, 64] f32 and [1, 32] f32
func.func @f(%x: tensor<4x64xf32>) {
  %y = hir.last_rows %x : tensor<4x64xf32> -> tensor<1x32xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.last_rows: expected at most 4 rows, got [5, 64] f32
func.func @f(%x: tensor<4x64xf32>) {
  %y = hir.last_rows %x : tensor<4x64xf32> -> tensor<5x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.sample: expected parameters [8] i32 or [4, 8] i32, got [4] i32
func.func @f(%x: tensor<4x64xf32>, %p: tensor<4xi32>) {
  %y = hir.sample %x, %p : tensor<4x64xf32>, tensor<4xi32> -> tensor<1xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.sample: expected the result [1] i32, got [2] i32
func.func @f(%x: tensor<4x64xf32>, %p: tensor<8xi32>) {
  %y = hir.sample %x, %p : tensor<4x64xf32>, tensor<8xi32> -> tensor<2xi32>
  func.return
}

// -----

// Repeated functions
// CHECK: :[[# @LINE + 2]]:3: error: hir.repeat: expected layers first to last with 0 <= first < last, got 3 to 3
func.func @f(%x: tensor<4x64xf32>) {
  %y = hir.repeat @layer(%x) layers 3 to 3 : (tensor<4x64xf32>) -> tensor<4x64xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.repeat: expected results of the types of the leading arguments ([4, 64] f32), got ([4] f32)
func.func @f(%x: tensor<4x64xf32>) {
  %y = hir.repeat @layer(%x) layers 0 to 3 : (tensor<4x64xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: hir.repeat: expected results of the types of the leading arguments ([4, 64] f32), got ([4, 64] f32, [4, 64] f32)
func.func @f(%x: tensor<4x64xf32>) {
  %y, %z = hir.repeat @layer(%x) layers 0 to 3 : (tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>)
  func.return
}
