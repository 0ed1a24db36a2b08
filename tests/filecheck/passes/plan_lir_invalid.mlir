// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p plan-lir | filecheck %s

// CHECK: error: pass 'plan-lir': plan-lir: expected a function @main, the program
builtin.module {
  func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
}

// -----

builtin.module {
  func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
  func.func private @outer(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: expected no repeat in a repeated function
    %y = mir.repeat @inner(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.repeat @outer(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

builtin.module {
  hir.weight @w "w" : tensor<4xf32>
  func.func @main() -> (tensor<4xf32> {rlx.name = "y"}) {
    %w = mir.load_weight @w : tensor<4xf32>
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: output 'y' is a weight or a state
    func.return %w : tensor<4xf32>
  }
}

// -----

builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 15, one = 1, keys = past + one>} {
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32>) -> (tensor<?x16xf32, #hir.dims<keys, _>> {rlx.name = "y"}) {
    %k = mir.load_state @k : tensor<16x16xf32>
    %ks = mir.append %x to %k keys head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: output 'y' is a weight or a state
    func.return %ks : tensor<?x16xf32, #hir.dims<keys, _>>
  }
}

// -----

builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 15, one = 1, keys = past + one>} {
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  func.func private @layer(%x: tensor<?x16xf32, #hir.dims<keys, _>>) -> () {
    func.return
  }
  func.func @main(%x: tensor<1x16xf32>) -> () {
    %k = mir.load_state @k : tensor<16x16xf32>
    %ks = mir.append %x to %k keys head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: a view of a state is not an argument of a layer
    mir.repeat @layer(%ks) layers 0 to 2 : (tensor<?x16xf32, #hir.dims<keys, _>>) -> ()
    func.return
  }
}

// -----

builtin.module {
  hir.weight @w "w" : tensor<4xf32>
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %w = mir.load_weight @w : tensor<4xf32>
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: mir.binary reads the weight @w as it lies in its file, which only packing can: use it in a linear, a norm, a glu or an embedding
    %y = mir.binary add %x, %w : tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

builtin.module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: expected a weight to pack
    %p = mir.pack %x : tensor<4xf32> -> tensor<4x!hir.packed<f32>>
    func.return %x : tensor<4xf32>
  }
}

// -----

builtin.module {
  hir.weight @w "w" : tensor<4xf32>
  func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
  func.func @main() -> tensor<4xf32> {
    %w = mir.load_weight @w : tensor<4xf32>
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: mir.repeat hands on a weight or a state, expected a computed tensor
    %y = mir.repeat @layer(%w) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

builtin.module {
  hir.weight @w "w" : tensor<4xf32>
  func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
    %w = mir.load_weight @w : tensor<4xf32>
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: func.return hands on a weight or a state, expected a computed tensor
    func.return %w : tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.repeat @layer(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

builtin.module {
  func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: expected a repeat in the steady state or later
    %y = mir.repeat @layer(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32> {phase = #mir<phase prologue>}
    func.return %y : tensor<4xf32>
  }
}

// -----

builtin.module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': plan-lir: mir.unary is of the phase steady_state and needs a result of mir.unary, of the phase epilogue
    %z = mir.unary neg %y : tensor<4xf32> {phase = #mir<phase steady_state>}
    func.return %z : tensor<4xf32>
  }
}

// -----

builtin.module {
  // CHECK: :[[# @LINE + 1]]:3: error: pass 'plan-lir': plan-lir: expected a name for each, got x, x
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}, %y: tensor<4xf32> {rlx.name = "x"}) -> () {
    func.return
  }
}

// -----

builtin.module {
  // CHECK: :[[# @LINE + 1]]:3: error: pass 'plan-lir': plan-lir: expected a vector or a matrix, got [2, 3, 4] packed f32
  hir.weight @w "w" : tensor<2x3x4xf32>
  func.func @main() -> () {
    %w = mir.load_weight @w : tensor<2x3x4xf32>
    %p = mir.pack %w : tensor<2x3x4xf32> -> tensor<2x3x4x!hir.packed<f32>>
    func.return
  }
}

// -----

// CHECK: error: pass 'plan-lir': mir.repeat: expected a func.func @nowhere, there is none
builtin.module @no_callee {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.repeat @nowhere(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

// A function that is only declared can't be repeated, nor be the program.
builtin.module {
  func.func private @layer(tensor<4xf32>) -> tensor<4xf32>
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: :[[# @LINE + 1]]:5: error: pass 'plan-lir': mir.repeat: expected a function with a body, @layer is only declared
    %y = mir.repeat @layer(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

// CHECK: error: pass 'plan-lir': plan-lir: expected a function @main, the program
builtin.module {
  func.func private @main(tensor<4xf32>) -> tensor<4xf32>
}
