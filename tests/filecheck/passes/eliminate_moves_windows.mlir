// RUN: rlx-opt %s -p eliminate-moves | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<n = 0 to 64, c1 = 1, c2 = 2, one = n + c1, three = one + c2>} {
  // Pads of one value add up, but for what is put between elements that were padded before.
  func.func @pads(%x: tensor<4x5xf32>, %v: tensor<f32>, %u: tensor<f32>) -> (tensor<10x8xf32>, tensor<9x5xf32>, tensor<6x5xf32>, tensor<4x5xf32>) {
    %p = mir.pad %x, %v low [1, 0] high [0, 2] between [1, 0] : tensor<4x5xf32>, tensor<f32> -> tensor<8x7xf32>
    %q = mir.pad %p, %v low [2, 1] high [0, 0] between [0, 0] : tensor<8x7xf32>, tensor<f32> -> tensor<10x8xf32>
    %r = mir.pad %x, %v low [1, 0] high [0, 0] between [0, 0] : tensor<4x5xf32>, tensor<f32> -> tensor<5x5xf32>
    %s = mir.pad %r, %v low [0, 0] high [0, 0] between [1, 0] : tensor<5x5xf32>, tensor<f32> -> tensor<9x5xf32>
    %t = mir.pad %r, %u low [1, 0] high [0, 0] between [0, 0] : tensor<5x5xf32>, tensor<f32> -> tensor<6x5xf32>
    %w = mir.pad %x, %v low [0, 0] high [0, 0] between [0, 0] : tensor<4x5xf32>, tensor<f32> -> tensor<4x5xf32>
    func.return %q, %s, %t, %w : tensor<10x8xf32>, tensor<9x5xf32>, tensor<6x5xf32>, tensor<4x5xf32>
  }
  // CHECK-LABEL: func.func @pads(
  // CHECK-NEXT:   %q = mir.pad %x, %v low [3, 1] high [0, 2] between [1, 0] : tensor<4x5xf32>, tensor<f32> -> tensor<10x8xf32>
  // CHECK-NEXT:   %r = mir.pad %x, %v low [1, 0] high [0, 0] between [0, 0] : tensor<4x5xf32>, tensor<f32> -> tensor<5x5xf32>
  // CHECK-NEXT:   %s = mir.pad %r, %v low [0, 0] high [0, 0] between [1, 0] : tensor<5x5xf32>, tensor<f32> -> tensor<9x5xf32>
  // CHECK-NEXT:   %t = mir.pad %r, %u low [1, 0] high [0, 0] between [0, 0] : tensor<5x5xf32>, tensor<f32> -> tensor<6x5xf32>
  // CHECK-NEXT:   func.return %q, %s, %t, %x : tensor<10x8xf32>, tensor<9x5xf32>, tensor<6x5xf32>, tensor<4x5xf32>

  // The table says that the sum is that of the two.
  func.func @named(%x: tensor<?x5xf32, #hir.dims<n, _>>, %v: tensor<f32>) -> tensor<?x5xf32, #hir.dims<three, _>> {
    %p = mir.pad %x, %v low [1, 0] high [0, 0] between [0, 0] : tensor<?x5xf32, #hir.dims<n, _>>, tensor<f32> -> tensor<?x5xf32, #hir.dims<one, _>>
    %q = mir.pad %p, %v low [0, 0] high [2, 0] between [0, 0] : tensor<?x5xf32, #hir.dims<one, _>>, tensor<f32> -> tensor<?x5xf32, #hir.dims<three, _>>
    func.return %q : tensor<?x5xf32, #hir.dims<three, _>>
  }
  // CHECK-LABEL: func.func @named(
  // CHECK-NEXT:   %q = mir.pad %x, %v low [1, 0] high [2, 0] between [0, 0] : tensor<?x5xf32, #hir.dims<n, _>>, tensor<f32> -> tensor<?x5xf32, #hir.dims<three, _>>

  // Windows that take each element once are a view.
  func.func @windows(%x: tensor<6x5xf32>) -> (tensor<2x3x5xf32>, tensor<6x1x5xf32>, tensor<1x6x5xf32>, tensor<2x2x5xf32>, tensor<3x2x5xf32>) {
    %a = mir.window %x axis 0 size 3 stride 3 step 1 : tensor<6x5xf32> -> tensor<2x3x5xf32>
    %b = mir.window %x axis 0 size 1 stride 1 step 7 : tensor<6x5xf32> -> tensor<6x1x5xf32>
    %c = mir.window %x axis 0 size 6 stride 9 step 1 : tensor<6x5xf32> -> tensor<1x6x5xf32>
    %d = mir.window %x axis 0 size 2 stride 3 step 1 : tensor<6x5xf32> -> tensor<2x2x5xf32>
    %e = mir.window %x axis 0 size 2 stride 1 step 3 : tensor<6x5xf32> -> tensor<3x2x5xf32>
    func.return %a, %b, %c, %d, %e : tensor<2x3x5xf32>, tensor<6x1x5xf32>, tensor<1x6x5xf32>, tensor<2x2x5xf32>, tensor<3x2x5xf32>
  }
  // CHECK-LABEL: func.func @windows(
  // CHECK-NEXT:   %a = mir.reshape %x : tensor<6x5xf32> -> tensor<2x3x5xf32>
  // CHECK-NEXT:   %b = mir.reshape %x : tensor<6x5xf32> -> tensor<6x1x5xf32>
  // CHECK-NEXT:   %c = mir.reshape %x : tensor<6x5xf32> -> tensor<1x6x5xf32>
  // CHECK-NEXT:   %d = mir.window %x axis 0 size 2 stride 3 step 1 : tensor<6x5xf32> -> tensor<2x2x5xf32>
  // CHECK-NEXT:   %e = mir.window %x axis 0 size 2 stride 1 step 3 : tensor<6x5xf32> -> tensor<3x2x5xf32>

  func.func @reversals(%x: tensor<6x5x1xf32>) -> (tensor<6x5x1xf32>, tensor<6x5x1xf32>, tensor<6x5x1xf32>) {
    %a = mir.reverse %x axes [0, 1] : tensor<6x5x1xf32>
    %b = mir.reverse %a axes [1, 2] : tensor<6x5x1xf32>
    %c = mir.reverse %a axes [1, 0] : tensor<6x5x1xf32>
    %d = mir.reverse %x axes [2] : tensor<6x5x1xf32>
    func.return %b, %c, %d : tensor<6x5x1xf32>, tensor<6x5x1xf32>, tensor<6x5x1xf32>
  }
  // CHECK-LABEL: func.func @reversals(
  // CHECK-NEXT:   %b = mir.reverse %x axes [0] : tensor<6x5x1xf32>
  // CHECK-NEXT:   func.return %b, %x, %x : tensor<6x5x1xf32>, tensor<6x5x1xf32>, tensor<6x5x1xf32>

  // A number is the same everywhere, but where another is added.
  func.func @numbers(%y: tensor<4x3xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
    %one = mir.constant dense<1.0> : tensor<2xf32>
    %two = mir.constant dense<2.0> : tensor<f32>
    %also = mir.constant dense<1.0> : tensor<f32>
    %p = mir.pad %one, %also low [2] high [1] between [0] : tensor<2xf32>, tensor<f32> -> tensor<5xf32>
    %w = mir.window %p axis 0 size 2 stride 1 step 1 : tensor<5xf32> -> tensor<4x2xf32>
    %x = mir.slice %y starts [0, 1] steps [1, 1] : tensor<4x3xf32> -> tensor<4x2xf32>
    %a = mir.binary add %x, %w : tensor<4x2xf32>
    %s = mir.slice %y starts [0, 1] steps [1, 1] : tensor<4x3xf32> -> tensor<3x1xf32>
    %q = mir.pad %s, %two low [1, 0] high [0, 1] between [0, 0] : tensor<3x1xf32>, tensor<f32> -> tensor<4x2xf32>
    func.return %a, %q : tensor<4x2xf32>, tensor<4x2xf32>
  }
  // CHECK-LABEL: func.func @numbers(
  // CHECK-NEXT:   %two = mir.constant dense<2.000000e+00> : tensor<f32>
  // CHECK-NOT:    mir.window
  // CHECK:        mir.pad %s, %two
}
