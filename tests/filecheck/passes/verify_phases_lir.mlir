// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p 'verify-stage{stage=lir}' | filecheck %s

// A launch in an earlier phase than the one that writes what it reads.
// CHECK: lir.launch: of the phase steady_state reads what @exp writes, of the phase epilogue
builtin.module @m {
  lir.kernel @exp {
  ^bb0(%0: tensor<4xf32>):
    %1 = mir.unary exp %0 : tensor<4xf32>
    mir.yield %1 : tensor<4xf32>
  }
  lir.program @m arena 64 lower_bound 64 alignment 64 state 0 weights 0 fingerprint "0" {
    %0 = lir.input "x" index 0 : tensor<4xf32>
    %1 = lir.output "y" index 0 : tensor<4xf32>
    %2 = lir.slot offset 0 size 16 : tensor<4xf32>
    lir.launch @exp epilogue ins(%0 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    lir.barrier
    lir.launch @exp steady_state ins(%2 : tensor<4xf32>) outs(%1 : tensor<4xf32>)
    lir.barrier
  }
}

// -----

// The same through a view.
// CHECK: lir.launch: of the phase steady_state reads what @exp writes, of the phase epilogue
builtin.module @m {
  lir.kernel @exp {
  ^bb0(%0: tensor<4xf32>):
    %1 = mir.unary exp %0 : tensor<4xf32>
    mir.yield %1 : tensor<4xf32>
  }
  lir.program @m arena 64 lower_bound 64 alignment 64 state 0 weights 0 fingerprint "0" {
    %0 = lir.input "x" index 0 : tensor<4xf32>
    %1 = lir.output "y" index 0 : tensor<4xf32>
    %2 = lir.slot offset 0 size 16 : tensor<4xf32>
    lir.launch @exp epilogue ins(%0 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    lir.barrier
    %3 = lir.view %2 byte_offset 0 : tensor<4xf32> -> tensor<4xf32>
    lir.launch @exp steady_state ins(%3 : tensor<4xf32>) outs(%1 : tensor<4xf32>)
    lir.barrier
  }
}

// -----

// The prologue has no inputs.
// CHECK: lir.launch: the prologue reads the input "x", which comes with each step
builtin.module @m {
  lir.kernel @exp {
  ^bb0(%0: tensor<4xf32>):
    %1 = mir.unary exp %0 : tensor<4xf32>
    mir.yield %1 : tensor<4xf32>
  }
  lir.program @m arena 64 lower_bound 64 alignment 64 state 0 weights 0 fingerprint "0" {
    %0 = lir.input "x" index 0 : tensor<4xf32>
    %1 = lir.output "y" index 0 : tensor<4xf32>
    %2 = lir.slot offset 0 size 16 : tensor<4xf32>
    lir.launch @exp prologue ins(%0 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    lir.barrier
    lir.launch @exp steady_state ins(%2 : tensor<4xf32>) outs(%1 : tensor<4xf32>)
    lir.barrier
  }
}

// -----

// A slot that is written again is that of its last launch.
// CHECK: lir.program @m
builtin.module @m {
  lir.kernel @exp {
  ^bb0(%0: tensor<4xf32>):
    %1 = mir.unary exp %0 : tensor<4xf32>
    mir.yield %1 : tensor<4xf32>
  }
  lir.program @m arena 64 lower_bound 64 alignment 64 state 0 weights 0 fingerprint "0" {
    %0 = lir.input "x" index 0 : tensor<4xf32>
    %1 = lir.output "y" index 0 : tensor<4xf32>
    %2 = lir.slot offset 0 size 16 : tensor<4xf32>
    lir.launch @exp steady_state ins(%0 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    lir.barrier
    lir.launch @exp steady_state ins(%2 : tensor<4xf32>) outs(%2 : tensor<4xf32>)
    lir.barrier
    lir.launch @exp epilogue ins(%2 : tensor<4xf32>) outs(%1 : tensor<4xf32>)
    lir.barrier
  }
}
