// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Transforms
// CHECK: :[[# @LINE + 2]]:3: error: signal.fft: expected [..., 2n], n real parts and then n imaginary parts with n from 1, got [4, 7] f32
func.func @f(%x: tensor<4x7xf32>) {
  %y = signal.fft forward %x : tensor<4x7xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.fft: expected [..., 2n], n real parts and then n imaginary parts with n from 1, got [] f32
func.func @f(%x: tensor<f32>) {
  %y = signal.fft forward %x : tensor<f32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.fft: expected elements of f32, f64, got [8] i32
func.func @f(%x: tensor<8xi32>) {
  %y = signal.fft inverse %x : tensor<8xi32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:3: error: signal.fft: expected [..., 2n], n real parts and then n imaginary parts with n from 1, got [n] f32
builtin.module attributes {rlx.dims = #hir.dim_table<n = 2 to 8>} {
func.func @f(%x: tensor<?xf32, #hir.dims<n>>) {
  %y = signal.fft inverse %x : tensor<?xf32, #hir.dims<n>>
  func.return
}
}

// -----

// Peaks
// CHECK: :[[# @LINE + 2]]:3: error: signal.welch_peaks: expected spectra [b * segments, 2n], got [32] f32
func.func @f(%x: tensor<32xf32>) {
  %y = signal.welch_peaks %x k 2 segments 1 : tensor<32xf32> -> tensor<1x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.welch_peaks: expected k from 1 to 9, the bins of [6, 32] f32, got 10
func.func @f(%x: tensor<6x32xf32>) {
  %y = signal.welch_peaks %x k 10 segments 2 : tensor<6x32xf32> -> tensor<3x20xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.welch_peaks: expected a segment or more, got 0
func.func @f(%x: tensor<6x32xf32>) {
  %y = signal.welch_peaks %x k 2 segments 0 : tensor<6x32xf32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.welch_peaks: expected a multiple of 4 segments, got [6, 32] f32
func.func @f(%x: tensor<6x32xf32>) {
  %y = signal.welch_peaks %x k 2 segments 4 : tensor<6x32xf32> -> tensor<2x4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.welch_peaks: expected the result [3, 4] f32, got [3, 2] f32
func.func @f(%x: tensor<6x32xf32>) {
  %y = signal.welch_peaks %x k 2 segments 2 : tensor<6x32xf32> -> tensor<3x2xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.welch_peaks: expected elements of f32, got [6, 32] f64
func.func @f(%x: tensor<6x32xf64>) {
  %y = signal.welch_peaks %x k 2 segments 2 : tensor<6x32xf64> -> tensor<3x4xf64>
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:3: error: signal.welch_peaks: expected a dimension with a name for the rows / 2 rows of the result, got [3, 4] f32
builtin.module attributes {rlx.dims = #hir.dim_table<b = 1 to 4, two = 2, rows = b * two>} {
func.func @f(%x: tensor<?x32xf32, #hir.dims<rows, _>>) {
  %y = signal.welch_peaks %x k 2 segments 2 : tensor<?x32xf32, #hir.dims<rows, _>> -> tensor<3x4xf32>
  func.return
}
}

// -----

// Bands
// CHECK: :[[# @LINE + 2]]:3: error: signal.log_mel: expected a complex spectrum [..., 2n] with filters [mels, n / 2 + 1], or a power [..., bins] with filters [mels, bins], got [6, 32] f32 and [5, 10] f32
func.func @f(%x: tensor<6x32xf32>, %f: tensor<5x10xf32>) {
  %y = signal.log_mel %x, %f : tensor<6x32xf32>, tensor<5x10xf32> -> tensor<6x5xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.log_mel: expected the result [6, 5] f32, got [6, 9] f32
func.func @f(%x: tensor<6x32xf32>, %f: tensor<5x9xf32>) {
  %y = signal.log_mel %x, %f : tensor<6x32xf32>, tensor<5x9xf32> -> tensor<6x9xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: signal.log_mel: expected elements of f32, got [5, 9] f64
func.func @f(%x: tensor<6x32xf32>, %f: tensor<5x9xf64>) {
  %y = signal.log_mel %x, %f : tensor<6x32xf32>, tensor<5x9xf64> -> tensor<6x5xf32>
  func.return
}
