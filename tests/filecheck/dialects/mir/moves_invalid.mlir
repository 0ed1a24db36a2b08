// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Pads
// CHECK: :[[# @LINE + 2]]:3: error: mir.pad: expected three counts for each axis of [4, 6] f32, got [1], [0, 0] and [0, 0]
func.func @f(%x: tensor<4x6xf32>, %v: tensor<f32>) {
  %y = mir.pad %x, %v low [1] high [0, 0] between [0, 0] : tensor<4x6xf32>, tensor<f32> -> tensor<5x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.pad: expected counts from 0, got [-1, 0], [0, 0] and [0, 0]
func.func @f(%x: tensor<4x6xf32>, %v: tensor<f32>) {
  %y = mir.pad %x, %v low [-1, 0] high [0, 0] between [0, 0] : tensor<4x6xf32>, tensor<f32> -> tensor<3x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.pad: expected [4, 6] f32 with [1, 0] elements before, [0, 0] after and [1, 0] between, got [5, 6] f32
func.func @f(%x: tensor<4x6xf32>, %v: tensor<f32>) {
  %y = mir.pad %x, %v low [1, 0] high [0, 0] between [1, 0] : tensor<4x6xf32>, tensor<f32> -> tensor<5x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.pad: expected the result [] f32, got [1] f32
func.func @f(%x: tensor<4x6xf32>, %v: tensor<1xf32>) {
  %y = mir.pad %x, %v low [1, 0] high [0, 0] between [0, 0] : tensor<4x6xf32>, tensor<1xf32> -> tensor<5x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.pad: expected [4, 6] f32 with [1, 0] elements before, [0, 0] after and [0, 0] between, got [5, 6] f64
func.func @f(%x: tensor<4x6xf32>, %v: tensor<f32>) {
  %y = mir.pad %x, %v low [1, 0] high [0, 0] between [0, 0] : tensor<4x6xf32>, tensor<f32> -> tensor<5x6xf64>
  func.return
}

// -----

// A dimension with a name grows to another, which the table declares.
// CHECK: :[[# @LINE + 2]]:3: error: mir.pad: expected [n, 6] f32 with [1, 0] elements before
func.func @f(%x: tensor<?x6xf32, #hir.dims<n, _>>, %v: tensor<f32>) {
  %y = mir.pad %x, %v low [1, 0] high [0, 0] between [0, 0] : tensor<?x6xf32, #hir.dims<n, _>>, tensor<f32> -> tensor<5x6xf32>
  func.return
}

// -----

// Windows
// CHECK: :[[# @LINE + 2]]:3: error: mir.window: expected an axis that holds a window of 3 elements, 3 apart, every 1 elements, got axis 1 of [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.window %x axis 1 size 3 stride 1 step 3 : tensor<4x6xf32> -> tensor<4x1x3xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.window: expected an axis that holds a window of 3 elements, 1 apart, every 0 elements, got axis 1 of [4, 6] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.window %x axis 1 size 3 stride 0 step 1 : tensor<4x6xf32> -> tensor<4x1x3xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.window: expected an axis that holds a window of 2 elements, 1 apart, every 1 elements, got axis 0 of [n, 6] f32
func.func @f(%x: tensor<?x6xf32, #hir.dims<n, _>>) {
  %y = mir.window %x axis 0 size 2 stride 1 step 1 : tensor<?x6xf32, #hir.dims<n, _>> -> tensor<2x2x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.window: expected the result [4, 2, 3] f32, got [4, 4, 3] f32
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.window %x axis 1 size 3 stride 2 step 1 : tensor<4x6xf32> -> tensor<4x4x3xf32>
  func.return
}

// -----

// Reversals
// CHECK: :[[# @LINE + 2]]:3: error: mir.reverse: expected different axes from 0 to 1 of [4, 6] f32, got [0, 0]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reverse %x axes [0, 0] : tensor<4x6xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.reverse: expected different axes from 0 to 1 of [4, 6] f32, got [2]
func.func @f(%x: tensor<4x6xf32>) {
  %y = mir.reverse %x axes [2] : tensor<4x6xf32>
  func.return
}
