// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p 'verify-stage{stage=hir}' | filecheck %s

// An operation of another stage
// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': mir.load_weight: not allowed in func.func at stage hir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "w" : tensor<4xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.load_weight @w : tensor<4xf32>
    func.return
  }
}

// -----

// A declaration in a function
// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': hir.weight: not allowed in func.func at stage hir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func @f(%x: tensor<4x64xf32>) {
    hir.weight @w "w" : tensor<4xf32>
    func.return
  }
}

// -----

// An operation outside a function
// CHECK: :[[# @LINE + 2]]:3: error: pass 'verify-stage': hir.rope_table: not allowed in builtin.module at stage hir
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  %c, %s = hir.rope_table base 1.0e+05 : tensor<32x16xf32>, tensor<32x16xf32>
}

// -----

// Dimensions that are not declared
// CHECK: :[[# @LINE + 2]]:3: error: func.func: dimension 'rows' is not declared: rlx.dims declares seq, past, keys
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func @f(%x: tensor<?x64xf32, #hir.dims<rows, _>>) {
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 3]]:5: error: hir.last_rows: dimension 'rows' is not declared: rlx.dims declares seq, past, keys
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.last_rows %x : tensor<4x64xf32> -> tensor<?x64xf32, #hir.dims<rows, _>>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: hir.append: dimension 'position' is not declared: rlx.dims declares seq, past, keys
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.append %x to @k start "position" : tensor<4x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: expected rlx.dims to be a #hir.dim_table, got 3 : i64
builtin.module attributes {rlx.dims = 3} {
  func.func @f(%x: tensor<4x64xf32>) {
    func.return
  }
}

// -----

// What a step carries and advances
// CHECK: :[[# @LINE + 1]]:1: error: pass 'verify-stage': builtin.module: rlx.advance names 'position', a dimension not declared
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>, rlx.advance = {past = "position"}} {
  func.func @main(%x: tensor<4x64xf32>) {
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: pass 'verify-stage': builtin.module: expected rlx.advance to be a dictionary of strings, got ["past"]
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>, rlx.advance = ["past"]} {
  func.func @main(%x: tensor<4x64xf32>) {
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: pass 'verify-stage': builtin.module: expected rlx.advance.past to be a string, got 3 : i64
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>, rlx.advance = {past = 3}} {
  func.func @main(%x: tensor<4x64xf32>) {
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: pass 'verify-stage': builtin.module: rlx.carry feeds output 'token' to input 'tokens': expected outputs ['id'] and inputs ['tokens']
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>, rlx.carry = {tokens = "token"}} {
  func.func @main(%t: tensor<1xi32> {rlx.name = "tokens"}) -> (tensor<1xi32> {rlx.name = "id"}) {
    func.return %t : tensor<1xi32>
  }
}

// -----

// Weights
// CHECK: :[[# @LINE + 5]]:5: error: pass 'verify-stage': hir.load_weight: expected a hir.weight @v, there is none
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "blk.{layer}.w" : tensor<64x64xf32>
  hir.weight @e "e" : tensor<64x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.load_weight @v : tensor<64x64xf32>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 5]]:5: error: pass 'verify-stage': hir.load_weight: expected a hir.weight @f, that is a func.func
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "blk.{layer}.w" : tensor<64x64xf32>
  hir.weight @e "e" : tensor<64x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.load_weight @f : tensor<64x64xf32>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 5]]:5: error: pass 'verify-stage': hir.load_weight: @e is declared as [64, 64] f32, got [64, 32] f32
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "blk.{layer}.w" : tensor<64x64xf32>
  hir.weight @e "e" : tensor<64x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.load_weight @e : tensor<64x32xf32>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 5]]:5: error: pass 'verify-stage': hir.load_weight: @w is a family, one weight for each layer, which only a repeated function can load; nothing repeats @f
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "blk.{layer}.w" : tensor<64x64xf32>
  hir.weight @e "e" : tensor<64x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.load_weight @w : tensor<64x64xf32>
    func.return
  }
}

// -----

// State
// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': hir.append: expected a hir.state @v, there is none
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf32>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.append %x to @v start "past" : tensor<4x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': hir.append: expected rows as wide as @k, [32, 64] f32, got [4, 32] f32
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf32>
  func.func @f(%x: tensor<4x32xf32>) {
    %a = hir.append %x to @k start "past" : tensor<4x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    func.return
  }
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': hir.append: @k is declared as [32, 64] f16, got [keys, 64] f32
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<32x64xf16>
  func.func @f(%x: tensor<4x64xf32>) {
    %a = hir.append %x to @k start "past" : tensor<4x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
    func.return
  }
}

// -----

// Repeated functions
// CHECK: :[[# @LINE + 3]]:5: error: pass 'verify-stage': hir.repeat: expected a func.func @layer, there is none
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
    %y = hir.repeat @layer(%x) layers 0 to 2 : (tensor<4x64xf32>) -> tensor<4x64xf32>
    func.return %y : tensor<4x64xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 5]]:5: error: pass 'verify-stage': hir.repeat: expected a func.func @w, that is a hir.weight
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  hir.weight @w "blk.{layer}.w" : tensor<64x64xf32>
  hir.weight @e "e" : tensor<64x64xf32>
  func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
    %y = hir.repeat @w(%x) layers 0 to 2 : (tensor<4x64xf32>) -> tensor<4x64xf32>
    func.return %y : tensor<4x64xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 7]]:5: error: pass 'verify-stage': hir.repeat: @layer returns ([1, 64] f32), got ([4, 64] f32)
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func private @layer(%x: tensor<4x64xf32>) -> tensor<1x64xf32> {
    %r = hir.last_rows %x : tensor<4x64xf32> -> tensor<1x64xf32>
    func.return %r : tensor<1x64xf32>
  }
  func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
    %y = hir.repeat @layer(%x) layers 0 to 2 : (tensor<4x64xf32>) -> tensor<4x64xf32>
    func.return %y : tensor<4x64xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 6]]:5: error: pass 'verify-stage': hir.repeat: @layer takes ([1, 64] f32, [4, 64] f32), got ([4, 64] f32)
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func private @layer(%x: tensor<1x64xf32>, %y: tensor<4x64xf32>) -> tensor<4x64xf32> {
    func.return %y : tensor<4x64xf32>
  }
  func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
    %y = hir.repeat @layer(%x) layers 0 to 2 : (tensor<4x64xf32>) -> tensor<4x64xf32>
    func.return %y : tensor<4x64xf32>
  }
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: pass 'verify-stage': func.func: @layer repeats itself
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8, past = 0 to 24, keys = past + seq>} {
  func.func private @layer(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
    %y = hir.repeat @layer(%x) layers 0 to 2 : (tensor<4x64xf32>) -> tensor<4x64xf32>
    func.return %y : tensor<4x64xf32>
  }
}

// -----

// A repeat of a function that is only declared
// CHECK: :[[# @LINE + 4]]:5: error: pass 'verify-stage': hir.repeat: expected a function with a body, @layer is only declared
builtin.module {
  func.func private @layer(tensor<4xf32>) -> tensor<4xf32>
  func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = hir.repeat @layer(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}
