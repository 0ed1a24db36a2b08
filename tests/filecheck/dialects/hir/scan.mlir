// RUN: rlx-opt %s -p 'verify-stage{stage=hir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module attributes {rlx.dims = #hir.dim_table<n = 0 to 9>} {
  func.func private @sums(%c: tensor<4xf32>, %x: tensor<?x4xf32, #hir.dims<n, _>>) -> tensor<?x4xf32, #hir.dims<n, _>> {
    %end, %sums = hir.scan(%c) over (%x) {
    ^bb0(%k: tensor<4xf32>, %e: tensor<4xf32>):
      %s = mir.binary add %k, %e : tensor<4xf32>
      mir.yield %s, %s : tensor<4xf32>, tensor<4xf32>
    } : (tensor<4xf32>) over (tensor<?x4xf32, #hir.dims<n, _>>) -> (tensor<4xf32>, tensor<?x4xf32, #hir.dims<n, _>>)
    func.return %sums : tensor<?x4xf32, #hir.dims<n, _>>
  }
}

// CHECK:      %end, %sums = hir.scan(%c) over(%x) {
// CHECK-NEXT: ^bb0(%k: tensor<4xf32>, %e: tensor<4xf32>):
// CHECK-NEXT:   %s = mir.binary add %k, %e : tensor<4xf32>
// CHECK-NEXT:   mir.yield %s, %s : tensor<4xf32>, tensor<4xf32>
// CHECK-NEXT: } : (tensor<4xf32>) over(tensor<?x4xf32, #hir.dims<n, _>>) -> (tensor<4xf32>, tensor<?x4xf32, #hir.dims<n, _>>)

// GENERIC:      "hir.scan"(%c, %x) <{operandSegmentSizes = array<i32: 1, 1>}> ({
