// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p 'verify-stage{stage=mir}' | filecheck %s

// An operation of another stage
// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': hir.load_weight: not allowed in func.func at stage mir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "w" : tensor<4xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.load_weight @w : tensor<4xf32>
    func.return
  }
}

// -----

// Kernels do not nest
// CHECK: :[[# @LINE + 4]]:7: error: pass 'verify-stage': mir.kernel: not allowed in mir.kernel at stage mir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.kernel -> (tensor<4x64xf32>) {
      %b = mir.kernel -> (tensor<4x64xf32>) {
        mir.yield %x : tensor<4x64xf32>
      }
      mir.yield %b : tensor<4x64xf32>
    }
    func.return
  }
}

// -----

// State
// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': mir.load_state: expected a hir.state @v, there is none
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.load_state @v : tensor<32x64xf32>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': mir.load_state: @k is declared as [32, 64] f32, got [16, 64] f32
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.load_state @k : tensor<16x64xf32>
    func.return
  }
}

// -----

// A phase of another type
// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': mir.unary: expected phase to be a phase, got "prologue"
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.unary exp %x : tensor<4x64xf32> {phase = "prologue"}
    func.return
  }
}
