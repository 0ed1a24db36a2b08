// RUN: rlx-opt %s -p constant-fold | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16>} {
  hir.weight @w "w" : tensor<4x4xf32>

  // Maps, reductions, products and moves of constants; an iota counts as one.
  func.func @primitives() -> (tensor<2xf32>, tensor<f32>, tensor<2xi32>, tensor<3xi8>, tensor<1x1xf32>) {
    %a = mir.constant dense<[1.0, 4.0]> : tensor<2xf32>
    %b = mir.constant dense<0.5> : tensor<2xf32>
    %c = mir.binary mul %a, %b : tensor<2xf32>
    %d = mir.unary sqrt %c : tensor<2xf32>
    %sum = mir.reduce sum %a axes [0] : tensor<2xf32> -> tensor<f32>
    %i = mir.iota axis 0 : tensor<2xi32>
    %j = mir.binary shl %i, %i : tensor<2xi32>
    %k = mir.constant dense<[100, -100, 7]> : tensor<3xi8>
    %l = mir.binary add %k, %k : tensor<3xi8>
    %m = mir.reshape %a : tensor<2xf32> -> tensor<1x2xf32>
    %n = mir.dot %m, %m rhs_t : tensor<1x2xf32>, tensor<1x2xf32> -> tensor<1x1xf32>
    func.return %d, %sum, %j, %l, %n : tensor<2xf32>, tensor<f32>, tensor<2xi32>, tensor<3xi8>, tensor<1x1xf32>
  }
  // CHECK-LABEL: func.func @primitives(
  // CHECK-NEXT:   %d = mir.constant dense<[0.707106769, 1.41421354]> : tensor<2xf32>
  // CHECK-NEXT:   %sum = mir.constant dense<5.000000e+00> : tensor<f32>
  // CHECK-NEXT:   %j = mir.constant dense<[0, 2]> : tensor<2xi32>
  // CHECK-NEXT:   %l = mir.constant dense<[-56, 56, 14]> : tensor<3xi8>
  // CHECK-NEXT:   %n = mir.constant dense<1.700000e+01> : tensor<1x1xf32>
  // CHECK-NEXT:   func.return %d, %sum, %j, %l, %n : tensor<2xf32>, tensor<f32>, tensor<2xi32>, tensor<3xi8>, tensor<1x1xf32>

  // One value may fill 64 KiB; what holds several grows to 1 KiB.
  func.func @sizes() -> (tensor<64x256xf32>, tensor<64x257xf32>, tensor<300x2xf32>) {
    %one = mir.constant dense<1.0> : tensor<f32>
    %two = mir.constant dense<[1.0, 2.0]> : tensor<2xf32>
    %a = mir.broadcast %one : tensor<f32> -> tensor<64x256xf32>
    %b = mir.broadcast %one : tensor<f32> -> tensor<64x257xf32>
    %c = mir.broadcast %two : tensor<2xf32> -> tensor<300x2xf32>
    func.return %a, %b, %c : tensor<64x256xf32>, tensor<64x257xf32>, tensor<300x2xf32>
  }
  // CHECK-LABEL: func.func @sizes(
  // CHECK-NEXT:   %one = mir.constant dense<1.000000e+00> : tensor<f32>
  // CHECK-NEXT:   %two = mir.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
  // CHECK-NEXT:   %a = mir.constant dense<1.000000e+00> : tensor<64x256xf32>
  // CHECK-NEXT:   %b = mir.broadcast %one : tensor<f32> -> tensor<64x257xf32>
  // CHECK-NEXT:   %c = mir.broadcast %two : tensor<2xf32> -> tensor<300x2xf32>
  // CHECK-NEXT:   func.return %a, %b, %c : tensor<64x256xf32>, tensor<64x257xf32>, tensor<300x2xf32>

  // Of a tensor with named dimensions one element is computed.
  func.func @fills(%x: tensor<?x4xf32, #hir.dims<seq, _>>) -> (tensor<?x4xf32, #hir.dims<seq, _>>, tensor<?x4xi1, #hir.dims<seq, _>>) {
    %two = mir.constant dense<2.0> : tensor<f32>
    %a = mir.broadcast %two : tensor<f32> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %b = mir.binary mul %a, %a : tensor<?x4xf32, #hir.dims<seq, _>>
    %y = mir.binary mul %x, %b : tensor<?x4xf32, #hir.dims<seq, _>>
    %c = mir.compare lt %a, %b : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<?x4xi1, #hir.dims<seq, _>>
    func.return %y, %c : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<?x4xi1, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func @fills(
  // CHECK-NEXT:   %b = mir.constant dense<4.000000e+00> : tensor<f32>
  // CHECK-NEXT:   %b_1 = mir.broadcast %b : tensor<f32> -> tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %y = mir.binary mul %x, %b_1 : tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %c = mir.constant dense<true> : tensor<i1>
  // CHECK-NEXT:   %c_1 = mir.broadcast %c : tensor<i1> -> tensor<?x4xi1, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %y, %c_1 : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<?x4xi1, #hir.dims<seq, _>>

  // Refused: an operand that is no constant. An infinity is a constant like others.
  func.func @refused(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<4x4xf32>) {
    %zero = mir.constant dense<0.0> : tensor<f32>
    %a = mir.binary add %x, %zero : tensor<f32>
    %b = mir.unary log %zero : tensor<f32>
    %w = mir.load_weight @w : tensor<4x4xf32>
    %c = mir.unary exp %w : tensor<4x4xf32>
    func.return %a, %b, %c : tensor<f32>, tensor<f32>, tensor<4x4xf32>
  }
  // CHECK-LABEL: func.func @refused(
  // CHECK-NEXT:   %zero = mir.constant dense<0.000000e+00> : tensor<f32>
  // CHECK-NEXT:   %a = mir.binary add %x, %zero : tensor<f32>
  // CHECK-NEXT:   %b = mir.constant dense<"0x000080FF"> : tensor<f32>
  // CHECK-NEXT:   %w = mir.load_weight @w : tensor<4x4xf32>
  // CHECK-NEXT:   %c = mir.unary exp %w : tensor<4x4xf32>
  // CHECK-NEXT:   func.return %a, %b, %c : tensor<f32>, tensor<f32>, tensor<4x4xf32>

  // A constant that others use too stays for them; a phase goes on to what is new.
  func.func @used_twice(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %a = mir.constant dense<[1.0, 4.0]> : tensor<2xf32>
    %b = mir.unary sqrt %a : tensor<2xf32> {phase = #mir<phase steady_state>}
    %c = mir.binary add %x, %a : tensor<2xf32>
    func.return %b, %c : tensor<2xf32>, tensor<2xf32>
  }
  // CHECK-LABEL: func.func @used_twice(
  // CHECK-NEXT:   %a = mir.constant dense<[1.000000e+00, 4.000000e+00]> : tensor<2xf32>
  // CHECK-NEXT:   %b = mir.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   %c = mir.binary add %x, %a : tensor<2xf32>
  // CHECK-NEXT:   func.return %b, %c : tensor<2xf32>, tensor<2xf32>

  // Selections and branches of a constant condition; the branch runs when the if did.
  func.func @conditions(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %one = mir.constant dense<1> : tensor<i32>
    %two = mir.constant dense<2> : tensor<i32>
    %c = mir.compare lt %one, %two : tensor<i32> -> tensor<i1>
    %n = mir.unary not %c : tensor<i1>
    %all = mir.broadcast %n : tensor<i1> -> tensor<4xi1>
    %s = mir.select %all, %x, %y : tensor<4xi1>, tensor<4xf32>
    %a, %b = mir.if %c -> (tensor<4xf32>, tensor<4xf32>) {
      %e = mir.unary exp %x : tensor<4xf32>
      mir.yield %e, %y : tensor<4xf32>, tensor<4xf32>
    } else {
      %e = mir.unary neg %x : tensor<4xf32>
      mir.yield %e, %e : tensor<4xf32>, tensor<4xf32>
    } attributes {phase = #mir<phase steady_state>} : tensor<i1>
    func.return %s, %a, %b : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func @conditions(
  // CHECK-NEXT:   %e = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase steady_state>}
  // CHECK-NEXT:   func.return %y, %e, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>

  // A loop that never runs gives what it begins with.
  func.func @no_turn(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.while (%x) {
    ^bb0(%a: tensor<4xf32>):
      %false = mir.constant dense<false> : tensor<i1>
      mir.yield %false : tensor<i1>
    } do {
    ^bb0(%a: tensor<4xf32>):
      %n = mir.unary neg %a : tensor<4xf32>
      mir.yield %n : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  // CHECK-LABEL: func.func @no_turn(
  // CHECK-NEXT:   func.return %x : tensor<4xf32>

  // Inside a layer, a branch and a loop.
  func.func private @layer(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
    %y = mir.if %c -> (tensor<4xf32>) {
      %a = mir.constant dense<2.0> : tensor<4xf32>
      %b = mir.unary neg %a : tensor<4xf32>
      %s = mir.binary add %x, %b : tensor<4xf32>
      mir.yield %s : tensor<4xf32>
    } else {
      %n, %z = mir.while (%c, %x) {
      ^bb0(%k: tensor<i1>, %v: tensor<4xf32>):
        %true = mir.constant dense<true> : tensor<i1>
        %not = mir.unary not %true : tensor<i1>
        %both = mir.binary or %k, %not : tensor<i1>
        mir.yield %both : tensor<i1>
      } do {
      ^bb0(%k: tensor<i1>, %v: tensor<4xf32>):
        %true = mir.constant dense<true> : tensor<i1>
        %not = mir.unary not %true : tensor<i1>
        mir.yield %not, %v : tensor<i1>, tensor<4xf32>
      } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
      mir.yield %z : tensor<4xf32>
    } : tensor<i1>
    func.return %y : tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %y = mir.if %c -> (tensor<4xf32>) {
  // CHECK-NEXT:     %b = mir.constant dense<-2.000000e+00> : tensor<4xf32>
  // CHECK-NEXT:     %s = mir.binary add %x, %b : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %s : tensor<4xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     %n, %z = mir.while(%c, %x) {
  // CHECK-NEXT:     ^bb0(%k: tensor<i1>, %v: tensor<4xf32>):
  // CHECK-NEXT:       %not = mir.constant dense<false> : tensor<i1>
  // CHECK-NEXT:       %both = mir.binary or %k, %not : tensor<i1>
  // CHECK-NEXT:       mir.yield %both : tensor<i1>
  // CHECK-NEXT:     } do {
  // CHECK-NEXT:     ^bb0(%k_1: tensor<i1>, %v_1: tensor<4xf32>):
  // CHECK-NEXT:       %not_1 = mir.constant dense<false> : tensor<i1>
  // CHECK-NEXT:       mir.yield %not_1, %v_1 : tensor<i1>, tensor<4xf32>
  // CHECK-NEXT:     } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
  // CHECK-NEXT:     mir.yield %z : tensor<4xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   func.return %y : tensor<4xf32>

  // A kernel is left as fusion made it.
  func.func @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.kernel -> (tensor<4xf32>) {
      %a = mir.constant dense<2.0> : tensor<4xf32>
      %b = mir.unary neg %a : tensor<4xf32>
      %s = mir.binary add %x, %b : tensor<4xf32>
      mir.yield %s : tensor<4xf32>
    }
    func.return %y : tensor<4xf32>
  }
  // CHECK-LABEL: func.func @kernel(
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<4xf32>) {
  // CHECK-NEXT:     %a = mir.constant dense<2.000000e+00> : tensor<4xf32>
  // CHECK-NEXT:     %b = mir.unary neg %a : tensor<4xf32>
  // CHECK-NEXT:     %s = mir.binary add %x, %b : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %s : tensor<4xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %y : tensor<4xf32>
}
