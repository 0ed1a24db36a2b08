// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p 'verify-stage{stage=lir}' | filecheck %s

// Operations of other stages
// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': mir.load_weight: not allowed in lir.program at stage lir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %a = mir.load_weight @w : tensor<4xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: pass 'verify-stage': hir.weight: not allowed in builtin.module at stage lir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  hir.weight @w "w" : tensor<4xf32>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.barrier
  }
}

// -----

// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': mir.load_weight: not allowed in lir.kernel at stage lir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.kernel @k {
    %w = mir.load_weight @w : tensor<4xf32>
    mir.yield %w : tensor<4xf32>
  }
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.barrier
  }
}

// -----

// Launches
// CHECK: :[[# @LINE + 9]]:5: error: pass 'verify-stage': lir.launch: expected a lir.kernel @log, there is none
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.kernel @exp {
  ^bb0(%a: tensor<4xf32>):
    %b = mir.unary exp %a : tensor<4xf32>
    mir.yield %b : tensor<4xf32>
  }
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<4xf32>
    lir.launch @log steady_state ins(%s : tensor<4xf32>) outs(%s : tensor<4xf32>)
  }
}

// -----

// CHECK: :[[# @LINE + 5]]:5: error: pass 'verify-stage': lir.launch: expected a lir.kernel @w, that is a lir.weight
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "w" offset 0 stride 256 layers 2 to 4 source 0 : tensor<8x8x!hir.packed<f32>>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<4xf32>
    lir.launch @w steady_state ins(%s : tensor<4xf32>) outs(%s : tensor<4xf32>)
  }
}

// -----

// CHECK: :[[# @LINE + 9]]:5: error: pass 'verify-stage': lir.launch: @exp reads ([4] f32), got ([4] f32, [4] f32)
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.kernel @exp {
  ^bb0(%a: tensor<4xf32>):
    %b = mir.unary exp %a : tensor<4xf32>
    mir.yield %b : tensor<4xf32>
  }
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<4xf32>
    lir.launch @exp steady_state ins(%s, %s : tensor<4xf32>, tensor<4xf32>) outs(%s : tensor<4xf32>)
  }
}

// -----

// CHECK: :[[# @LINE + 9]]:5: error: pass 'verify-stage': lir.launch: @exp writes ([4] f32), got ()
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.kernel @exp {
  ^bb0(%a: tensor<4xf32>):
    %b = mir.unary exp %a : tensor<4xf32>
    mir.yield %b : tensor<4xf32>
  }
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<4xf32>
    lir.launch @exp steady_state ins(%s : tensor<4xf32>) outs()
  }
}

// -----

// CHECK: :[[# @LINE + 9]]:5: error: pass 'verify-stage': lir.launch: @exp reads ([4] f32), got ([8] f32)
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.kernel @exp {
  ^bb0(%a: tensor<4xf32>):
    %b = mir.unary exp %a : tensor<4xf32>
    mir.yield %b : tensor<4xf32>
  }
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<8xf32>
    lir.launch @exp steady_state ins(%s : tensor<8xf32>) outs(%s : tensor<8xf32>)
  }
}

// -----

// Weights and states
// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': lir.ref: expected a lir.weight @v, there is none
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "w" offset 0 stride 256 layers 2 to 4 source 0 : tensor<8x8x!hir.packed<f32>>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %a = lir.ref @v : tensor<4xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': lir.source: expected a lir.weight @k, that is a lir.state
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.state @k keys head_dim 8 offset 0 stride 128 layers 2 to 4 : tensor<4x8xf32>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %a = lir.source @k : tensor<4x8xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 6]]:7: error: pass 'verify-stage': lir.ref: @w is declared as [8, 8] packed f32, got [8, 8] f32
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "w" offset 0 stride 256 layers 2 to 4 source 0 : tensor<8x8x!hir.packed<f32>>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.loop 2 to 4 {
    ^bb0(%l: index):
      %a = lir.ref @w layer %l : tensor<8x8xf32>
    }
  }
}

// -----

// CHECK: :[[# @LINE + 6]]:7: error: pass 'verify-stage': lir.source: @w is declared as [8, 8] packed f32, got [8, 8] q8_0
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "w" offset 0 stride 256 layers 2 to 4 source 0 : tensor<8x8x!hir.packed<f32>>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.loop 2 to 4 {
    ^bb0(%l: index):
      %a = lir.source @w layer %l : tensor<8x8x!hir.q<q8_0>>
    }
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': lir.ref: @w has 2 members: expected a layer
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "w" offset 0 stride 256 layers 2 to 4 source 0 : tensor<8x8x!hir.packed<f32>>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %a = lir.ref @w : tensor<8x8x!hir.packed<f32>>
  }
}

// -----

// CHECK: :[[# @LINE + 6]]:7: error: pass 'verify-stage': lir.ref: @k has members for the layers 2 to 4, the loop runs over 2 to 5
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.state @k keys head_dim 8 offset 0 stride 128 layers 2 to 4 : tensor<4x8xf32>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.loop 2 to 5 {
    ^bb0(%l: index):
      %a = lir.ref @k layer %l : tensor<4x8xf32>
    }
  }
}

// -----

// CHECK: :[[# @LINE + 6]]:7: error: pass 'verify-stage': lir.ref: @k has members for the layers 2 to 4, the loop runs over 0 to 4
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.state @k keys head_dim 8 offset 0 stride 128 layers 2 to 4 : tensor<4x8xf32>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.loop 0 to 4 {
    ^bb0(%l: index):
      %a = lir.ref @k layer %l : tensor<4x8xf32>
    }
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: pass 'verify-stage': lir.state: its last member reaches byte 256 of a segment of 255 bytes
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.state @k keys head_dim 8 offset 0 stride 128 layers 2 to 4 : tensor<4x8xf32>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 255 weights 512 fingerprint "" {
    lir.barrier
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: pass 'verify-stage': lir.weight: its last member reaches byte 257 of a segment of 256 bytes
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "w" offset 0 stride 256 layers 2 to 4 source 0 : tensor<8x8x!hir.packed<f32>>
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 256 fingerprint "" {
    lir.barrier
  }
}

// -----

// Slots and views, at the upper bounds of dimensions
// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': lir.slot: expected 128 bytes for [seq, 8] f32 at the upper bounds of its dimensions, got 64
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<?x8xf32, #hir.dims<seq, _>>
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': lir.view: [3, 4] f32 at byte 32 ends at 80, beyond the 64 bytes of [seq, 4] f32
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<?x4xf32, #hir.dims<seq, _>>
    %v = lir.view %s byte_offset 32 : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<3x4xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': lir.slot: expected elements of one of f64, f32, f16, bf16, i64, i32, i16, i8, i1, ui32, ui8, got [4] q8_0
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    %s = lir.slot offset 0 size 64 : tensor<4x!hir.q<q8_0>>
  }
}

// -----

// One program
// CHECK: :[[# @LINE + 5]]:3: error: pass 'verify-stage': lir.program: expected one program in a module, there is also @main
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.barrier
  }
  lir.program @second arena 0 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    lir.barrier
  }
}

// -----

// A slot in a loop
// CHECK: :[[# @LINE + 5]]:7: error: lir.slot: expected to stand in a lir.program
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.program @main arena 1024 lower_bound 0 alignment 64 state 256 weights 512 fingerprint "" {
    lir.loop 2 to 4 {
    ^bb0(%l: index):
      %s = lir.slot offset 0 size 64 : tensor<4xf32>
    }
  }
}

// -----

// CHECK: error: pass 'verify-stage': lir.input: expected the indices 0 to 1, once each, got 0, 3
builtin.module @indices {
  lir.program @main arena 0 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %a = lir.input "a" index 0 : tensor<4xf32>
    %b = lir.input "b" index 3 : tensor<4xf32>
  }
}

// -----

// CHECK: error: pass 'verify-stage': lir.output: two of them have one name
builtin.module @names {
  lir.program @main arena 0 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %a = lir.output "a" index 0 : tensor<4xf32>
    %b = lir.output "a" index 1 : tensor<4xf32>
  }
}

// -----

// CHECK: error: pass 'verify-stage': lir.launch: @draw needs scratch [384] i8
builtin.module @scratch {
  lir.kernel @draw {
  ^bb0(%logits: tensor<1x16xf32>, %params: tensor<8xi32>):
    %id = mir.sample %logits, %params : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32>
    mir.yield %id : tensor<1xi32>
  }
  lir.program @main arena 0 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %logits = lir.input "logits" index 0 : tensor<1x16xf32>
    %params = lir.input "params" index 1 : tensor<8xi32>
    %id = lir.output "id" index 0 : tensor<1xi32>
    lir.launch @draw epilogue ins(%logits, %params : tensor<1x16xf32>, tensor<8xi32>) outs(%id : tensor<1xi32>)
  }
}

// -----

// CHECK: error: pass 'verify-stage': lir.launch: @draw needs scratch of 384 bytes, got 64
builtin.module @small_scratch {
  lir.kernel @draw {
  ^bb0(%logits: tensor<1x16xf32>, %params: tensor<8xi32>):
    %id = mir.sample %logits, %params : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32>
    mir.yield %id : tensor<1xi32>
  }
  lir.program @main arena 64 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %logits = lir.input "logits" index 0 : tensor<1x16xf32>
    %params = lir.input "params" index 1 : tensor<8xi32>
    %id = lir.output "id" index 0 : tensor<1xi32>
    %scratch = lir.slot offset 0 size 64 : tensor<64xi8>
    lir.launch @draw epilogue ins(%logits, %params : tensor<1x16xf32>, tensor<8xi32>) outs(%id : tensor<1xi32>) scratch(%scratch : tensor<64xi8>)
  }
}

// -----

// CHECK: error: pass 'verify-stage': lir.launch: packing runs in the prologue, got steady_state
builtin.module @late_pack {
  lir.weight @w "w" offset 0 stride 64 layers 0 to 1 source 0 : tensor<16x!hir.packed<f32>>
  lir.kernel @pack {
  ^bb0(%a: tensor<16xf32>):
    %p = mir.pack %a : tensor<16xf32> -> tensor<16x!hir.packed<f32>>
    mir.yield %p : tensor<16x!hir.packed<f32>>
  }
  lir.program @main arena 0 lower_bound 0 alignment 64 state 0 weights 64 fingerprint "" {
    %source = lir.source @w : tensor<16xf32>
    %packed = lir.ref @w : tensor<16x!hir.packed<f32>>
    lir.launch @pack steady_state ins(%source : tensor<16xf32>) outs(%packed : tensor<16x!hir.packed<f32>>)
  }
}

// -----

// What a branch decides is of one job
// CHECK: error: pass 'verify-stage': lir.if: expected launches of one job, got some of the prologue and some of the step
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<4xf32>):
    %1 = mir.unary neg %0 : tensor<4xf32>
    mir.yield %1 : tensor<4xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<4xf32>
    %1 = lir.slot offset 64 size 1 : tensor<i1>
    %2 = lir.output "y" index 0 : tensor<4xf32>
    %3 = lir.slot offset 0 size 16 : tensor<4xf32>
    lir.if %1 : tensor<i1> {
      lir.launch @neg prologue ins(%3 : tensor<4xf32>) outs(%3 : tensor<4xf32>)
    } else {
      lir.launch @neg steady_state ins(%0 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    }
  }
}

// -----

// The prologue has no inputs yet
// CHECK: error: pass 'verify-stage': lir.while: the prologue runs before inputs and outputs are bound: expected a slot
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<4xf32>):
    %1 = mir.unary neg %0 : tensor<4xf32>
    mir.yield %1 : tensor<4xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "c" index 0 : tensor<i1>
    %1 = lir.view %0 byte_offset 0 : tensor<i1> -> tensor<i1>
    %2 = lir.slot offset 0 size 16 : tensor<4xf32>
    lir.while %1 : tensor<i1> {
    ^bb0:
    } do {
      lir.launch @neg prologue ins(%2 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    }
  }
}

// -----

// A view begins where an element does
// CHECK: error: pass 'verify-stage': lir.view: expected a multiple of 4 bytes, the size of an element of [3] f32, got byte 2
builtin.module {
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.slot offset 0 size 64 : tensor<16xf32>
    %1 = lir.view %0 byte_offset 2 : tensor<16xf32> -> tensor<3xf32>
  }
}
