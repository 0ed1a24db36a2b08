// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p verify-plan | filecheck %s

// A sound plan.
// CHECK-LABEL: builtin.module
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// A slot on bytes that are needed later.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: live overlap: step 1 (@neg) writes %3 [0, 64) over %2 [0, 64), which is needed later
// CHECK-NEXT: read after overwrite: step 2 (@add) reads %2 [0, 64), overwritten by step 1 (@neg) with %3
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.kernel @add {
  ^bb0(%0: tensor<16xf32>, %1: tensor<16xf32>):
    %2 = mir.binary add %0, %1 : tensor<16xf32>
    mir.yield %2 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    %3 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%3 : tensor<16xf32>)
    lir.barrier
    lir.launch @add steady_state ins(%2, %3 : tensor<16xf32>, tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// Part of a slot is enough.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: not in place: @neg reads %2 [0, 128) and writes %3 [64, 128)
// CHECK-NEXT: live overlap: step 1 (@neg) writes %3 [64, 128) over %2 [0, 128), which the same step uses
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 128 : tensor<16xf32>
    %3 = lir.slot offset 64 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%3 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%3 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// A loop's next turn finds what its first turn has overwritten.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: live overlap: step 2 (@neg) writes %3 [0, 64) over %2 [0, 64), which is needed later
// CHECK-NEXT: read after overwrite: step 1 (@neg) reads %2 [0, 64), overwritten by step 2 (@neg) with %3
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.kernel @add {
  ^bb0(%0: tensor<16xf32>, %1: tensor<16xf32>):
    %2 = mir.binary add %0, %1 : tensor<16xf32>
    mir.yield %2 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    %3 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.loop 0 to 2 {
    ^bb0(%layer: index):
      lir.barrier
      lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
      lir.barrier
      lir.launch @neg steady_state ins(%1 : tensor<16xf32>) outs(%3 : tensor<16xf32>)
      lir.barrier
    }
  }
}

// -----

// A read of what nothing writes, or writes only later.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: unscheduled: step 0 (@add) reads %2 [0, 64), which no step writes
// CHECK-NEXT: use before write: step 0 (@add) reads %3 [64, 128), first written by step 1 (@neg)
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.kernel @add {
  ^bb0(%0: tensor<16xf32>, %1: tensor<16xf32>):
    %2 = mir.binary add %0, %1 : tensor<16xf32>
    mir.yield %2 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    %3 = lir.slot offset 64 size 64 : tensor<16xf32>
    lir.launch @add steady_state ins(%2, %3 : tensor<16xf32>, tensor<16xf32>) outs(%1 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%3 : tensor<16xf32>)
  }
}

// -----

// A result that nothing writes.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: unscheduled: no step writes all of output "y", a result
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
  }
}

// -----

// A product reads rows while others are written.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: not in place: @matmul reads %4 [0, 64) and writes %4 [0, 64)
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @matmul {
  ^bb0(%0: tensor<1x16xf32>, %1: tensor<16x16x!hir.packed<f32>>):
    %2 = mir.matmul %0, %1 : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32>
    mir.yield %2 : tensor<1x16xf32>
  }
  lir.kernel @pack {
  ^bb0(%0: tensor<16x16xf32>):
    %1 = mir.pack %0 : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    mir.yield %1 : tensor<16x16x!hir.packed<f32>>
  }
  lir.weight @w "w" offset 0 stride 1024 layers 0 to 1 source 0 : tensor<16x16x!hir.packed<f32>>
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 1024 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<1x16xf32>
    %1 = lir.output "y" index 0 : tensor<1x16xf32>
    %2 = lir.source @w : tensor<16x16xf32>
    %3 = lir.ref @w : tensor<16x16x!hir.packed<f32>>
    lir.launch @pack prologue ins(%2 : tensor<16x16xf32>) outs(%3 : tensor<16x16x!hir.packed<f32>>)
    %4 = lir.slot offset 0 size 64 : tensor<1x16xf32>
    %5 = lir.slot offset 64 size 64 : tensor<1x16xf32>
    lir.launch @matmul steady_state ins(%0, %3 : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>>) outs(%4 : tensor<1x16xf32>)
    lir.barrier
    lir.launch @matmul steady_state ins(%4, %3 : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>>) outs(%4 : tensor<1x16xf32>)
    lir.barrier
    lir.launch @matmul steady_state ins(%4, %3 : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>>) outs(%1 : tensor<1x16xf32>)
  }
}

// -----

// Two results in one place.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: written twice: @pair writes output "y" and output "y"
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @pair {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    %2 = mir.unary exp %0 : tensor<16xf32>
    mir.yield %1, %2 : tensor<16xf32>, tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    lir.launch @pair steady_state ins(%0 : tensor<16xf32>) outs(%1, %1 : tensor<16xf32>, tensor<16xf32>)
  }
}

// -----

// Scratch that is also a result; a slot of zeros is for scratch only.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: scratch in use: @neg has the scratch %3 [64, 128) and uses %3 [64, 128)
// CHECK-NEXT: zeroed slot written: @neg writes %2 [0, 64), which only scratch may use
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 zeroed : tensor<16xf32>
    %3 = lir.slot offset 64 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%3 : tensor<16xf32>) scratch(%3 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%3 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// An input is the caller's.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: input written: @neg writes input "x"
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%0 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// What the prologue makes is there for every step.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: live overlap: step 1 (@neg) writes %4 [1024, 1088) over %3 [1024, 2048), which is needed later
// CHECK-NEXT: output clobbered: %3 [1024, 2048) is overwritten by step 1 (@neg) with %4
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.kernel @table {
    %0, %1 = mir.rope_table base 1.0e+04 : tensor<16x16xf32>, tensor<16x16xf32>
    mir.yield %0, %1 : tensor<16x16xf32>, tensor<16x16xf32>
  }
  lir.program @main arena 2048 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 1024 : tensor<16x16xf32>
    %3 = lir.slot offset 1024 size 1024 : tensor<16x16xf32>
    %4 = lir.slot offset 1024 size 64 : tensor<16xf32>
    lir.launch @table prologue ins() outs(%2, %3 : tensor<16x16xf32>, tensor<16x16xf32>)
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%4 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%4 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// Neither may a step write it by its own name.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: prologue result written: @neg writes %2 [0, 64) at every step
// CHECK-NEXT: use before write: step 0 (@neg) reads %2 [0, 64), first written by step 0 (@neg)
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    %3 = lir.slot offset 64 size 64 : tensor<16xf32>
    lir.launch @neg prologue ins(%2 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.barrier
    lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// No barrier between a write and a read, a read and a write, two writes.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: missing barrier: @neg touches %2 [0, 64), @neg touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: missing barrier: @neg touches %3 [0, 64), @neg touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    %3 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%3 : tensor<16xf32>)
  }
}

// -----

// A barrier at the end of a loop's body is missing.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: missing barrier: @neg in layer 1 touches %2 [0, 64), @neg in layer 0 touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: missing barrier: @neg in layer 2 touches %2 [0, 64), @neg in layer 1 touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: missing barrier: @neg in layer 3 touches %2 [0, 64), @neg in layer 2 touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.loop 0 to 4 {
    ^bb0(%layer: index):
      lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
      lir.barrier
      lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
    }
  }
}

// -----

// A step has no barrier before its first launch in the text: it belongs to the prologue.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: missing barrier: @neg in layer 1 touches %2 [0, 64), @neg in layer 0 touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: missing barrier: @neg in layer 2 touches %2 [0, 64), @neg in layer 1 touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: missing barrier: @neg in layer 3 touches %2 [0, 64), @neg in layer 2 touches %2 [0, 64), and no barrier is between them
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    lir.loop 0 to 4 {
    ^bb0(%layer: index):
      lir.barrier
      lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
      lir.barrier
      lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
    }
  }
}

// -----

// States are the layer's own: those of other layers need no barrier, layer 0's outside of loops does.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: missing barrier: @attention touches @k of layer 0, @append in layer 0 touches @k of layer 0, and no barrier is between them
// CHECK-NEXT: in builtin.module:
builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 15, one = 1, keys = past + one>} {
  lir.state @k keys head_dim 16 offset 0 stride 1024 layers 0 to 2 : tensor<16x16xf32>
  lir.kernel @append {
  ^bb0(%0: tensor<1x16xf32>, %1: tensor<16x16xf32>):
    %2 = mir.append %0 to %1 keys head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    mir.yield
  }
  lir.kernel @attention {
  ^bb0(%0: tensor<1x16xf32>, %1: tensor<16x16xf32>):
    %2 = mir.first_rows %1 : tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %3 = mir.attention %0, %2, %2 head_dim 16 scale 0.25 : tensor<1x16xf32>, tensor<?x16xf32, #hir.dims<keys, _>>
    mir.yield %3 : tensor<1x16xf32>
  }
  lir.program @main arena 320 lower_bound 0 alignment 64 state 2048 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<1x16xf32>
    %1 = lir.output "y" index 0 : tensor<1x16xf32>
    lir.loop 0 to 2 {
    ^bb0(%layer: index):
      %2 = lir.ref @k layer %layer : tensor<16x16xf32>
      lir.launch @append steady_state ins(%0, %2 : tensor<1x16xf32>, tensor<16x16xf32>) outs()
    }
    %3 = lir.ref @k : tensor<16x16xf32>
    %4 = lir.slot offset 0 size 320 zeroed : tensor<320xi8>
    lir.launch @attention steady_state ins(%0, %3 : tensor<1x16xf32>, tensor<16x16xf32>) outs(%1 : tensor<1x16xf32>) scratch(%4 : tensor<320xi8>)
  }
}

// -----

// The token is handed on by the first thread, which has drawn it; another's copy is not there yet, and an input is still read.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: missing barrier: the hand-over to the next step touches output "id", @copy touches output "id", and no barrier is between them
// CHECK-NEXT: in builtin.module:
builtin.module attributes {rlx.carry = {token = "id"}} {
  lir.kernel @sample {
  ^bb0(%0: tensor<1x16xf32>, %1: tensor<8xi32>):
    %2 = mir.sample %0, %1 : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32>
    mir.yield %2 : tensor<1xi32>
  }
  lir.kernel @copy {
  ^bb0(%0: tensor<1xi32>):
    mir.yield %0 : tensor<1xi32>
  }
  lir.program @main arena 384 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "token" index 0 : tensor<1xi32>
    %1 = lir.input "logits" index 1 : tensor<1x16xf32>
    %2 = lir.input "params" index 2 : tensor<8xi32>
    %3 = lir.output "drawn" index 0 : tensor<1xi32>
    %4 = lir.output "id" index 1 : tensor<1xi32>
    %5 = lir.slot offset 0 size 384 : tensor<384xi8>
    lir.launch @sample steady_state ins(%1, %2 : tensor<1x16xf32>, tensor<8xi32>) outs(%3 : tensor<1xi32>) scratch(%5 : tensor<384xi8>)
    lir.launch @copy steady_state ins(%0 : tensor<1xi32>) outs(%4 : tensor<1xi32>)
  }
}

// -----

// A layer whose weight is never packed.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: never packed: @matmul in layer 2 reads @w of layer 2
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.weight @w "w.{layer}" offset 0 stride 1024 layers 0 to 3 source 0 : tensor<16x16x!hir.packed<f32>>
  lir.kernel @matmul {
  ^bb0(%0: tensor<1x16xf32>, %1: tensor<16x16x!hir.packed<f32>>):
    %2 = mir.matmul %0, %1 : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32>
    mir.yield %2 : tensor<1x16xf32>
  }
  lir.kernel @pack {
  ^bb0(%0: tensor<16x16xf32>):
    %1 = mir.pack %0 : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    mir.yield %1 : tensor<16x16x!hir.packed<f32>>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 3072 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<1x16xf32>
    %1 = lir.output "y" index 0 : tensor<1x16xf32>
    lir.loop 0 to 2 {
    ^bb0(%layer: index):
      %2 = lir.source @w layer %layer : tensor<16x16xf32>
      %3 = lir.ref @w layer %layer : tensor<16x16x!hir.packed<f32>>
      lir.launch @pack prologue ins(%2 : tensor<16x16xf32>) outs(%3 : tensor<16x16x!hir.packed<f32>>)
    }
    lir.loop 0 to 3 {
    ^bb0(%layer_1: index):
      %4 = lir.ref @w layer %layer_1 : tensor<16x16x!hir.packed<f32>>
      lir.launch @matmul steady_state ins(%0, %4 : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>>) outs(%1 : tensor<1x16xf32>)
      lir.barrier
    }
  }
}

// -----

// Packing is the only use of a source, and belongs to the prologue.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: unscheduled: no step writes all of output "y", a result
// CHECK-NEXT: late packing: @pack runs in the steady_state, expected the prologue
// CHECK-NEXT: unpacked weight: @neg reads a weight's source, which only packing may
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.weight @w "w" offset 0 stride 1024 layers 0 to 1 source 0 : tensor<16x16x!hir.packed<f32>>
  lir.weight @v "v" offset 1024 stride 64 layers 0 to 1 source 1 : tensor<16x!hir.packed<f32>>
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.kernel @pack {
  ^bb0(%0: tensor<16x16xf32>):
    %1 = mir.pack %0 : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    mir.yield %1 : tensor<16x16x!hir.packed<f32>>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 1088 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.source @w : tensor<16x16xf32>
    %3 = lir.ref @w : tensor<16x16x!hir.packed<f32>>
    %4 = lir.source @v : tensor<16xf32>
    lir.launch @pack steady_state ins(%2 : tensor<16x16xf32>) outs(%3 : tensor<16x16x!hir.packed<f32>>)
    lir.launch @neg steady_state ins(%4 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// Members and segments.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: member overlap: weight @a has members of 1024 bytes and a stride of 512
// CHECK-NEXT: out of segment: weight @b at [1024, 2048), the segment has 1536 bytes
// CHECK-NEXT: segment overlap: weight @a ends at 1536, weight @b starts at 1024
// CHECK-NEXT: misaligned: state @k at 32, stride 1024, expected multiples of 64
// CHECK-NEXT: bad source: the sources of weight @b start at 2, got 1
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.weight @a "a.{layer}" offset 0 stride 512 layers 0 to 2 source 0 : tensor<16x16x!hir.packed<f32>>
  lir.weight @b "b" offset 1024 stride 0 layers 0 to 1 source 1 : tensor<16x16x!hir.packed<f32>>
  lir.state @k keys head_dim 16 offset 32 stride 1024 layers 0 to 2 : tensor<16x16xf32>
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 2080 weights 1536 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// A view is part of its slot.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: missing barrier: @neg touches %2 [0, 64), @half touches %4 [0, 32), and no barrier is between them
// CHECK-NEXT: in builtin.module:
builtin.module {
  lir.kernel @neg {
  ^bb0(%0: tensor<16xf32>):
    %1 = mir.unary neg %0 : tensor<16xf32>
    mir.yield %1 : tensor<16xf32>
  }
  lir.kernel @half {
  ^bb0(%0: tensor<8xf32>):
    %1 = mir.unary neg %0 : tensor<8xf32>
    mir.yield %1 : tensor<8xf32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<16xf32>
    %1 = lir.output "y" index 0 : tensor<16xf32>
    %2 = lir.slot offset 0 size 64 : tensor<16xf32>
    %3 = lir.view %2 byte_offset 32 : tensor<16xf32> -> tensor<8xf32>
    %4 = lir.view %2 byte_offset 0 : tensor<16xf32> -> tensor<8xf32>
    lir.launch @neg steady_state ins(%0 : tensor<16xf32>) outs(%2 : tensor<16xf32>)
    lir.barrier
    lir.launch @half steady_state ins(%3 : tensor<8xf32>) outs(%4 : tensor<8xf32>)
    lir.launch @neg steady_state ins(%2 : tensor<16xf32>) outs(%1 : tensor<16xf32>)
  }
}

// -----

// Neither may a view of an input be written, nor, at every step, a view of what the prologue made.
// CHECK: error: pass 'verify-plan': verify-plan:
// CHECK-NEXT: input written: @neg writes
// CHECK-NEXT: prologue result written: @neg writes
builtin.module {
  lir.kernel @fill {
    %0 = mir.constant dense<1.0> : tensor<4xf32>
    mir.yield %0 : tensor<4xf32>
  }
  lir.kernel @neg {
  ^bb0(%0: tensor<2xf32>):
    %1 = mir.unary neg %0 : tensor<2xf32>
    mir.yield %1 : tensor<2xf32>
  }
  lir.program @main arena 64 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.input "x" index 0 : tensor<4xf32>
    %1 = lir.output "y" index 0 : tensor<2xf32>
    %2 = lir.slot offset 0 size 16 : tensor<4xf32>
    %3 = lir.view %0 byte_offset 8 : tensor<4xf32> -> tensor<2xf32>
    %4 = lir.view %2 byte_offset 8 : tensor<4xf32> -> tensor<2xf32>
    lir.launch @fill prologue ins() outs(%2 : tensor<4xf32>)
    lir.launch @neg steady_state ins(%3 : tensor<2xf32>) outs(%3 : tensor<2xf32>)
    lir.launch @neg steady_state ins(%4 : tensor<2xf32>) outs(%4 : tensor<2xf32>)
    lir.launch @neg steady_state ins(%4 : tensor<2xf32>) outs(%1 : tensor<2xf32>)
  }
}
