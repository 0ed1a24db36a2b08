// RUN: rlx-opt %s -p legalize-hir | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<n = 0 to 9>} {
  func.func @main(%c: tensor<4xf32>, %x: tensor<?x4xf32, #hir.dims<n, _>>) -> tensor<?x4xf32, #hir.dims<n, _>> {
    %end, %sums = hir.scan(%c) over (%x) {
    ^bb0(%k: tensor<4xf32>, %e: tensor<4xf32>):
      %s = mir.binary add %k, %e : tensor<4xf32>
      mir.yield %s, %s : tensor<4xf32>, tensor<4xf32>
    } : (tensor<4xf32>) over (tensor<?x4xf32, #hir.dims<n, _>>) -> (tensor<4xf32>, tensor<?x4xf32, #hir.dims<n, _>>)
    func.return %sums : tensor<?x4xf32, #hir.dims<n, _>>
  }
}

// CHECK:      %[[LAST:.*]] = mir.reduce max %{{.*}} axes [0] : tensor<?xi64, #hir.dims<n>> -> tensor<i64>
// CHECK:      %[[END:.*]] = mir.binary add %[[LAST]], %{{.*}} : tensor<i64>
// CHECK-NEXT: %{{.*}}, %end, %sums = mir.while(%{{.*}}, %c, %{{.*}}) {
// CHECK-NEXT: ^bb0(%[[I:.*]]: tensor<i64>, %{{.*}}: tensor<4xf32>, %{{.*}}: tensor<?x4xf32, #hir.dims<n, _>>):
// CHECK-NEXT:   %{{.*}} = mir.compare lt %[[I]], %[[END]] : tensor<i64> -> tensor<i1>
// CHECK:      } do {
// CHECK-NEXT: ^bb0(%[[J:.*]]: tensor<i64>, %k: tensor<4xf32>, %[[STACK:.*]]: tensor<?x4xf32, #hir.dims<n, _>>):
// CHECK-NEXT:   %e = mir.gather %x, %[[J]] axis 0
// CHECK-NEXT:   %s = mir.binary add %k, %e : tensor<4xf32>
// CHECK-NEXT:   %[[NEXT:.*]] = indexing.scatter_rows(%[[STACK]], %[[J]], %s)
// CHECK:        mir.yield %{{.*}}, %s, %[[NEXT]] : tensor<i64>, tensor<4xf32>, tensor<?x4xf32, #hir.dims<n, _>>
