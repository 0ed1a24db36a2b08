// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: error: graph.node 0: expected both numbers of a slot or a view
%0 = "graph.node"() <{id = 0 : i64, kind = "Input", given = {}, offset = 0 : i64}> : () -> tensor<2xf32>

// -----

// CHECK: error: graph.node 0: expected both numbers of a slot or a view
%0 = "graph.node"() <{id = 0 : i64, kind = "Input", given = {}, byte_offset = 0 : i64}> : () -> tensor<2xf32>

// -----

// CHECK: error: graph.node 0: expected attributes in JSON, got 1 : i64
%0 = graph.node 0 "TopK" {k = 1 : i64}() : tensor<2xf32>

// -----

// CHECK: error: tensor<?xf32> has a dynamic dimension without a name
%0 = graph.node 0 "Input" {}() : tensor<?xf32>

// -----

// CHECK: error: graph.program: expected one block of graph.node
graph.program "p" arena 0 alignment 64 outputs <> schedule <> dynamic <> io <> <> <> {
  builtin.module {
  }
}
