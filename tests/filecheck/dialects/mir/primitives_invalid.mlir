// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Kinds and elements
// CHECK: :[[# @LINE + 2]]:18: error: Expected `neg`, `abs`, `sign`, `not`, `floor`, `ceil`, `round`, `sqrt`, `rsqrt`, `recip`, `exp`, `log`, `sin`, `cos`, `tan`, `atan`, `tanh`, `erf`, `s
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.unary cube %x : tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:19: error: Expected `add`, `sub`, `mul`, `div`, `max`, `min`, `pow`, `mod`, `atan2`, `and`, `or`, `xor`, `shl`, or `shr`.
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.binary cube %x, %x : tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:20: error: Expected `eq`, `ne`, `lt`, `le`, `gt`, or `ge`.
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.compare like %x, %x : tensor<4x6xf32> -> tensor<4x6xi1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:19: error: Expected `sum`, `mean`, `max`, `min`, or `prod`.
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reduce median %x axes [0] : tensor<4x6xf32> -> tensor<6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] f16; cast it to f32 first
func.func @f(%x: tensor<4xf16>) {
  %y = mir.unary exp %x : tensor<4xf16>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: exp is not defined for [4] i32: expected one of neg, abs, sign, not
func.func @f(%x: tensor<4xi32>) {
  %y = mir.unary exp %x : tensor<4xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: neg is not defined for [4] i1: expected one of not
func.func @f(%x: tensor<4xi1>) {
  %y = mir.unary neg %x : tensor<4xi1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: not is not defined for [4, 6] f32: expected one of neg, abs, sign, floor, ceil, round, sqrt, rsqrt, recip, exp, log, sin, cos, tan, atan, t
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.unary not %x : tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] index
func.func @f(%x: tensor<4xindex>) {
  %y = mir.unary neg %x : tensor<4xindex>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] i7
func.func @f(%x: tensor<4xi7>) {
  %y = mir.unary neg %x : tensor<4xi7>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] ui16
func.func @f(%x: tensor<4xui16>) {
  %y = mir.unary neg %x : tensor<4xui16>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.unary: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4, 32] q8_0
func.func @f(%x: tensor<4x32x!hir.q<q8_0>>) {
  %y = mir.unary neg %x : tensor<4x32x!hir.q<q8_0>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:39: error: tensor<*xf32> should be of base attribute tensor
func.func @f(%x: tensor<*xf32>) {
  %y = mir.unary neg %x : tensor<*xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:27: error: f32 should be of base attribute tensor
func.func @f(%x: f32) {
  %y = mir.unary neg %x : f32
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.binary: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] bf16; cast it to f32 first
func.func @f(%x: tensor<4xbf16>) {
  %y = mir.binary add %x, %x : tensor<4xbf16>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.binary: pow is not defined for [4] i32: expected one of add, sub, mul, div, max, min, mod, and, or, xor, shl, shr
func.func @f(%x: tensor<4xi32>) {
  %y = mir.binary pow %x, %x : tensor<4xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.binary: and is not defined for [4, 6] f32: expected one of add, sub, mul, div, max, min, pow, mod, atan2
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.binary and %x, %x : tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.binary: add is not defined for [4] i1: expected one of and, or, xor
func.func @f(%x: tensor<4xi1>) {
  %y = mir.binary add %x, %x : tensor<4xi1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: operand 'rhs' at position 1 does not verify:
func.func @f(%x: tensor<4xf32>, %z: tensor<1xf32>) {
  %y = "mir.binary"(%x, %z) <{kind = #mir<binary_kind add>}> : (tensor<4xf32>, tensor<1xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.compare: expected the result [4, 6] i1, got [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.compare lt %x, %x : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.compare: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] f16; cast it to f32 first
func.func @f(%x: tensor<4xf16>) {
  %y = mir.compare lt %x, %x : tensor<4xf16> -> tensor<4xi1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.select: expected a condition [4, 6] i1, got [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.select %x, %x, %x : tensor<4x6xf32>, tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.select: expected a condition [4, 6] i1, got [6] i1
func.func @f(%x: tensor<4x6xf32>, %c: tensor<6xi1>) {
  %y = mir.select %c, %x, %x : tensor<6xi1>, tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.cast: expected the result [4, 6] i32, got [6, 4] i32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.cast %x : tensor<4x6xf32> -> tensor<6x4xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.cast: expected elements of f32, f64, f16, bf16, i8, i16, i32, i64, ui8, ui32, i1, got [4, 6] index
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.cast %x : tensor<4x6xf32> -> tensor<4x6xindex>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.cast: expected elements of f32, f64, f16, bf16, i8, i16, i32, i64, ui8, ui32, i1, got [4, 6] packed f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.cast %x : tensor<4x6xf32> -> tensor<4x6x!hir.packed<f32>>
  func.return
}

// -----

// Constants
// CHECK: :[[# @LINE + 2]]:21: error: expected dense<...> : tensor<...>
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant 1 : i32
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:21: error: expected dense<...> : tensor<...>
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant [1] : tensor<1xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:27: error: Expected integer value
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant dense<1.0> : tensor<2xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:3: error: Shape mismatch in dense literal. Expected [3] shape from the type, but got [2] shape.
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant dense<[1.0, 2.0]> : tensor<3xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:3: error: Dense literal attribute should have a static shape.
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant dense<1.0> : tensor<?xf32, #hir.dims<n>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.constant: expected elements of f32, f64, f16, bf16, i8, i16, i32, i64, ui8, ui32, i1, got [2] index
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant dense<1> : tensor<2xindex>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.constant: expected at most 65536 bytes, got 65537: declare a hir.weight
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.constant dense<0> : tensor<65537xi8>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.constant: expected the result tensor<2xi32>, got tensor<3xi32>
func.func @f(%x: tensor<4x6xf32>) {
  %y = "mir.constant"() <{value = dense<1> : tensor<2xi32>}> : () -> tensor<3xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.iota: expected different axes from 0 to 0 of [4] i32, got [1]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.iota axis 1 : tensor<4xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.iota: expected no axes of [] i32, got [0]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.iota axis 0 : tensor<i32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.iota: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, got [4] i1
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.iota axis 0 : tensor<4xi1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.iota: expected different axes from 0 to 0 of [4] i32, got [-1]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.iota axis -1 : tensor<4xi32>
  func.return
}

// -----

// Reductions and norms
// CHECK: :[[# @LINE + 2]]:3: error: mir.reduce: expected different axes from 0 to 1 of [4, 6] f32, got [2]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reduce sum %x axes [2] : tensor<4x6xf32> -> tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reduce: expected different axes from 0 to 1 of [4, 6] f32, got [0, 0]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reduce sum %x axes [0, 0] : tensor<4x6xf32> -> tensor<6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reduce: expected the result [6] f32, got [4] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reduce sum %x axes [0] : tensor<4x6xf32> -> tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reduce: mean is not defined for i32
func.func @f(%x: tensor<4xi32>) {
  %y = mir.reduce mean %x axes [0] : tensor<4xi32> -> tensor<i32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reduce: sum is not defined for i1
func.func @f(%x: tensor<4xi1>) {
  %y = mir.reduce sum %x axes [0] : tensor<4xi1> -> tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reduce: expected elements of f32, f64, i8, i16, i32, i64, ui8, ui32, i1, got [4] f16; cast it to f32 first
func.func @f(%x: tensor<4xf16>) {
  %y = mir.reduce sum %x axes [0] : tensor<4xf16> -> tensor<f16>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.softmax: expected elements of f32, f64, got [4] i32
func.func @f(%x: tensor<4xi32>) {
  %y = mir.softmax %x : tensor<4xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.softmax: expected a dimension or more, got [] f32
func.func @f(%x: tensor<f32>) {
  %y = mir.softmax %x : tensor<f32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.layer_norm: expected [6] f32 for [4, 6] f32, got [4] f32
func.func @f(%x: tensor<4x6xf32>, %w: tensor<4xf32>) {
  %y = mir.layer_norm %x, %w, %w eps 1.0e-05 : tensor<4x6xf32>, tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.layer_norm: expected [6] f32 for [4, 6] f32, got [6] f64
func.func @f(%x: tensor<4x6xf32>, %w: tensor<6xf64>) {
  %y = mir.layer_norm %x, %w, %w eps 1.0e-05 : tensor<4x6xf32>, tensor<6xf64>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.layer_norm: expected a finite eps, got inf
func.func @f(%x: tensor<4x6xf32>, %w: tensor<6xf32>) {
  %y = mir.layer_norm %x, %w, %w eps 1.0e999 : tensor<4x6xf32>, tensor<6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.layer_norm: expected a dimension or more, got [] f32
func.func @f(%x: tensor<f32>) {
  %y = mir.layer_norm %x, %x, %x eps 1.0e-05 : tensor<f32>, tensor<f32>
  func.return
}

// -----

// Products
// CHECK: :[[# @LINE + 2]]:3: error: mir.dot: expected [batch..., m, k] and [batch..., k, n] of one element type, got [4, 6] f32 and [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.dot %x, %x : tensor<4x6xf32>, tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.dot: expected the result [4, 4] f32, got [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.dot %x, %x rhs_t : tensor<4x6xf32>, tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.dot: expected matrices, got [4, 6] f32 and [6] f32
func.func @f(%x: tensor<4x6xf32>, %v: tensor<6xf32>) {
  %y = mir.dot %x, %v : tensor<4x6xf32>, tensor<6xf32> -> tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.dot: expected [batch..., m, k] and [batch..., k, n] of one element type, got [4, 6] f32 and [4, 6] f64
func.func @f(%x: tensor<4x6xf32>, %v: tensor<4x6xf64>) {
  %y = mir.dot %x, %v rhs_t : tensor<4x6xf32>, tensor<4x6xf64> -> tensor<4x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.dot: expected [batch..., m, k] and [batch..., k, n] of one element type, got [2, 4, 6] f32 and [3, 4, 6] f32
func.func @f(%x: tensor<2x4x6xf32>, %v: tensor<3x4x6xf32>) {
  %y = mir.dot %x, %v rhs_t : tensor<2x4x6xf32>, tensor<3x4x6xf32> -> tensor<2x4x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.dot: expected elements of f32, f64, i8, ui8, i32, i64, got [4, 6] i16
func.func @f(%x: tensor<4x6xi16>) {
  %y = mir.dot %x, %x rhs_t : tensor<4x6xi16>, tensor<4x6xi16> -> tensor<4x4xi16>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sdpa: expected a query [batch..., heads, m, d], keys [batch..., kv_heads, n, d] and values [batch..., kv_heads, n, e] with heads a multiple of kv_heads, got [3, 5, 8] f32, [2, 9, 8] f32 and [2, 9, 8] f32
func.func @f(%q: tensor<3x5x8xf32>, %k: tensor<2x9x8xf32>) {
  %y = mir.sdpa %q, %k, %k scale 0.5 : tensor<3x5x8xf32>, tensor<2x9x8xf32>, tensor<2x9x8xf32> -> tensor<3x5x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sdpa: expected a query [batch..., heads, m, d], keys [batch..., kv_heads, n, d] and values [batch..., kv_heads, n, e] with heads a multiple of kv_heads, got [2, 5, 4] f32, [2, 9, 8] f32 and [2, 9, 8] f32
func.func @f(%q: tensor<2x5x4xf32>, %k: tensor<2x9x8xf32>) {
  %y = mir.sdpa %q, %k, %k scale 0.5 : tensor<2x5x4xf32>, tensor<2x9x8xf32>, tensor<2x9x8xf32> -> tensor<2x5x8xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sdpa: expected a query [batch..., heads, m, d], keys [batch..., kv_heads, n, d] and values [batch..., kv_heads, n, e] with heads a multiple of kv_heads, got [5, 4] f32, [5, 4] f32 and [5, 4] f32
func.func @f(%q: tensor<5x4xf32>) {
  %y = mir.sdpa %q, %q, %q scale 0.5 : tensor<5x4xf32>, tensor<5x4xf32>, tensor<5x4xf32> -> tensor<5x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sdpa: expected the result [2, 5, 4] f32, got [5, 2, 4] f32
func.func @f(%q: tensor<2x5x4xf32>) {
  %y = mir.sdpa %q, %q, %q scale 0.5 : tensor<2x5x4xf32>, tensor<2x5x4xf32>, tensor<2x5x4xf32> -> tensor<5x2x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sdpa: expected a mask [5, 5] f32, got [2, 5, 5] f32
func.func @f(%q: tensor<2x5x4xf32>, %m: tensor<2x5x5xf32>) {
  %y = mir.sdpa %q, %q, %q mask %m : tensor<2x5x5xf32> scale 0.5 : tensor<2x5x4xf32>, tensor<2x5x4xf32>, tensor<2x5x4xf32> -> tensor<2x5x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.sdpa: expected a finite scale, got inf
func.func @f(%q: tensor<2x5x4xf32>) {
  %y = mir.sdpa %q, %q, %q scale 1.0e999 : tensor<2x5x4xf32>, tensor<2x5x4xf32>, tensor<2x5x4xf32> -> tensor<2x5x4xf32>
  func.return
}

// -----

// Moves
// CHECK: :[[# @LINE + 2]]:3: error: mir.reshape: expected as many elements of the same type, got [4, 6] f32 and [5, 5] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reshape %x : tensor<4x6xf32> -> tensor<5x5xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reshape: expected as many elements of the same type, got [4, 6] f32 and [24] i32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reshape %x : tensor<4x6xf32> -> tensor<24xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reshape: expected elements of f32, f64, f16, bf16, i8, i16, i32, i64, ui8, ui32, i1, got [4, 32] q8_0
func.func @f(%x: tensor<4x32x!hir.q<q8_0>>) {
  %y = mir.reshape %x : tensor<4x32x!hir.q<q8_0>> -> tensor<128x!hir.q<q8_0>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.broadcast: expected dimensions that are those of the result or 1, aligned at the last, got [4, 6] f32 and [8, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.broadcast %x : tensor<4x6xf32> -> tensor<8x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.broadcast: expected dimensions that are those of the result or 1, aligned at the last, got [4, 6] f32 and [6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.broadcast %x : tensor<4x6xf32> -> tensor<6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.broadcast: expected dimensions that are those of the result or 1, aligned at the last, got [4, 6] f32 and [4, 6, 2] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.broadcast %x : tensor<4x6xf32> -> tensor<4x6x2xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.broadcast: expected dimensions that are those of the result or 1, aligned at the last, got [4, 6] f32 and [2, 4, 6] f64
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.broadcast %x : tensor<4x6xf32> -> tensor<2x4x6xf64>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.transpose: expected an order of all 2 axes of [4, 6] f32, got [0]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.transpose %x [0] : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.transpose: expected different axes from 0 to 1 of [4, 6] f32, got [0, 0]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.transpose %x [0, 0] : tensor<4x6xf32> -> tensor<4x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.transpose: expected different axes from 0 to 1 of [4, 6] f32, got [1, 2]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.transpose %x [1, 2] : tensor<4x6xf32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.transpose: expected the result [6, 4] f32, got [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.transpose %x [1, 0] : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: elements 3, 3 + 1, ... of a dimension 6 can't be 4 elements: a dimension with a name is taken whole
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.slice %x starts [0, 3] steps [1, 1] : tensor<4x6xf32> -> tensor<4x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: elements 1, 1 + 3, ... of a dimension 6 can't be 3 elements: a dimension with a name is taken whole
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.slice %x starts [0, 1] steps [1, 3] : tensor<4x6xf32> -> tensor<4x3xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: elements -1, -1 + 1, ... of a dimension 4 can't be 4 elements: a dimension with a name is taken whole
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.slice %x starts [-1, 0] steps [1, 1] : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: elements 0, 0 + 0, ... of a dimension 4 can't be 4 elements: a dimension with a name is taken whole
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.slice %x starts [0, 0] steps [0, 1] : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: expected a start and a step for each axis of [4, 6] f32, got [0] and [1] for [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.slice %x starts [0] steps [1] : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: expected the elements of [4, 6] f32, got [4, 6] i32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.slice %x starts [0, 0] steps [1, 1] : tensor<4x6xf32> -> tensor<4x6xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.slice: elements 0, 0 + 2, ... of a dimension n can't be n elements: a dimension with a name is taken whole
func.func @f(%x: tensor<?x6xf32, #hir.dims<n, _>>) {
  %y = mir.slice %x starts [0, 0] steps [2, 1] : tensor<?x6xf32, #hir.dims<n, _>> -> tensor<?x6xf32, #hir.dims<n, _>>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.concat: expected a part or more, got none
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.concat axis 0 () : () -> tensor<6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.concat: expected different axes from 0 to 1 of [4, 6] f32, got [2]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.concat axis 2 (%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.concat: expected parts that differ along axis 0 only and sum up to the result [9, 6] f32, got [4, 6] f32, [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.concat axis 0 (%x, %x) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<9x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.concat: expected parts that differ along axis 0 only and sum up to the result [8, 6] f32, got [4, 6] f32, [4, 5] f32
func.func @f(%x: tensor<4x6xf32>, %z: tensor<4x5xf32>) {
  %y = mir.concat axis 0 (%x, %z) : (tensor<4x6xf32>, tensor<4x5xf32>) -> tensor<8x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.concat: expected parts that differ along axis 0 only and sum up to the result [8, 6] f32, got [4, 6] f32, [4, 6] i32
func.func @f(%x: tensor<4x6xf32>, %z: tensor<4x6xi32>) {
  %y = mir.concat axis 0 (%x, %z) : (tensor<4x6xf32>, tensor<4x6xi32>) -> tensor<8x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.gather: expected different axes from 0 to 1 of [4, 6] f32, got [2]
func.func @f(%x: tensor<4x6xf32>, %i: tensor<3xi32>) {
  %y = mir.gather %x, %i axis 2 : tensor<4x6xf32>, tensor<3xi32> -> tensor<3x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.gather indices: expected elements of i32, i64, got [3] f32
func.func @f(%x: tensor<4x6xf32>, %i: tensor<3xf32>) {
  %y = mir.gather %x, %i axis 0 : tensor<4x6xf32>, tensor<3xf32> -> tensor<3x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.gather: expected the result [4, 3] f32, got [3, 6] f32
func.func @f(%x: tensor<4x6xf32>, %i: tensor<3xi32>) {
  %y = mir.gather %x, %i axis 1 : tensor<4x6xf32>, tensor<3xi32> -> tensor<3x6xf32>
  func.return
}

// -----

// Names of dimensions, which the table knows
// CHECK: :[[# @LINE + 4]]:5: error: mir.reshape: expected a result that has as many elements as its input at every size, got [n, m] f32, [both, 2] f32
builtin.module attributes {rlx.dims = #hir.dim_table<n = 1 to 4, m = 1 to 4, both = n * m>} {
  func.func @f(%x: tensor<?x?xf32, #hir.dims<n, m>>) {
    %y = mir.reshape %x : tensor<?x?xf32, #hir.dims<n, m>> -> tensor<?xf32, #hir.dims<both>>
    %z = mir.reshape %x : tensor<?x?xf32, #hir.dims<n, m>> -> tensor<?x2xf32, #hir.dims<both, _>>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: mir.concat: expected a result that is as long as its parts together at every size, got [n] f32, [n] f32, [sum] f32
builtin.module attributes {rlx.dims = #hir.dim_table<n = 1 to 4, m = 1 to 4, sum = n + m>} {
  func.func @f(%x: tensor<?xf32, #hir.dims<n>>, %z: tensor<?xf32, #hir.dims<m>>) {
    %y = mir.concat axis 0 (%x, %z) : (tensor<?xf32, #hir.dims<n>>, tensor<?xf32, #hir.dims<m>>) -> tensor<?xf32, #hir.dims<sum>>
    %w = mir.concat axis 0 (%x, %x) : (tensor<?xf32, #hir.dims<n>>, tensor<?xf32, #hir.dims<n>>) -> tensor<?xf32, #hir.dims<sum>>
    func.return
  }
}
