// RUN: rlx-opt %s -p 'verify-stage{stage=mir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module attributes {rlx.dims = #hir.dim_table<n = 0 to 64, c3 = 3, more = n + c3>} {
  func.func @f(%x: tensor<4x6xf32>, %v: tensor<f32>, %r: tensor<?x5xi8, #hir.dims<n, _>>, %z: tensor<i8>) {
    %p = mir.pad %x, %v low [0, 1] high [2, 0] between [1, 0] : tensor<4x6xf32>, tensor<f32> -> tensor<9x7xf32>
    %q = mir.pad %r, %z low [2, 0] high [1, 0] between [0, 0] : tensor<?x5xi8, #hir.dims<n, _>>, tensor<i8> -> tensor<?x5xi8, #hir.dims<more, _>>
    %w = mir.window %p axis 1 size 3 stride 2 step 1 : tensor<9x7xf32> -> tensor<9x3x3xf32>
    %d = mir.window %p axis 0 size 2 stride 1 step 4 : tensor<9x7xf32> -> tensor<5x2x7xf32>
    %b = mir.reverse %r axes [0, 1] : tensor<?x5xi8, #hir.dims<n, _>>
    func.return
  }
}

// CHECK:      builtin.module attributes {rlx.dims = #hir.dim_table<n = 0 to 64, c3 = 3, more = n + c3>} {
// CHECK-NEXT:   func.func @f(%x: tensor<4x6xf32>, %v: tensor<f32>, %r: tensor<?x5xi8, #hir.dims<n, _>>, %z: tensor<i8>) {
// CHECK-NEXT:     %p = mir.pad %x, %v low [0, 1] high [2, 0] between [1, 0] : tensor<4x6xf32>, tensor<f32> -> tensor<9x7xf32>
// CHECK-NEXT:     %q = mir.pad %r, %z low [2, 0] high [1, 0] between [0, 0] : tensor<?x5xi8, #hir.dims<n, _>>, tensor<i8> -> tensor<?x5xi8, #hir.dims<more, _>>
// CHECK-NEXT:     %w = mir.window %p axis 1 size 3 stride 2 step 1 : tensor<9x7xf32> -> tensor<9x3x3xf32>
// CHECK-NEXT:     %d = mir.window %p axis 0 size 2 stride 1 step 4 : tensor<9x7xf32> -> tensor<5x2x7xf32>
// CHECK-NEXT:     %b = mir.reverse %r axes [0, 1] : tensor<?x5xi8, #hir.dims<n, _>>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC:      "builtin.module"() ({
// GENERIC-NEXT:   "func.func"() <{sym_name = "f", function_type = (tensor<4x6xf32>, tensor<f32>, tensor<?x5xi8, #hir.dims<n, _>>, tensor<i8>) -> ()}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<4x6xf32>, %v: tensor<f32>, %r: tensor<?x5xi8, #hir.dims<n, _>>, %z: tensor<i8>):
// GENERIC-NEXT:     %p = "mir.pad"(%x, %v) <{low = array<i64: 0, 1>, high = array<i64: 2, 0>, between = array<i64: 1, 0>}> : (tensor<4x6xf32>, tensor<f32>) -> tensor<9x7xf32>
// GENERIC-NEXT:     %q = "mir.pad"(%r, %z) <{low = array<i64: 2, 0>, high = array<i64: 1, 0>, between = array<i64: 0, 0>}> : (tensor<?x5xi8, #hir.dims<n, _>>, tensor<i8>) -> tensor<?x5xi8, #hir.dims<more, _>>
// GENERIC-NEXT:     %w = "mir.window"(%p) <{axis = 1 : i64, size = 3 : i64, stride = 2 : i64, step = 1 : i64}> : (tensor<9x7xf32>) -> tensor<9x3x3xf32>
// GENERIC-NEXT:     %d = "mir.window"(%p) <{axis = 0 : i64, size = 2 : i64, stride = 1 : i64, step = 4 : i64}> : (tensor<9x7xf32>) -> tensor<5x2x7xf32>
// GENERIC-NEXT:     %b = "mir.reverse"(%r) <{axes = array<i64: 0, 1>}> : (tensor<?x5xi8, #hir.dims<n, _>>) -> tensor<?x5xi8, #hir.dims<n, _>>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) {rlx.dims = #hir.dim_table<n = 0 to 64, c3 = 3, more = n + c3>} : () -> ()
