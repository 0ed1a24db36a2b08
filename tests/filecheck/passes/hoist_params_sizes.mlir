// RUN: rlx-opt %s -p hoist-params | filecheck %s

// What has a size that a step gives is not known before it: constants go to the prologue, rows of
// them do not, however they are made, alone or in a kernel.
// CHECK: %c = mir.constant dense<1.000000e+00> : tensor<f32> {phase = #mir<phase prologue>}
// CHECK-NEXT: %b = mir.broadcast %c : tensor<f32> -> tensor<?xf32, #hir.dims<seq>>
// CHECK-NEXT: %i = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>>
// CHECK-NEXT: %d = mir.broadcast %c : tensor<f32> -> tensor<4xf32> {phase = #mir<phase prologue>}
// CHECK-NEXT: %k = mir.kernel -> (tensor<f32>) {
// CHECK: func.return
// CHECK-NOT: phase
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16>} {
  func.func @main(%x: tensor<?xf32, #hir.dims<seq>>) -> (tensor<?xf32, #hir.dims<seq>>, tensor<?xf32, #hir.dims<seq>>, tensor<4xf32>, tensor<f32>) {
    %c = mir.constant dense<1.0> : tensor<f32>
    %b = mir.broadcast %c : tensor<f32> -> tensor<?xf32, #hir.dims<seq>>
    %i = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>>
    %d = mir.broadcast %c : tensor<f32> -> tensor<4xf32>
    %k = mir.kernel -> (tensor<f32>) {
      %j = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>>
      %s = mir.reduce sum %j axes [0] : tensor<?xf32, #hir.dims<seq>> -> tensor<f32>
      mir.yield %s : tensor<f32>
    }
    func.return %b, %i, %d, %k : tensor<?xf32, #hir.dims<seq>>, tensor<?xf32, #hir.dims<seq>>, tensor<4xf32>, tensor<f32>
  }
}
