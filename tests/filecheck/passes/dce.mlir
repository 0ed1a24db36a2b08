// RUN: rlx-opt %s -p dce | filecheck %s
// RUN: rlx-opt %s -p 'dce{remove-declarations=true}' | filecheck %s --check-prefix=REMOVE

builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 8, keys = 1 to 9>} {
  hir.weight @used "u" : tensor<4xf32>
  hir.weight @unused "v" : tensor<4xf32>
  hir.state @keys keys head_dim 16 : tensor<32x32xf32>
  hir.state @forgotten keys head_dim 16 : tensor<32x32xf32>
  // CHECK:      hir.weight @used
  // CHECK-NEXT: hir.weight @unused
  // CHECK-NEXT: hir.state @keys
  // CHECK-NEXT: hir.state @forgotten
  // REMOVE:      hir.weight @used
  // REMOVE-NEXT: hir.state @keys
  // REMOVE-NEXT: func.func @chain

  // A chain that nothing uses; an append has an effect; declarations stay without the option.
  func.func @chain(%x: tensor<4xf32>, %r: tensor<1x32xf32>) -> tensor<4xf32> {
    %a = mir.unary exp %x : tensor<4xf32>
    %b = mir.unary neg %a : tensor<4xf32>
    %w = mir.load_weight @used : tensor<4xf32>
    %v = mir.load_weight @unused : tensor<4xf32>
    %s = mir.load_state @keys : tensor<32x32xf32>
    %k = mir.append %r to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %d = mir.attention %r, %k, %k head_dim 16 scale 0.25 : tensor<1x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
    %y = mir.binary add %x, %w : tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  // CHECK-LABEL: func.func @chain(%x: tensor<4xf32>, %r: tensor<1x32xf32>) -> tensor<4xf32> {
  // CHECK-NEXT:   %w = mir.load_weight @used : tensor<4xf32>
  // CHECK-NEXT:   %s = mir.load_state @keys : tensor<32x32xf32>
  // CHECK-NEXT:   %k = mir.append %r to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %y = mir.binary add %x, %w : tensor<4xf32>
  // CHECK-NEXT:   func.return %y : tensor<4xf32>

  // Results that nothing uses leave their branches, loops and kernels; dead ones go as a whole.
  func.func @regions(%x: tensor<4xf32>, %c: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) {
    %i, %j = mir.if %c -> (tensor<4xf32>, tensor<4xf32>) {
      %a = mir.unary exp %x : tensor<4xf32>
      %b = mir.unary neg %x : tensor<4xf32>
      mir.yield %a, %b : tensor<4xf32>, tensor<4xf32>
    } else {
      mir.yield %x, %x : tensor<4xf32>, tensor<4xf32>
    } : tensor<i1>
    %k, %l = mir.kernel -> (tensor<4xf32>, tensor<4xf32>) {
      %a = mir.unary exp %j : tensor<4xf32>
      %b = mir.unary neg %j : tensor<4xf32>
      mir.yield %a, %b : tensor<4xf32>, tensor<4xf32>
    }
    %dead = mir.if %c -> (tensor<4xf32>) {
      mir.yield %x : tensor<4xf32>
    } else {
      mir.yield %l : tensor<4xf32>
    } : tensor<i1>
    func.return %i, %k : tensor<4xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func @regions(%x: tensor<4xf32>, %c: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT:   %i, %j = mir.if %c -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT:     %a = mir.unary exp %x : tensor<4xf32>
  // CHECK-NEXT:     %b = mir.unary neg %x : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %a, %b : tensor<4xf32>, tensor<4xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     mir.yield %x, %x : tensor<4xf32>, tensor<4xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   %k = mir.kernel -> (tensor<4xf32>) {
  // CHECK-NEXT:     %a_1 = mir.unary exp %j : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %a_1 : tensor<4xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %i, %k : tensor<4xf32>, tensor<4xf32>

  // A loop carries what its condition and its results need, not what only feeds itself.
  func.func @loop(%x: tensor<4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
    %n, %y, %z = mir.while (%i, %x, %x) {
    ^bb0(%k: tensor<i32>, %u: tensor<4xf32>, %v: tensor<4xf32>):
      %o = mir.constant dense<3> : tensor<i32>
      %c = mir.compare lt %k, %o : tensor<i32> -> tensor<i1>
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%k: tensor<i32>, %u: tensor<4xf32>, %v: tensor<4xf32>):
      %o = mir.constant dense<1> : tensor<i32>
      %m = mir.binary add %k, %o : tensor<i32>
      %f = mir.unary exp %u : tensor<4xf32>
      %g = mir.unary exp %v : tensor<4xf32>
      mir.yield %m, %f, %g : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    } : (tensor<i32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>, tensor<4xf32>)
    %d:2 = mir.while (%i, %z) {
    ^bb0(%k: tensor<i32>, %u: tensor<4xf32>):
      %o = mir.constant dense<3> : tensor<i32>
      %c = mir.compare lt %k, %o : tensor<i32> -> tensor<i1>
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%k: tensor<i32>, %u: tensor<4xf32>):
      mir.yield %k, %u : tensor<i32>, tensor<4xf32>
    } : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
    func.return %y : tensor<4xf32>
  }
  // CHECK-LABEL: func.func @loop(%x: tensor<4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
  // CHECK-NEXT:   %n, %y = mir.while(%i, %x) {
  // CHECK-NEXT:   ^bb0(%k: tensor<i32>, %u: tensor<4xf32>):
  // CHECK-NEXT:     %o = mir.constant dense<3> : tensor<i32>
  // CHECK-NEXT:     %c = mir.compare lt %k, %o : tensor<i32> -> tensor<i1>
  // CHECK-NEXT:     mir.yield %c : tensor<i1>
  // CHECK-NEXT:   } do {
  // CHECK-NEXT:   ^bb0(%k_1: tensor<i32>, %u_1: tensor<4xf32>):
  // CHECK-NEXT:     %o_1 = mir.constant dense<1> : tensor<i32>
  // CHECK-NEXT:     %m = mir.binary add %k_1, %o_1 : tensor<i32>
  // CHECK-NEXT:     %f = mir.unary exp %u_1 : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %m, %f : tensor<i32>, tensor<4xf32>
  // CHECK-NEXT:   } : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
  // CHECK-NEXT:   func.return %y : tensor<4xf32>

  // An effect keeps what decides whether it happens.
  func.func @effect(%x: tensor<1x32xf32>, %c: tensor<i1>) {
    %y = mir.if %c -> (tensor<1x32xf32>) {
      %s = mir.load_state @keys : tensor<32x32xf32>
      %k = mir.append %x to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
      mir.yield %x : tensor<1x32xf32>
    } else {
      %n = mir.unary neg %x : tensor<1x32xf32>
      mir.yield %n : tensor<1x32xf32>
    } : tensor<i1>
    func.return
  }
  // CHECK-LABEL: func.func @effect(%x: tensor<1x32xf32>, %c: tensor<i1>) {
  // CHECK-NEXT:   mir.if %c -> () {
  // CHECK-NEXT:     %s = mir.load_state @keys : tensor<32x32xf32>
  // CHECK-NEXT:     %k = mir.append %x to %s keys head_dim 16 start "past" : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     mir.yield
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     mir.yield
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   func.return

  // A layer drops arguments it doesn't use, and what it carries for nobody.
  func.func private @layer(%x: tensor<4xf32>, %v: tensor<4xf32>, %a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %y = mir.binary add %x, %b : tensor<4xf32>
    %u = mir.unary exp %v : tensor<4xf32>
    func.return %y, %u : tensor<4xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @layer(%x: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT:   %y = mir.binary add %x, %b : tensor<4xf32>
  // CHECK-NEXT:   func.return %y : tensor<4xf32>

  // One that is only computed, and one that nothing calls.
  func.func private @pure(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.unary exp %x : tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  func.func private @orphan(%x: tensor<4xf32>) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32>, %unused: tensor<4xf32>) -> tensor<4xf32> {
    %n = mir.unary neg %x : tensor<4xf32>
    %y, %u = mir.repeat @layer(%x, %n, %n, %x) layers 0 to 2 : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %p = mir.repeat @pure(%u) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  // CHECK-LABEL: func.func @main(%x: tensor<4xf32>, %unused: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT:   %y = mir.repeat @layer(%x, %x) layers 0 to 2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT:   func.return %y : tensor<4xf32>
}
