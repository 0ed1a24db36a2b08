// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Declarations
// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected offset >= 0, got -64
lir.weight @w "w" offset -64 stride 0 layers 0 to 1 source 0 : tensor<8xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected stride >= 0, got -64
lir.weight @w "w" offset 0 stride -64 layers 0 to 1 source 0 : tensor<8xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected source >= 0, got -1
lir.weight @w "w" offset 0 stride 0 layers 0 to 1 source -1 : tensor<8xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected layers first to last with 0 <= first < last, got 1 to 1
lir.weight @w "w" offset 0 stride 0 layers 1 to 1 source 0 : tensor<8xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected numbers for dimensions, got [n] f32
lir.weight @w "w" offset 0 stride 0 layers 0 to 1 source 0 : tensor<?xf32, #hir.dims<n>>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected rows of whole q8_0 blocks of 32, got [8, 33] packed q8_0
lir.weight @w "w" offset 0 stride 0 layers 0 to 1 source 0 : tensor<8x33x!hir.packed<q8_0>>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: weight @w: expected offset >= 0, got -9223372036854775808
lir.weight @w "w" offset 9223372036854775808 stride 0 layers 0 to 1 source 0 : tensor<8xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected offset >= 0, got -1
lir.state @k keys head_dim 16 offset -1 stride 0 layers 0 to 1 : tensor<8x64xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected stride >= 0, got -1
lir.state @k keys head_dim 16 offset 0 stride -1 layers 0 to 1 : tensor<8x64xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected layers first to last with 0 <= first < last, got 2 to 1
lir.state @k keys head_dim 16 offset 0 stride 0 layers 2 to 1 : tensor<8x64xf32>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: state @k: expected a width that is a multiple of head_dim 24, got [8, 64] f32
lir.state @k keys head_dim 24 offset 0 stride 0 layers 0 to 1 : tensor<8x64xf32>

// -----

// Kernels
// CHECK: :[[# @LINE + 1]]:1: error: lir.kernel: expected a body that ends in a terminator, got an empty one
lir.kernel @k {
^bb0(%x: tensor<4xf32>):
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: 'func.return' expects parent op 'func.func'
lir.kernel @k {
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:3: error: lir.kernel: expected a body that ends in a terminator, got mir.unary
lir.kernel @k {
^bb0(%x: tensor<4xf32>):
  %y = mir.unary exp %x : tensor<4xf32>
}

// -----

// The program and its buffers
// CHECK: :[[# @LINE + 1]]:1: error: lir.program @main: expected arena >= 0, got -1
lir.program @main arena -1 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  lir.barrier
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: lir.program @main: expected alignment >= 1, got 0
lir.program @main arena 1024 lower_bound 0 alignment 0 state 0 weights 0 fingerprint "" {
  lir.barrier
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: lir.program @main: expected lower_bound >= 0, got -1
lir.program @main arena 0 lower_bound -1 alignment 1 state 0 weights 0 fingerprint "" {
  lir.barrier
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: lir.program @main: expected state >= 0, got -1
lir.program @main arena 0 lower_bound 0 alignment 1 state -1 weights 0 fingerprint "" {
  lir.barrier
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: lir.program @main: expected weights >= 0, got -1
lir.program @main arena 0 lower_bound 0 alignment 1 state 0 weights -1 fingerprint "" {
  lir.barrier
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: lir.program @main: expected a body without arguments
lir.program @main arena 0 lower_bound 0 alignment 1 state 0 weights 0 fingerprint "" {
^bb0(%a: index):
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.input "x": expected index >= 0, got -1
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.input "x" index -1 : tensor<4xf32>
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: tensor<?xf32> has a dynamic dimension without a name: add #hir.dims
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.output "x" index 0 : tensor<?xf32>
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.slot: expected offset >= 0, got -64
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.slot offset -64 size 64 : tensor<16xf32>
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.slot: expected size >= 0, got -64
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.slot offset 0 size -64 : tensor<16xf32>
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.slot: bytes 960 to 1088 are outside the arena of 1024
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.slot offset 960 size 128 : tensor<32xf32>
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.slot: expected an offset that is a multiple of 64, got 32
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.slot offset 32 size 64 : tensor<16xf32>
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: lir.slot: expected to stand in a lir.program
%x = lir.slot offset 0 size 64 : tensor<16xf32>

// -----

// CHECK: :[[# @LINE + 3]]:3: error: lir.view: expected byte_offset >= 0, got -4
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.slot offset 0 size 64 : tensor<16xf32>
  %v = lir.view %x byte_offset -4 : tensor<16xf32> -> tensor<8xf32>
}

// -----

// CHECK: :[[# @LINE + 3]]:3: error: tensor<?xf32> has a dynamic dimension without a name: add #hir.dims
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  %x = lir.slot offset 0 size 64 : tensor<16xf32>
  %v = lir.view %x byte_offset 0 : tensor<16xf32> -> tensor<?xf32>
}

// -----

// Loops and members
// CHECK: :[[# @LINE + 2]]:3: error: lir.loop: expected layers first to last with 0 <= first < last, got 2 to 2
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  lir.loop 2 to 2 {
  ^bb0(%l: index):
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.loop: expected a body with one argument, the layer's index
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  lir.loop 0 to 2 {
    lir.barrier
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.loop: expected a body with one argument, the layer's index
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  lir.loop 0 to 2 {
  ^bb0(%l: i64):
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.ref: expected a layer that a lir.loop counts
func.func @f(%l: index) {
  %w = lir.ref @w layer %l : tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.source: expected a layer that a lir.loop counts
func.func @f(%l: index) {
  %w = lir.source @w layer %l : tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: operand 'layer' at position 0 does not verify:
func.func @f(%l: i64) {
  %w = "lir.ref"(%l) <{symbol = @w}> : (i64) -> tensor<4xf32>
  func.return
}

// -----

// Launches
// CHECK: :[[# @LINE + 2]]:17: error: Expected `prologue`, `steady_state`, or `epilogue`.
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  lir.launch @k sometimes ins() outs()
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: lir.launch uses %x, which is not defined there
lir.program @main arena 1024 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
  lir.launch @k prologue ins(%x : tensor<4xf32>) outs()
}
