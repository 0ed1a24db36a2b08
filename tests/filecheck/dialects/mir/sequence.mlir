// RUN: rlx-opt %s -p 'verify-stage{stage=hir}' | rlx-opt -p 'verify-stage{stage=mir}' | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16>} {
  func.func @main(%q: tensor<?x2x8xf32, #hir.dims<seq, _, _>> {rlx.name = "q"}, %v: tensor<?x4x6xf32, #hir.dims<seq, _, _>> {rlx.name = "v"}, %g: tensor<?x4xf32, #hir.dims<seq, _>> {rlx.name = "g"}) -> (tensor<?x4x6xf32, #hir.dims<seq, _, _>> {rlx.name = "o"}, tensor<4x8x6xf32> {rlx.name = "s"}) {
    %o, %s = mir.gated_delta_net %q, %q, %v, %g, %g : tensor<?x2x8xf32, #hir.dims<seq, _, _>>, tensor<?x4x6xf32, #hir.dims<seq, _, _>>, tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x8x6xf32>
    %p, %t = mir.gated_delta_net %q, %q, %o, %g, %g state %s : tensor<4x8x6xf32> : tensor<?x2x8xf32, #hir.dims<seq, _, _>>, tensor<?x4x6xf32, #hir.dims<seq, _, _>>, tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x8x6xf32>
    func.return %p, %t : tensor<?x4x6xf32, #hir.dims<seq, _, _>>, tensor<4x8x6xf32>
  }
}

// CHECK: %o, %s = mir.gated_delta_net %q, %q, %v, %g, %g : tensor<?x2x8xf32, #hir.dims<seq, _, _>>, tensor<?x4x6xf32, #hir.dims<seq, _, _>>, tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x8x6xf32>
// CHECK-NEXT: %p, %t = mir.gated_delta_net %q, %q, %o, %g, %g state %s : tensor<4x8x6xf32> : tensor<?x2x8xf32, #hir.dims<seq, _, _>>, tensor<?x4x6xf32, #hir.dims<seq, _, _>>, tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x8x6xf32>

// GENERIC: %o, %s = "mir.gated_delta_net"(%q, %q, %v, %g, %g) : (
// GENERIC: %p, %t = "mir.gated_delta_net"(%q, %q, %o, %g, %g, %s) : (
