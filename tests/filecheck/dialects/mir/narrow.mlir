// RUN: rlx-opt %s | rlx-opt | filecheck %s
builtin.module attributes {rlx.dims = #hir.dim_table<n = 0 to 64, c3 = 3, tail = n - c3, len = n min c3, half = n ceildiv c3, top = n max c3>} {
  func.func @main(%x: tensor<?x5xf32, #hir.dims<n, _>> {rlx.name = "x"}) -> (tensor<?x5xf32, #hir.dims<len, _>> {rlx.name = "y"}) {
    %y = mir.narrow %x axis 0 start "tail" step 1 : tensor<?x5xf32, #hir.dims<n, _>> -> tensor<?x5xf32, #hir.dims<len, _>>
    func.return %y : tensor<?x5xf32, #hir.dims<len, _>>
  }
}
// CHECK: rlx.dims = #hir.dim_table<n = 0 to 64, c3 = 3, tail = n - c3, len = n min c3, half = n ceildiv c3, top = n max c3>
// CHECK: mir.narrow %x axis 0 start "tail" step 1 : tensor<?x5xf32, #hir.dims<n, _>> -> tensor<?x5xf32, #hir.dims<len, _>>
