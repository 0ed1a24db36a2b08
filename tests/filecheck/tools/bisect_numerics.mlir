// RUN: rlx-opt %s -p rlx-default --bisect-numerics | filecheck %s

// The reference runs what is not planned, compiled code what is.

// CHECK: {{/}}/ NMSE of outputs, against those of the input
// CHECK-NEXT: reference  input              y
// CHECK-NEXT: reference  legalize-hir       y 0{{$}}
// CHECK: reference  derive-phases      y 0{{$}}
// CHECK-NEXT: jit        plan-lir           y {{[0-9.]+e-[0-9]+$}}

builtin.module @two attributes {rlx.dims = #hir.dim_table<rows = 2 to 8>} {
  hir.weight @w "w" : tensor<32x32x!hir.q<q4_0>>
  func.func @main(%x: tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "x"}) -> (tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "y"}) {
    %w = hir.load_weight @w : tensor<32x32x!hir.q<q4_0>>
    %a = mir.unary exp %x : tensor<?x32xf32, #hir.dims<rows, _>>
    %l = hir.linear %a, %w : tensor<?x32xf32, #hir.dims<rows, _>>, tensor<32x32x!hir.q<q4_0>> -> tensor<?x32xf32, #hir.dims<rows, _>>
    %y = mir.binary add %x, %l : tensor<?x32xf32, #hir.dims<rows, _>>
    func.return %y : tensor<?x32xf32, #hir.dims<rows, _>>
  }
}
