// RUN: rlx-opt %s -p fuse-prologue | filecheck %s
// RUN: rlx-opt %s -p fuse-prologue | rlx-opt -p fuse-prologue | filecheck %s
// RUN: rlx-opt %s -p 'fuse-prologue{report=true}' | filecheck %s --check-prefix=REPORT

builtin.module {
  // Narrow numbers with a scale for each row of memory.
  func.func private @scaled(%x: tensor<50x96xf32>, %q: tensor<200x96xi8>, %s: tensor<200x1xf32>) -> tensor<50x200xf32> {
    %f = mir.cast %q : tensor<200x96xi8> -> tensor<200x96xf32>
    %t = mir.broadcast %s : tensor<200x1xf32> -> tensor<200x96xf32>
    %w = mir.binary mul %f, %t : tensor<200x96xf32>
    %y = mir.dot %x, %w rhs_t : tensor<50x96xf32>, tensor<200x96xf32> -> tensor<50x200xf32>
    func.return %y : tensor<50x200xf32>
  }
  // CHECK-LABEL: func.func private @scaled(
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<50x200xf32>) {
  // CHECK-NEXT:     %f = mir.cast %q : tensor<200x96xi8> -> tensor<200x96xf32>
  // CHECK-NEXT:     %t = mir.broadcast %s : tensor<200x1xf32> -> tensor<200x96xf32>
  // CHECK-NEXT:     %w = mir.binary mul %f, %t : tensor<200x96xf32>
  // CHECK-NEXT:     %y_1 = mir.dot %x, %w rhs_t : tensor<50x96xf32>, tensor<200x96xf32> -> tensor<50x200xf32>
  // CHECK-NEXT:     mir.yield %y_1 : tensor<50x200xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %y

  // Windows overlap: their elements are more than those of what they are of.
  func.func private @windows(%x: tensor<1x8x30xf32>, %w: tensor<4x24xf32>) -> tensor<4x28xf32> {
    %0 = mir.window %x axis 2 size 3 stride 1 step 1 : tensor<1x8x30xf32> -> tensor<1x8x28x3xf32>
    %1 = mir.transpose %0 [0, 1, 3, 2] : tensor<1x8x28x3xf32> -> tensor<1x8x3x28xf32>
    %2 = mir.reshape %1 : tensor<1x8x3x28xf32> -> tensor<24x28xf32>
    %y = mir.dot %w, %2 : tensor<4x24xf32>, tensor<24x28xf32> -> tensor<4x28xf32>
    func.return %y : tensor<4x28xf32>
  }
  // CHECK-LABEL: func.func private @windows(
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<4x28xf32>) {
  // CHECK-NEXT:     mir.window
  // CHECK-NEXT:     mir.transpose
  // CHECK-NEXT:     mir.reshape
  // CHECK-NEXT:     mir.dot

  // A transpose that leaves rows of memory as they are joins, another one does not.
  func.func private @turned(%x: tensor<8x6x4xi8>, %w: tensor<8x4x9xf32>) -> tensor<6x8x9xf32> {
    %0 = mir.transpose %x [1, 0, 2] : tensor<8x6x4xi8> -> tensor<6x8x4xi8>
    %1 = mir.cast %0 : tensor<6x8x4xi8> -> tensor<6x8x4xf32>
    %2 = mir.reshape %w : tensor<8x4x9xf32> -> tensor<8x36xf32>
    %3 = mir.slice %2 starts [0, 0] steps [1, 1] : tensor<8x36xf32> -> tensor<4x9xf32>
    %4 = mir.broadcast %3 : tensor<4x9xf32> -> tensor<6x4x9xf32>
    %y = mir.dot %1, %4 : tensor<6x8x4xf32>, tensor<6x4x9xf32> -> tensor<6x8x9xf32>
    func.return %y : tensor<6x8x9xf32>
  }
  // CHECK-LABEL: func.func private @turned(
  // CHECK:        mir.kernel
  // CHECK:          mir.transpose
  // CHECK:          mir.cast

  func.func private @across(%x: tensor<40x60xi8>, %w: tensor<40x9xf32>) -> tensor<60x9xf32> {
    %0 = mir.transpose %x [1, 0] : tensor<40x60xi8> -> tensor<60x40xi8>
    %1 = mir.cast %0 : tensor<60x40xi8> -> tensor<60x40xf32>
    %y = mir.dot %1, %w : tensor<60x40xf32>, tensor<40x9xf32> -> tensor<60x9xf32>
    func.return %y : tensor<60x9xf32>
  }
  // CHECK-LABEL: func.func private @across(
  // CHECK-NEXT:   mir.transpose
  // CHECK-NEXT:   mir.kernel
  // CHECK-NEXT:     mir.cast
  // CHECK-NEXT:     mir.dot

  // What others use, or what costs much, is not computed again.
  func.func private @apart(%x: tensor<64x64xf32>, %q: tensor<64x64xi8>, %v: tensor<64x1xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
    %f = mir.cast %q : tensor<64x64xi8> -> tensor<64x64xf32>
    %y = mir.dot %x, %f : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    %e = mir.unary exp %v : tensor<64x1xf32>
    %b = mir.broadcast %v : tensor<64x1xf32> -> tensor<64x64xf32>
    %t = mir.unary tanh %b : tensor<64x64xf32>
    %z = mir.dot %x, %t : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    func.return %y, %z, %f : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
  // CHECK-LABEL: func.func private @apart(
  // CHECK-NOT:     mir.kernel
  // CHECK:         func.return

  // REPORT: rule = "fuse-prologue", function = "scaled", op = "dot %y", kernel = "cast %f, broadcast %t, binary mul %w", fused = true, launches = [4 : i64, 1 : i64]
}
