// RUN: rlx-opt %s | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 0 to 9223372036854775807>} {
  // What the plan says of a node may be missing: a place, a phase, a name.
  graph.program "step" arena 192 alignment 64 outputs <4> schedule <0, 1, 2, 3, 4> dynamic <1> io <"x" = 0> <"w" = 1> <4> {
    %0 = graph.node 0 "Input" name "x" {}() phase prologue slot 0 size 16 : tensor<4xf32>
    %1 = graph.node 1 "Param" name "w" {}() phase prologue slot 64 size 64 : tensor<4x4xf32>
    %2 = graph.node 2 "MatMul" {}(%0, %1 : tensor<4xf32>, tensor<4x4xf32>) slot 128 size 64 : tensor<4x4xf32>
    %3 = graph.node 3 "Narrow" {axis = "0", length = "2", start = "1"}(%2 : tensor<4x4xf32>) phase epilogue view 2 byte_offset 16 : tensor<2x4xf32>
    %4 = graph.node 4 "Expand" {}(%3 : tensor<2x4xf32>) : tensor<?x4xf32, #hir.dims<seq, _>>
  }
  graph.program "empty" arena 0 alignment 1 outputs <> schedule <> dynamic <> io <> <> <> {
  }
}

// CHECK:      graph.program "step" arena 192 alignment 64 outputs <4> schedule <0, 1, 2, 3, 4> dynamic <1> io <"x" = 0> <"w" = 1> <4> {
// CHECK-NEXT:   %0 = graph.node 0 "Input" name "x" {}() phase prologue slot 0 size 16 : tensor<4xf32>
// CHECK-NEXT:   %1 = graph.node 1 "Param" name "w" {}() phase prologue slot 64 size 64 : tensor<4x4xf32>
// CHECK-NEXT:   %2 = graph.node 2 "MatMul" {}(%0, %1 : tensor<4xf32>, tensor<4x4xf32>) slot 128 size 64 : tensor<4x4xf32>
// CHECK-NEXT:   %3 = graph.node 3 "Narrow" {axis = "0", length = "2", start = "1"}(%2 : tensor<4x4xf32>) phase epilogue view 2 byte_offset 16 : tensor<2x4xf32>
// CHECK-NEXT:   %4 = graph.node 4 "Expand" {}(%3 : tensor<2x4xf32>) : tensor<?x4xf32, #hir.dims<seq, _>>
// CHECK-NEXT: }
// CHECK-NEXT: graph.program "empty" arena 0 alignment 1 outputs <> schedule <> dynamic <> io <> <> <> {

// GENERIC: schedule = #graph.ids<0, 1, 2, 3, 4>
// GENERIC-SAME: io_inputs = #graph.named_ids<"x" = 0>
