// RUN: rlx-opt %s -p rlx-default -t stats | filecheck %s --check-prefix=STATS
// RUN: rlx-opt %s -p rlx-default -t json | filecheck %s --check-prefix=JSON
// RUN: rlx-opt %s -t dot | filecheck %s --check-prefix=HIR
// RUN: rlx-opt %s -p legalize-hir,fuse-epilogue -t dot | filecheck %s --check-prefix=MIR
// RUN: rlx-opt %s -p rlx-default -t dot | filecheck %s --check-prefix=LIR

builtin.module @two {
  hir.weight @w "w" : tensor<32x32xf32>
  func.func @main(%x: tensor<4x32xf32> {rlx.name = "x"}) -> (tensor<4x32xf32> {rlx.name = "y"}) {
    %w = hir.load_weight @w : tensor<32x32xf32>
    %a = mir.unary exp %x : tensor<4x32xf32>
    %l = hir.linear %a, %w : tensor<4x32xf32>, tensor<32x32xf32> -> tensor<4x32xf32>
    %y = mir.binary add %x, %l : tensor<4x32xf32>
    func.return %y : tensor<4x32xf32>
  }
}

// STATS: operations
// STATS: {{ +}}3  lir.kernel
// STATS: {{ +}}3  lir.launch
// STATS: {{ +}}1  mir.matmul
// STATS: plan:
// STATS-NEXT: 3 kernels
// STATS-NEXT: 2 launches per step
// STATS-NEXT: 1 barriers per step
// STATS-NEXT: arena of 512 bytes, lower bound 512, 1.000 times the bound
// STATS-NEXT: weights of 4096 bytes, 4096 read per step
// STATS-NEXT: state of 0 bytes

// JSON: {
// JSON-NEXT: "name": "two",
// JSON: "arena_bytes": 512,
// JSON: "kernels": 3,
// JSON: "inputs": [
// JSON-NEXT: {
// JSON-NEXT: "name": "x",
// JSON-NEXT: "dtype": "f32",

// HIR: digraph "two" {
// HIR: [[W:n[0-9]+]] [label="hir.weight @w"]
// HIR: label="func.func @main"
// HIR-NEXT: [[X:n[0-9]+]] [label="x\n[4, 32] f32", shape=ellipse]
// HIR-NEXT: [[L:n[0-9]+]] [label="hir.load_weight @w\n[32, 32] f32"]
// HIR-NEXT: [[A:n[0-9]+]] [label="mir.unary exp\n[4, 32] f32"]
// HIR-NEXT: [[M:n[0-9]+]] [label="hir.linear\n[4, 32] f32"]
// HIR-NEXT: [[Y:n[0-9]+]] [label="mir.binary add\n[4, 32] f32"]
// HIR-NEXT: [[R:n[0-9]+]] [label="func.return"]
// HIR-NEXT: }
// HIR-NEXT: [[X]] -> [[A]];
// HIR-NEXT: [[A]] -> [[M]];
// HIR-NEXT: [[L]] -> [[M]];
// HIR-NEXT: [[X]] -> [[Y]];
// HIR-NEXT: [[M]] -> [[Y]];
// HIR-NEXT: [[Y]] -> [[R]];
// HIR-NEXT: }

// MIR: label="mir.kernel [4, 32] f32"
// MIR-NEXT: label="mir.matmul
// MIR-NEXT: label="mir.binary
// MIR-NEXT: [[END:n[0-9]+]] [label="mir.yield"]
// MIR-NEXT: }
// MIR-NEXT: [[R:n[0-9]+]] [label="func.return"]
// MIR: [[END]] -> [[R]];

// LIR: label="lir.program @two"
// LIR: [[IN:n[0-9]+]] [label="lir.input \"x\"\n
// LIR: [[OUT:n[0-9]+]] [label="lir.output \"y\"\n
// LIR: [[SLOT:n[0-9]+]] [label="lir.slot
// LIR: [[EXP:n[0-9]+]] [label="lir.launch @exp steady_state"]
// LIR: [[ADD:n[0-9]+]] [label="lir.launch @matmul_add steady_state"]
// LIR: [[IN]] -> [[EXP]];
// LIR-NEXT: [[EXP]] -> [[SLOT]];
// LIR: [[SLOT]] -> [[ADD]];
// LIR: [[ADD]] -> [[OUT]];
