// RUN: rlx-opt %s -p cse | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 8, keys = 1 to 9>} {
  hir.weight @w "w" : tensor<32x32xf32>
  hir.state @keys keys head_dim 16 : tensor<32x32xf32>

  // Loads, packs and tables; the order of attributes and the operands of a sum don't matter.
  func.func @straight(%x: tensor<1x32xf32>) -> (tensor<1x32xf32>, tensor<1x32xf32>, tensor<32x16xf32>) {
    %w = mir.load_weight @w : tensor<32x32xf32>
    %p = mir.pack %w : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>>
    %v = mir.load_weight @w : tensor<32x32xf32>
    %q = mir.pack %v : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>>
    %a = mir.matmul %x, %p : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %b = mir.matmul %x, %q : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
    %c = mir.binary add %a, %x : tensor<1x32xf32> {m = 1 : i64, n = 2 : i64}
    %d = mir.binary add %x, %b : tensor<1x32xf32> {n = 2 : i64, m = 1 : i64}
    %cos, %sin = mir.rope_table base 10000.0 : tensor<32x16xf32>, tensor<32x16xf32>
    %cos2, %sin2 = mir.rope_table base 10000.0 : tensor<32x16xf32>, tensor<32x16xf32>
    %t = mir.binary mul %cos, %sin2 : tensor<32x16xf32>
    func.return %c, %d, %t : tensor<1x32xf32>, tensor<1x32xf32>, tensor<32x16xf32>
  }
  // CHECK-LABEL: func.func @straight(
  // CHECK-NEXT:   %w = mir.load_weight @w : tensor<32x32xf32>
  // CHECK-NEXT:   %p = mir.pack %w : tensor<32x32xf32> -> tensor<32x32x!hir.packed<f32>>
  // CHECK-NEXT:   %a = mir.matmul %x, %p : tensor<1x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<1x32xf32>
  // CHECK-NEXT:   %c = mir.binary add %a, %x : tensor<1x32xf32> {m = 1 : i64, n = 2 : i64}
  // CHECK-NEXT:   %cos, %sin = mir.rope_table base 10000.0 : tensor<32x16xf32>, tensor<32x16xf32>
  // CHECK-NEXT:   %t = mir.binary mul %cos, %sin : tensor<32x16xf32>
  // CHECK-NEXT:   func.return %c, %c, %t : tensor<1x32xf32>, tensor<1x32xf32>, tensor<32x16xf32>

  // Refused: another property, another type, another order of operands, another phase.
  func.func @apart(%x: tensor<4xf32>, %y: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf32>) {
    %a = mir.unary neg %x : tensor<4xf32>
    %b = mir.unary abs %x : tensor<4xf32>
    %c = mir.binary sub %x, %y : tensor<4xf32>
    %d = mir.binary sub %y, %x : tensor<4xf32>
    %e = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase steady_state>}
    %f = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
    %g = mir.cast %i : tensor<4xi32> -> tensor<4xf64>
    %h = mir.cast %i : tensor<4xi32> -> tensor<4xf32>
    func.return %a, %b, %c, %d, %e, %f, %g, %h : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func @apart(
  // CHECK-NEXT:   %a = mir.unary neg %x : tensor<4xf32>
  // CHECK-NEXT:   %b = mir.unary abs %x : tensor<4xf32>
  // CHECK-NEXT:   %c = mir.binary sub %x, %y : tensor<4xf32>
  // CHECK-NEXT:   %d = mir.binary sub %y, %x : tensor<4xf32>
  // CHECK-NEXT:   %e = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %f = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
  // CHECK-NEXT:   %g = mir.cast %i : tensor<4xi32> -> tensor<4xf64>
  // CHECK-NEXT:   %h = mir.cast %i : tensor<4xi32> -> tensor<4xf32>
  // CHECK-NEXT:   func.return %a, %b, %c, %d, %e, %f, %g, %h : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf32>

  // A value from outside replaces one in a branch; one branch gives nothing to the other or after.
  func.func @branches(%x: tensor<4xf32>, %c: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %a = mir.unary exp %x : tensor<4xf32>
    %y = mir.if %c -> (tensor<4xf32>) {
      %b = mir.unary exp %x : tensor<4xf32>
      %n = mir.unary neg %b : tensor<4xf32>
      mir.yield %n : tensor<4xf32>
    } else {
      %n = mir.unary neg %a : tensor<4xf32>
      mir.yield %n : tensor<4xf32>
    } : tensor<i1>
    %n = mir.unary neg %a : tensor<4xf32>
    func.return %a, %y, %n : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func @branches(
  // CHECK-NEXT:   %a = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:   %y = mir.if %c -> (tensor<4xf32>) {
  // CHECK-NEXT:     %n = mir.unary neg %a : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %n : tensor<4xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     %n_1 = mir.unary neg %a : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %n_1 : tensor<4xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   %n_2 = mir.unary neg %a : tensor<4xf32>
  // CHECK-NEXT:   func.return %a, %y, %n_2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>

  // A loop in a layer: both regions see what is outside; its arguments are values of their own.
  func.func private @layer(%x: tensor<4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
    %one = mir.constant dense<1> : tensor<i32>
    %e = mir.unary exp %x : tensor<4xf32>
    %n, %y = mir.while (%i, %e) {
    ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
      %o = mir.constant dense<1> : tensor<i32>
      %c = mir.compare lt %k, %o : tensor<i32> -> tensor<i1>
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
      %o = mir.constant dense<1> : tensor<i32>
      %m = mir.binary add %k, %o : tensor<i32>
      %f = mir.unary exp %x : tensor<4xf32>
      %g = mir.unary exp %v : tensor<4xf32>
      %s = mir.binary add %f, %g : tensor<4xf32>
      mir.yield %m, %s : tensor<i32>, tensor<4xf32>
    } : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
    %r = mir.binary add %e, %y : tensor<4xf32>
    func.return %r : tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %one = mir.constant dense<1> : tensor<i32>
  // CHECK-NEXT:   %e = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:   %n, %y = mir.while(%i, %e) {
  // CHECK-NEXT:   ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
  // CHECK-NEXT:     %c = mir.compare lt %k, %one : tensor<i32> -> tensor<i1>
  // CHECK-NEXT:     mir.yield %c : tensor<i1>
  // CHECK-NEXT:   } do {
  // CHECK-NEXT:   ^bb0(%k_1: tensor<i32>, %v_1: tensor<4xf32>):
  // CHECK-NEXT:     %m = mir.binary add %k_1, %one : tensor<i32>
  // CHECK-NEXT:     %g = mir.unary exp %v_1 : tensor<4xf32>
  // CHECK-NEXT:     %s = mir.binary add %e, %g : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %m, %s : tensor<i32>, tensor<4xf32>
  // CHECK-NEXT:   } : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
  // CHECK-NEXT:   %r = mir.binary add %e, %y : tensor<4xf32>
  // CHECK-NEXT:   func.return %r : tensor<4xf32>

  // Kernels and branches that compute the same are one; a kernel's inside is left alone.
  func.func @wholes(%x: tensor<4xf32>, %c: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %e = mir.unary exp %x : tensor<4xf32>
    %k = mir.kernel -> (tensor<4xf32>) {
      %a = mir.unary exp %x : tensor<4xf32>
      %b = mir.unary neg %a : tensor<4xf32>
      mir.yield %b : tensor<4xf32>
    }
    %l = mir.kernel -> (tensor<4xf32>) {
      %p = mir.unary exp %x : tensor<4xf32>
      %q = mir.unary neg %p : tensor<4xf32>
      mir.yield %q : tensor<4xf32>
    }
    %m = mir.kernel -> (tensor<4xf32>) {
      %p = mir.unary exp %x : tensor<4xf32>
      %q = mir.unary neg %p : tensor<4xf32>
      mir.yield %p : tensor<4xf32>
    }
    %i = mir.if %c -> (tensor<4xf32>) {
      %a = mir.unary abs %x : tensor<4xf32>
      mir.yield %a : tensor<4xf32>
    } else {
      mir.yield %x : tensor<4xf32>
    } : tensor<i1>
    %j = mir.if %c -> (tensor<4xf32>) {
      %b = mir.unary abs %x : tensor<4xf32>
      mir.yield %b : tensor<4xf32>
    } else {
      mir.yield %x : tensor<4xf32>
    } : tensor<i1>
    func.return %k, %l, %m, %i, %j : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func @wholes(
  // CHECK-NEXT:   %e = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:   %k = mir.kernel -> (tensor<4xf32>) {
  // CHECK-NEXT:     %a = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:     %b = mir.unary neg %a : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %b : tensor<4xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %m = mir.kernel -> (tensor<4xf32>) {
  // CHECK-NEXT:     %p = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:     %q = mir.unary neg %p : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %p : tensor<4xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %i = mir.if %c -> (tensor<4xf32>) {
  // CHECK-NEXT:     %a_1 = mir.unary abs %x : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %a_1 : tensor<4xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     mir.yield %x : tensor<4xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   func.return %k, %k, %m, %i, %i : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>

  // What reads a state is merged up to the next append, and loads of a state everywhere.
  func.func @state(%q: tensor<1x32xf32>, %x: tensor<1x32xf32>) -> (tensor<1x32xf32>, tensor<1x32xf32>, tensor<1x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>) {
    %s = mir.load_state @keys : tensor<32x32xf32>
    %t = mir.load_state @keys : tensor<32x32xf32>
    %k = mir.append %x to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %a = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
    %b = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
    %m = mir.unary neg %s : tensor<32x32xf32>
    %l = mir.append %x to %t keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %c = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
    %n = mir.unary neg %s : tensor<32x32xf32>
    func.return %a, %b, %c, %m, %n : tensor<1x32xf32>, tensor<1x32xf32>, tensor<1x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>
  }
  // CHECK-LABEL: func.func @state(
  // CHECK-NEXT:   %s = mir.load_state @keys : tensor<32x32xf32>
  // CHECK-NEXT:   %k = mir.append %x to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %a = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %m = mir.unary neg %s : tensor<32x32xf32>
  // CHECK-NEXT:   %l = mir.append %x to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %c = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %n = mir.unary neg %s : tensor<32x32xf32>
  // CHECK-NEXT:   func.return %a, %a, %c, %m, %n : tensor<1x32xf32>, tensor<1x32xf32>, tensor<1x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>
}
