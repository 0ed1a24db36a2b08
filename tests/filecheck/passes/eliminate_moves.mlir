// RUN: rlx-opt %s -p eliminate-moves | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16>} {
  // A transpose of the last two axes is part of a product; other transposes are not.
  func.func @dot(%a: tensor<8x?xf32, #hir.dims<_, seq>>, %b: tensor<3x8xf32>, %c: tensor<2x3x4xf32>, %d: tensor<2x4x5xf32>) -> (tensor<?x3xf32, #hir.dims<seq, _>>, tensor<2x5x3xf32>, tensor<4x3x5xf32>) {
    %at = mir.transpose %a [1, 0] : tensor<8x?xf32, #hir.dims<_, seq>> -> tensor<?x8xf32, #hir.dims<seq, _>>
    %bt = mir.transpose %b [1, 0] : tensor<3x8xf32> -> tensor<8x3xf32>
    %x = mir.dot %at, %bt : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x3xf32> -> tensor<?x3xf32, #hir.dims<seq, _>>
    %y = mir.dot %c, %d : tensor<2x3x4xf32>, tensor<2x4x5xf32> -> tensor<2x3x5xf32>
    %yt = mir.transpose %y [0, 2, 1] : tensor<2x3x5xf32> -> tensor<2x5x3xf32>
    %ct = mir.transpose %c [2, 1, 0] : tensor<2x3x4xf32> -> tensor<4x3x2xf32>
    %dt = mir.transpose %d [1, 0, 2] : tensor<2x4x5xf32> -> tensor<4x2x5xf32>
    %z = mir.dot %ct, %dt : tensor<4x3x2xf32>, tensor<4x2x5xf32> -> tensor<4x3x5xf32>
    func.return %x, %yt, %z : tensor<?x3xf32, #hir.dims<seq, _>>, tensor<2x5x3xf32>, tensor<4x3x5xf32>
  }
  // CHECK-LABEL: func.func @dot(
  // CHECK-NEXT:   %x = mir.dot %a lhs_t, %b rhs_t : tensor<8x?xf32, #hir.dims<_, seq>>, tensor<3x8xf32> -> tensor<?x3xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %yt = mir.dot %d lhs_t, %c rhs_t : tensor<2x4x5xf32>, tensor<2x3x4xf32> -> tensor<2x5x3xf32>
  // CHECK-NEXT:   %ct = mir.transpose %c [2, 1, 0] : tensor<2x3x4xf32> -> tensor<4x3x2xf32>
  // CHECK-NEXT:   %dt = mir.transpose %d [1, 0, 2] : tensor<2x4x5xf32> -> tensor<4x2x5xf32>
  // CHECK-NEXT:   %z = mir.dot %ct, %dt : tensor<4x3x2xf32>, tensor<4x2x5xf32> -> tensor<4x3x5xf32>
  // CHECK-NEXT:   func.return %x, %yt, %z : tensor<?x3xf32, #hir.dims<seq, _>>, tensor<2x5x3xf32>, tensor<4x3x5xf32>

  // A result that something else uses is not computed a second time.
  func.func @dot_used_twice(%c: tensor<3x4xf32>, %d: tensor<4x5xf32>) -> (tensor<3x5xf32>, tensor<5x3xf32>) {
    %y = mir.dot %c, %d : tensor<3x4xf32>, tensor<4x5xf32> -> tensor<3x5xf32>
    %t = mir.transpose %y [1, 0] : tensor<3x5xf32> -> tensor<5x3xf32>
    func.return %y, %t : tensor<3x5xf32>, tensor<5x3xf32>
  }
  // CHECK-LABEL: func.func @dot_used_twice(
  // CHECK-NEXT:   %y = mir.dot %c, %d : tensor<3x4xf32>, tensor<4x5xf32> -> tensor<3x5xf32>
  // CHECK-NEXT:   %t = mir.transpose %y [1, 0] : tensor<3x5xf32> -> tensor<5x3xf32>
  // CHECK-NEXT:   func.return %y, %t : tensor<3x5xf32>, tensor<5x3xf32>

  // Through maps, to the opposite move; a number is the same everywhere.
  func.func @maps(%x: tensor<?x4xf32, #hir.dims<seq, _>>, %y: tensor<?x4xf32, #hir.dims<seq, _>>) -> tensor<?x4xf32, #hir.dims<seq, _>> {
    %two = mir.constant dense<2.0> : tensor<f32>
    %b = mir.broadcast %two : tensor<f32> -> tensor<4x?xf32, #hir.dims<_, seq>>
    %p = mir.transpose %x [1, 0] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x?xf32, #hir.dims<_, seq>>
    %q = mir.transpose %y [1, 0] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x?xf32, #hir.dims<_, seq>>
    %e = mir.unary exp %p : tensor<4x?xf32, #hir.dims<_, seq>>
    %m = mir.binary mul %e, %b : tensor<4x?xf32, #hir.dims<_, seq>>
    %c = mir.compare lt %m, %q : tensor<4x?xf32, #hir.dims<_, seq>> -> tensor<4x?xi1, #hir.dims<_, seq>>
    %d = mir.cast %c : tensor<4x?xi1, #hir.dims<_, seq>> -> tensor<4x?xf32, #hir.dims<_, seq>>
    %r = mir.transpose %d [1, 0] : tensor<4x?xf32, #hir.dims<_, seq>> -> tensor<?x4xf32, #hir.dims<seq, _>>
    func.return %r : tensor<?x4xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func @maps(
  // CHECK-NEXT:   %r = mir.unary exp %x : tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %r_1 = mir.constant dense<2.000000e+00> : tensor<f32>
  // CHECK-NEXT:   %r_2 = mir.broadcast %r_1 : tensor<f32> -> tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %r_3 = mir.binary mul %r, %r_2 : tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %r_4 = mir.compare lt %r_3, %y : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<?x4xi1, #hir.dims<seq, _>>
  // CHECK-NEXT:   %r_5 = mir.cast %r_4 : tensor<?x4xi1, #hir.dims<seq, _>> -> tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %r_5 : tensor<?x4xf32, #hir.dims<seq, _>>

  // Refused: one operand is not moved, and a map that something else uses.
  func.func @maps_refused(%x: tensor<3x4xf32>, %y: tensor<4x3xf32>) -> (tensor<3x4xf32>, tensor<4x3xf32>, tensor<3x4xf32>) {
    %p = mir.transpose %x [1, 0] : tensor<3x4xf32> -> tensor<4x3xf32>
    %s = mir.binary add %p, %y : tensor<4x3xf32>
    %r = mir.transpose %s [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
    %e = mir.unary exp %p : tensor<4x3xf32>
    %t = mir.transpose %e [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
    func.return %r, %e, %t : tensor<3x4xf32>, tensor<4x3xf32>, tensor<3x4xf32>
  }
  // CHECK-LABEL: func.func @maps_refused(
  // CHECK-NEXT:   %p = mir.transpose %x [1, 0] : tensor<3x4xf32> -> tensor<4x3xf32>
  // CHECK-NEXT:   %s = mir.binary add %p, %y : tensor<4x3xf32>
  // CHECK-NEXT:   %r = mir.transpose %s [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
  // CHECK-NEXT:   %e = mir.unary exp %p : tensor<4x3xf32>
  // CHECK-NEXT:   %t = mir.transpose %e [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
  // CHECK-NEXT:   func.return %r, %e, %t : tensor<3x4xf32>, tensor<4x3xf32>, tensor<3x4xf32>

  // What is broadcast alike is computed before; what is moved after it is moved before.
  func.func @broadcasts(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x?xf32, #hir.dims<_, seq>>, tensor<?x3xf32, #hir.dims<seq, _>>) {
    %b = mir.broadcast %x : tensor<8xf32> -> tensor<?x8xf32, #hir.dims<seq, _>>
    %c = mir.broadcast %y : tensor<8xf32> -> tensor<?x8xf32, #hir.dims<seq, _>>
    %s = mir.binary add %b, %c : tensor<?x8xf32, #hir.dims<seq, _>>
    %t = mir.transpose %b [1, 0] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<8x?xf32, #hir.dims<_, seq>>
    %u = mir.slice %b starts [0, 2] steps [1, 1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?x3xf32, #hir.dims<seq, _>>
    func.return %s, %t, %u : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x?xf32, #hir.dims<_, seq>>, tensor<?x3xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func @broadcasts(
  // CHECK-NEXT:   %s = mir.binary add %x, %y : tensor<8xf32>
  // CHECK-NEXT:   %s_1 = mir.broadcast %s : tensor<8xf32> -> tensor<?x8xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %t = mir.reshape %x : tensor<8xf32> -> tensor<8x1xf32>
  // CHECK-NEXT:   %t_1 = mir.broadcast %t : tensor<8x1xf32> -> tensor<8x?xf32, #hir.dims<_, seq>>
  // CHECK-NEXT:   %u = mir.slice %x starts [2] steps [1] : tensor<8xf32> -> tensor<3xf32>
  // CHECK-NEXT:   %u_1 = mir.broadcast %u : tensor<3xf32> -> tensor<?x3xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %s_1, %t_1, %u_1 : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x?xf32, #hir.dims<_, seq>>, tensor<?x3xf32, #hir.dims<seq, _>>

  // Concats of neighbours and of concats, slices of one part.
  func.func @joins(%x: tensor<?x8xf32, #hir.dims<seq, _>>, %y: tensor<2xf32>, %z: tensor<3xf32>) -> (tensor<?x8xf32, #hir.dims<seq, _>>, tensor<?x5xf32, #hir.dims<seq, _>>, tensor<7xf32>, tensor<2xf32>) {
    %a = mir.slice %x starts [0, 0] steps [1, 1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?x3xf32, #hir.dims<seq, _>>
    %b = mir.slice %x starts [0, 3] steps [1, 1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?x5xf32, #hir.dims<seq, _>>
    %whole = mir.concat axis 1 (%a, %b) : (tensor<?x3xf32, #hir.dims<seq, _>>, tensor<?x5xf32, #hir.dims<seq, _>>) -> tensor<?x8xf32, #hir.dims<seq, _>>
    %c = mir.slice %x starts [0, 1] steps [1, 1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?x2xf32, #hir.dims<seq, _>>
    %some = mir.concat axis 1 (%c, %a) : (tensor<?x2xf32, #hir.dims<seq, _>>, tensor<?x3xf32, #hir.dims<seq, _>>) -> tensor<?x5xf32, #hir.dims<seq, _>>
    %yz = mir.concat axis 0 (%y, %z) : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>
    %yzy = mir.concat axis 0 (%yz, %y) : (tensor<5xf32>, tensor<2xf32>) -> tensor<7xf32>
    %part = mir.slice %yz starts [3] steps [1] : tensor<5xf32> -> tensor<2xf32>
    func.return %whole, %some, %yzy, %part : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<?x5xf32, #hir.dims<seq, _>>, tensor<7xf32>, tensor<2xf32>
  }
  // CHECK-LABEL: func.func @joins(
  // CHECK-NEXT:   %a = mir.slice %x starts [0, 0] steps [1, 1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?x3xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %c = mir.slice %x starts [0, 1] steps [1, 1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?x2xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %some = mir.concat axis 1(%c, %a) : (tensor<?x2xf32, #hir.dims<seq, _>>, tensor<?x3xf32, #hir.dims<seq, _>>) -> tensor<?x5xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %yzy = mir.concat axis 0(%y, %z, %y) : (tensor<2xf32>, tensor<3xf32>, tensor<2xf32>) -> tensor<7xf32>
  // CHECK-NEXT:   %part = mir.slice %z starts [1] steps [1] : tensor<3xf32> -> tensor<2xf32>
  // CHECK-NEXT:   func.return %x, %some, %yzy, %part : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<?x5xf32, #hir.dims<seq, _>>, tensor<7xf32>, tensor<2xf32>

  // Refused: a slice across two parts.
  func.func @across(%y: tensor<2xf32>, %z: tensor<3xf32>) -> tensor<2xf32> {
    %yz = mir.concat axis 0 (%y, %z) : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>
    %part = mir.slice %yz starts [1] steps [1] : tensor<5xf32> -> tensor<2xf32>
    func.return %part : tensor<2xf32>
  }
  // CHECK-LABEL: func.func @across(
  // CHECK-NEXT:   %yz = mir.concat axis 0(%y, %z) : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>
  // CHECK-NEXT:   %part = mir.slice %yz starts [1] steps [1] : tensor<5xf32> -> tensor<2xf32>
  // CHECK-NEXT:   func.return %part : tensor<2xf32>

  // Indices in steps; not beyond the end, which an index is held to, and not downwards.
  func.func @gathers(%x: tensor<8x4xf32>, %s: tensor<?x4xf32, #hir.dims<seq, _>>) -> (tensor<3x4xf32>, tensor<2x4xf32>, tensor<8xf32>, tensor<?x4xf32, #hir.dims<seq, _>>, tensor<2x4xf32>, tensor<2x4xf32>) {
    %i = mir.iota axis 0 : tensor<3xi32>
    %a = mir.gather %x, %i axis 0 : tensor<8x4xf32>, tensor<3xi32> -> tensor<3x4xf32>
    %j = mir.constant dense<[2, 5]> : tensor<2xi64>
    %b = mir.gather %x, %j axis 0 : tensor<8x4xf32>, tensor<2xi64> -> tensor<2x4xf32>
    %k = mir.constant dense<1> : tensor<i32>
    %c = mir.gather %x, %k axis 1 : tensor<8x4xf32>, tensor<i32> -> tensor<8xf32>
    %all = mir.iota axis 0 : tensor<?xi32, #hir.dims<seq>>
    %d = mir.gather %s, %all axis 0 : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<?xi32, #hir.dims<seq>> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %l = mir.constant dense<[7, 8]> : tensor<2xi32>
    %e = mir.gather %x, %l axis 0 : tensor<8x4xf32>, tensor<2xi32> -> tensor<2x4xf32>
    %m = mir.constant dense<[3, 2]> : tensor<2xi32>
    %f = mir.gather %x, %m axis 0 : tensor<8x4xf32>, tensor<2xi32> -> tensor<2x4xf32>
    func.return %a, %b, %c, %d, %e, %f : tensor<3x4xf32>, tensor<2x4xf32>, tensor<8xf32>, tensor<?x4xf32, #hir.dims<seq, _>>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  // CHECK-LABEL: func.func @gathers(
  // CHECK-NEXT:   %a = mir.slice %x starts [0, 0] steps [1, 1] : tensor<8x4xf32> -> tensor<3x4xf32>
  // CHECK-NEXT:   %b = mir.slice %x starts [2, 0] steps [3, 1] : tensor<8x4xf32> -> tensor<2x4xf32>
  // CHECK-NEXT:   %c = mir.slice %x starts [0, 1] steps [1, 1] : tensor<8x4xf32> -> tensor<8x1xf32>
  // CHECK-NEXT:   %c_1 = mir.reshape %c : tensor<8x1xf32> -> tensor<8xf32>
  // CHECK-NEXT:   %l = mir.constant dense<[7, 8]> : tensor<2xi32>
  // CHECK-NEXT:   %e = mir.gather %x, %l axis 0 : tensor<8x4xf32>, tensor<2xi32> -> tensor<2x4xf32>
  // CHECK-NEXT:   %m = mir.constant dense<[3, 2]> : tensor<2xi32>
  // CHECK-NEXT:   %f = mir.gather %x, %m axis 0 : tensor<8x4xf32>, tensor<2xi32> -> tensor<2x4xf32>
  // CHECK-NEXT:   func.return %a, %b, %c_1, %s, %e, %f : tensor<3x4xf32>, tensor<2x4xf32>, tensor<8xf32>, tensor<?x4xf32, #hir.dims<seq, _>>, tensor<2x4xf32>, tensor<2x4xf32>

  // Constants are moved now; in a branch and a loop of a layer too. A kernel is left alone.
  func.func private @layer(%x: tensor<2x2xf32>, %c: tensor<i1>) -> tensor<2x2xf32> {
    %k = mir.constant dense<[1.0, 2.0]> : tensor<2xf32>
    %r = mir.reshape %k : tensor<2xf32> -> tensor<2x1xf32>
    %y = mir.if %c -> (tensor<2x2xf32>) {
      %t = mir.transpose %x [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
      %d = mir.dot %t, %x : tensor<2x2xf32>, tensor<2x2xf32> -> tensor<2x2xf32>
      mir.yield %d : tensor<2x2xf32>
    } else {
      %b = mir.broadcast %r : tensor<2x1xf32> -> tensor<2x2xf32>
      mir.yield %b : tensor<2x2xf32>
    } : tensor<i1>
    %n, %z = mir.while (%c, %y) {
    ^bb0(%p: tensor<i1>, %v: tensor<2x2xf32>):
      mir.yield %p : tensor<i1>
    } do {
    ^bb0(%p: tensor<i1>, %v: tensor<2x2xf32>):
      %t = mir.transpose %v [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
      %e = mir.unary exp %t : tensor<2x2xf32>
      %u = mir.transpose %e [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
      mir.yield %p, %u : tensor<i1>, tensor<2x2xf32>
    } : (tensor<i1>, tensor<2x2xf32>) -> (tensor<i1>, tensor<2x2xf32>)
    %o = mir.kernel -> (tensor<2x2xf32>) {
      %t = mir.transpose %z [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
      %u = mir.transpose %t [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
      mir.yield %u : tensor<2x2xf32>
    }
    func.return %o : tensor<2x2xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %y = mir.if %c -> (tensor<2x2xf32>) {
  // CHECK-NEXT:     %d = mir.dot %x lhs_t, %x : tensor<2x2xf32>, tensor<2x2xf32> -> tensor<2x2xf32>
  // CHECK-NEXT:     mir.yield %d : tensor<2x2xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     %b = mir.constant dense<[[1.000000e+00, 1.000000e+00], [2.000000e+00, 2.000000e+00]]> : tensor<2x2xf32>
  // CHECK-NEXT:     mir.yield %b : tensor<2x2xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   %n, %z = mir.while(%c, %y) {
  // CHECK-NEXT:   ^bb0(%p: tensor<i1>, %v: tensor<2x2xf32>):
  // CHECK-NEXT:     mir.yield %p : tensor<i1>
  // CHECK-NEXT:   } do {
  // CHECK-NEXT:   ^bb0(%p_1: tensor<i1>, %v_1: tensor<2x2xf32>):
  // CHECK-NEXT:     %u = mir.unary exp %v_1 : tensor<2x2xf32>
  // CHECK-NEXT:     mir.yield %p_1, %u : tensor<i1>, tensor<2x2xf32>
  // CHECK-NEXT:   } : (tensor<i1>, tensor<2x2xf32>) -> (tensor<i1>, tensor<2x2xf32>)
  // CHECK-NEXT:   %o = mir.kernel -> (tensor<2x2xf32>) {
  // CHECK-NEXT:     %t = mir.transpose %z [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
  // CHECK-NEXT:     %u_1 = mir.transpose %t [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
  // CHECK-NEXT:     mir.yield %u_1 : tensor<2x2xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %o : tensor<2x2xf32>
}
