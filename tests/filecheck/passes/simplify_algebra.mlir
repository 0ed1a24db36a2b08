// RUN: rlx-opt %s -p simplify-algebra | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16, past = 0 to 8, keys = past + seq>} {
  hir.state @keys keys head_dim 16 : tensor<32x32xf32>

  // What changes no bit of a float; of named dimensions too.
  func.func @neutral(%x: tensor<?x4xf32, #hir.dims<seq, _>>) -> tensor<?x4xf32, #hir.dims<seq, _>> {
    %minus = mir.constant dense<-0.0> : tensor<f32>
    %zero = mir.constant dense<0.0> : tensor<f32>
    %one = mir.constant dense<1.0> : tensor<f32>
    %m = mir.broadcast %minus : tensor<f32> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %z = mir.broadcast %zero : tensor<f32> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %o = mir.broadcast %one : tensor<f32> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %a = mir.binary add %m, %x : tensor<?x4xf32, #hir.dims<seq, _>>
    %b = mir.binary sub %a, %z : tensor<?x4xf32, #hir.dims<seq, _>>
    %c = mir.binary mul %b, %o : tensor<?x4xf32, #hir.dims<seq, _>>
    %d = mir.binary div %c, %o : tensor<?x4xf32, #hir.dims<seq, _>>
    %e = mir.binary max %d, %d : tensor<?x4xf32, #hir.dims<seq, _>>
    func.return %e : tensor<?x4xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func @neutral(
  // CHECK-NEXT:   func.return %x : tensor<?x4xf32, #hir.dims<seq, _>>

  // Refused: -0.0 + 0.0 is 0.0; inf * 0.0, x - x and x == x differ for inf or NaN;
  // 0 - x is not x, and a sum of floats begins at 0.0 and keeps its order.
  func.func @inexact(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi1>, tensor<4xf32>, tensor<f32>) {
    %z = mir.constant dense<0.0> : tensor<4xf32>
    %a = mir.binary add %x, %z : tensor<4xf32>
    %b = mir.binary mul %x, %z : tensor<4xf32>
    %c = mir.binary sub %x, %x : tensor<4xf32>
    %d = mir.compare eq %x, %x : tensor<4xf32> -> tensor<4xi1>
    %e = mir.binary sub %z, %x : tensor<4xf32>
    %r = mir.reshape %x : tensor<4xf32> -> tensor<4x1xf32>
    %s = mir.reduce sum %r axes [1] : tensor<4x1xf32> -> tensor<4xf32>
    %t = mir.reduce sum %s axes [0] : tensor<4xf32> -> tensor<f32>
    func.return %a, %b, %c, %d, %e, %t : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi1>, tensor<4xf32>, tensor<f32>
  }
  // CHECK-LABEL: func.func @inexact(
  // CHECK-NEXT:   %z = mir.constant dense<0.000000e+00> : tensor<4xf32>
  // CHECK-NEXT:   %a = mir.binary add %x, %z : tensor<4xf32>
  // CHECK-NEXT:   %b = mir.binary mul %x, %z : tensor<4xf32>
  // CHECK-NEXT:   %c = mir.binary sub %x, %x : tensor<4xf32>
  // CHECK-NEXT:   %d = mir.compare eq %x, %x : tensor<4xf32> -> tensor<4xi1>
  // CHECK-NEXT:   %e = mir.binary sub %z, %x : tensor<4xf32>
  // CHECK-NEXT:   %r = mir.reshape %x : tensor<4xf32> -> tensor<4x1xf32>
  // CHECK-NEXT:   %s = mir.reduce sum %r axes [1] : tensor<4x1xf32> -> tensor<4xf32>
  // CHECK-NEXT:   %t = mir.reduce sum %s axes [0] : tensor<4xf32> -> tensor<f32>
  // CHECK-NEXT:   func.return %a, %b, %c, %d, %e, %t : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi1>, tensor<4xf32>, tensor<f32>

  // Of integers and of i1 all of these are exact.
  func.func @integers(%x: tensor<4xi32>, %b: tensor<4xi1>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
    %zero = mir.constant dense<0> : tensor<4xi32>
    %a = mir.binary add %zero, %x : tensor<4xi32>
    %m = mir.binary mul %a, %zero : tensor<4xi32>
    %s = mir.binary sub %x, %x : tensor<4xi32>
    %o = mir.binary or %m, %a : tensor<4xi32>
    %c = mir.compare le %x, %x : tensor<4xi32> -> tensor<4xi1>
    %and = mir.binary and %b, %c : tensor<4xi1>
    %xor = mir.binary xor %b, %b : tensor<4xi1>
    %n = mir.unary not %b : tensor<4xi1>
    %nn = mir.unary not %n : tensor<4xi1>
    func.return %o, %m, %s, %and, %xor, %nn : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
  }
  // CHECK-LABEL: func.func @integers(
  // CHECK-NEXT:   %m = mir.constant dense<0> : tensor<4xi32>
  // CHECK-NEXT:   %s = mir.constant dense<0> : tensor<4xi32>
  // CHECK-NEXT:   %xor = mir.constant dense<false> : tensor<4xi1>
  // CHECK-NEXT:   func.return %x, %m, %s, %b, %xor, %b : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>

  // Division by a power of two; by another number it stays.
  func.func @division(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) {
    %eight = mir.constant dense<8.0> : tensor<4xf32>
    %three = mir.constant dense<3.0> : tensor<4xf32>
    %four = mir.constant dense<4> : tensor<4xi32>
    %five = mir.constant dense<5> : tensor<4xi32>
    %a = mir.binary div %x, %eight : tensor<4xf32>
    %b = mir.binary div %x, %three : tensor<4xf32>
    %c = mir.binary div %i, %four : tensor<4xi32>
    %d = mir.binary mod %i, %four : tensor<4xi32>
    %e = mir.binary div %i, %five : tensor<4xi32>
    func.return %a, %b, %c, %d, %e : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
  }
  // CHECK-LABEL: func.func @division(
  // CHECK-NEXT:   %three = mir.constant dense<3.000000e+00> : tensor<4xf32>
  // CHECK-NEXT:   %five = mir.constant dense<5> : tensor<4xi32>
  // CHECK-NEXT:   %a = mir.constant dense<1.250000e-01> : tensor<4xf32>
  // CHECK-NEXT:   %a_1 = mir.binary mul %x, %a : tensor<4xf32>
  // CHECK-NEXT:   %b = mir.binary div %x, %three : tensor<4xf32>
  // CHECK-NEXT:   %c = mir.constant dense<2> : tensor<4xi32>
  // CHECK-NEXT:   %c_1 = mir.binary shr %i, %c : tensor<4xi32>
  // CHECK-NEXT:   %d = mir.constant dense<3> : tensor<4xi32>
  // CHECK-NEXT:   %d_1 = mir.binary and %i, %d : tensor<4xi32>
  // CHECK-NEXT:   %e = mir.binary div %i, %five : tensor<4xi32>
  // CHECK-NEXT:   func.return %a_1, %b, %c_1, %d_1, %e : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>

  // The ends of the range: a power of two whose reciprocal is not a normal number stays a divisor.
  func.func @ends(%x: tensor<4xf32>, %y: tensor<4xf64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>) {
    %f0 = mir.constant dense<1.401298464324817e-45> : tensor<4xf32>
    %f1 = mir.constant dense<5.877471754111438e-39> : tensor<4xf32>
    %f2 = mir.constant dense<1.1754943508222875e-38> : tensor<4xf32>
    %f3 = mir.constant dense<1.7014118346046923e+38> : tensor<4xf32>
    %d0 = mir.constant dense<4.9406564584124654e-324> : tensor<4xf64>
    %d1 = mir.constant dense<1.1125369292536007e-308> : tensor<4xf64>
    %d2 = mir.constant dense<4.4942328371557898e+307> : tensor<4xf64>
    %d3 = mir.constant dense<8.9884656743115795e+307> : tensor<4xf64>
    %a = mir.binary div %x, %f0 : tensor<4xf32>
    %b = mir.binary div %x, %f1 : tensor<4xf32>
    %c = mir.binary div %x, %f2 : tensor<4xf32>
    %d = mir.binary div %x, %f3 : tensor<4xf32>
    %e = mir.binary div %y, %d0 : tensor<4xf64>
    %f = mir.binary div %y, %d1 : tensor<4xf64>
    %g = mir.binary div %y, %d2 : tensor<4xf64>
    %h = mir.binary div %y, %d3 : tensor<4xf64>
    func.return %a, %b, %c, %d, %e, %f, %g, %h : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>
  }
  // CHECK-LABEL: func.func @ends(
  // CHECK:        %a = mir.binary div %x, %f0 : tensor<4xf32>
  // CHECK-NEXT:   %b = mir.constant dense<1.7014118{{.*}}e+38> : tensor<4xf32>
  // CHECK-NEXT:   %b_1 = mir.binary mul %x, %b : tensor<4xf32>
  // CHECK-NEXT:   %c = mir.constant dense<8.507059{{.*}}e+37> : tensor<4xf32>
  // CHECK-NEXT:   %c_1 = mir.binary mul %x, %c : tensor<4xf32>
  // CHECK-NEXT:   %d = mir.binary div %x, %f3 : tensor<4xf32>
  // CHECK-NEXT:   %e = mir.binary div %y, %d0 : tensor<4xf64>
  // CHECK-NEXT:   %f = mir.constant dense<8.9884656{{.*}}e+307> : tensor<4xf64>
  // CHECK-NEXT:   %f_1 = mir.binary mul %y, %f : tensor<4xf64>
  // CHECK-NEXT:   %g = mir.constant dense<2.225073{{.*}}e-308> : tensor<4xf64>
  // CHECK-NEXT:   %g_1 = mir.binary mul %y, %g : tensor<4xf64>
  // CHECK-NEXT:   %h = mir.binary div %y, %d3 : tensor<4xf64>

  // Functions applied twice, and signs that go into a sum.
  func.func @functions(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %n = mir.unary neg %x : tensor<4xf32>
    %a = mir.unary abs %n : tensor<4xf32>
    %b = mir.unary abs %a : tensor<4xf32>
    %c = mir.unary neg %n : tensor<4xf32>
    %d = mir.binary add %y, %n : tensor<4xf32>
    %f = mir.unary ceil %x : tensor<4xf32>
    %g = mir.unary floor %f : tensor<4xf32>
    func.return %b, %c, %d, %g : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK-LABEL: func.func @functions(
  // CHECK-NEXT:   %a = mir.unary abs %x : tensor<4xf32>
  // CHECK-NEXT:   %d = mir.binary sub %y, %x : tensor<4xf32>
  // CHECK-NEXT:   %f = mir.unary ceil %x : tensor<4xf32>
  // CHECK-NEXT:   func.return %a, %x, %d, %f : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>

  // One cast for two where the first keeps every value; f64 to f32 to f16 would round twice, and
  // i16 to f32 to i8 would saturate where i16 to i8 wraps.
  func.func @casts(%x: tensor<4xf16>, %d: tensor<4xf64>, %i: tensor<4xi16>) -> (tensor<4xf64>, tensor<4xf16>, tensor<4xf16>, tensor<4xi16>, tensor<4xi8>) {
    %a = mir.cast %x : tensor<4xf16> -> tensor<4xf32>
    %b = mir.cast %a : tensor<4xf32> -> tensor<4xf64>
    %c = mir.cast %a : tensor<4xf32> -> tensor<4xf16>
    %e = mir.cast %d : tensor<4xf64> -> tensor<4xf32>
    %f = mir.cast %e : tensor<4xf32> -> tensor<4xf16>
    %g = mir.cast %i : tensor<4xi16> -> tensor<4xf32>
    %h = mir.cast %g : tensor<4xf32> -> tensor<4xi16>
    %j = mir.cast %g : tensor<4xf32> -> tensor<4xi8>
    func.return %b, %c, %f, %h, %j : tensor<4xf64>, tensor<4xf16>, tensor<4xf16>, tensor<4xi16>, tensor<4xi8>
  }
  // CHECK-LABEL: func.func @casts(
  // CHECK-NEXT:   %b = mir.cast %x : tensor<4xf16> -> tensor<4xf64>
  // CHECK-NEXT:   %e = mir.cast %d : tensor<4xf64> -> tensor<4xf32>
  // CHECK-NEXT:   %f = mir.cast %e : tensor<4xf32> -> tensor<4xf16>
  // CHECK-NEXT:   %g = mir.cast %i : tensor<4xi16> -> tensor<4xf32>
  // CHECK-NEXT:   %j = mir.cast %g : tensor<4xf32> -> tensor<4xi8>
  // CHECK-NEXT:   func.return %b, %x, %f, %i, %j : tensor<4xf64>, tensor<4xf16>, tensor<4xf16>, tensor<4xi16>, tensor<4xi8>

  // Selections and negated comparisons; not (x < y) of floats holds for NaN and stays.
  func.func @selections(%x: tensor<4xf32>, %y: tensor<4xf32>, %c: tensor<4xi1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi1>, tensor<4xi1>) {
    %a = mir.select %c, %x, %x : tensor<4xi1>, tensor<4xf32>
    %n = mir.unary not %c : tensor<4xi1>
    %b = mir.select %n, %x, %y : tensor<4xi1>, tensor<4xf32>
    %eq = mir.compare eq %x, %y : tensor<4xf32> -> tensor<4xi1>
    %ne = mir.unary not %eq : tensor<4xi1>
    %lt = mir.compare lt %x, %y : tensor<4xf32> -> tensor<4xi1>
    %ge = mir.unary not %lt : tensor<4xi1>
    func.return %a, %b, %ne, %ge : tensor<4xf32>, tensor<4xf32>, tensor<4xi1>, tensor<4xi1>
  }
  // CHECK-LABEL: func.func @selections(
  // CHECK-NEXT:   %b = mir.select %c, %y, %x : tensor<4xi1>, tensor<4xf32>
  // CHECK-NEXT:   %ne = mir.compare ne %x, %y : tensor<4xf32> -> tensor<4xi1>
  // CHECK-NEXT:   %lt = mir.compare lt %x, %y : tensor<4xf32> -> tensor<4xi1>
  // CHECK-NEXT:   %ge = mir.unary not %lt : tensor<4xi1>
  // CHECK-NEXT:   func.return %x, %b, %ne, %ge : tensor<4xf32>, tensor<4xf32>, tensor<4xi1>, tensor<4xi1>

  // Reductions; one that something else uses is not made again inside another.
  func.func @reductions(%x: tensor<?x1x4xf32, #hir.dims<seq, _, _>>, %i: tensor<4xi32>) -> (tensor<?x4xf32, #hir.dims<seq, _>>, tensor<f32>, tensor<4xi32>, tensor<?xf32, #hir.dims<seq>>, tensor<f32>) {
    %a = mir.reduce max %x axes [1] : tensor<?x1x4xf32, #hir.dims<seq, _, _>> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %n = mir.unary neg %a : tensor<?x4xf32, #hir.dims<seq, _>>
    %b = mir.reduce max %n axes [1] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<?xf32, #hir.dims<seq>>
    %c = mir.reduce max %b axes [0] : tensor<?xf32, #hir.dims<seq>> -> tensor<f32>
    %w = mir.broadcast %i : tensor<4xi32> -> tensor<3x4xi32>
    %s = mir.reduce sum %w axes [0] : tensor<3x4xi32> -> tensor<4xi32>
    %d = mir.reduce min %n axes [1] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<?xf32, #hir.dims<seq>>
    %e = mir.reduce min %d axes [0] : tensor<?xf32, #hir.dims<seq>> -> tensor<f32>
    func.return %a, %c, %s, %d, %e : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<f32>, tensor<4xi32>, tensor<?xf32, #hir.dims<seq>>, tensor<f32>
  }
  // CHECK-LABEL: func.func @reductions(
  // CHECK-NEXT:   %a = mir.reshape %x : tensor<?x1x4xf32, #hir.dims<seq, _, _>> -> tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %n = mir.unary neg %a : tensor<?x4xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %c = mir.reduce max %n axes [0, 1] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<f32>
  // CHECK-NEXT:   %s = mir.constant dense<3> : tensor<4xi32>
  // CHECK-NEXT:   %s_1 = mir.binary mul %i, %s : tensor<4xi32>
  // CHECK-NEXT:   %d = mir.reduce min %n axes [1] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<?xf32, #hir.dims<seq>>
  // CHECK-NEXT:   %e = mir.reduce min %d axes [0] : tensor<?xf32, #hir.dims<seq>> -> tensor<f32>
  // CHECK-NEXT:   func.return %a, %c, %s_1, %d, %e : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<f32>, tensor<4xi32>, tensor<?xf32, #hir.dims<seq>>, tensor<f32>

  // Moves of moves, and moves of nothing.
  func.func @moves(%x: tensor<?x4xf32, #hir.dims<seq, _>>, %y: tensor<8xf32>) -> (tensor<?x4xf32, #hir.dims<seq, _>>, tensor<2xf32>, tensor<2x3x8xf32>, tensor<8x1xf32>, tensor<8xf32>) {
    %a = mir.transpose %x [1, 0] : tensor<?x4xf32, #hir.dims<seq, _>> -> tensor<4x?xf32, #hir.dims<_, seq>>
    %b = mir.transpose %a [1, 0] : tensor<4x?xf32, #hir.dims<_, seq>> -> tensor<?x4xf32, #hir.dims<seq, _>>
    %c = mir.slice %y starts [1] steps [2] : tensor<8xf32> -> tensor<3xf32>
    %d = mir.slice %c starts [1] steps [1] : tensor<3xf32> -> tensor<2xf32>
    %e = mir.broadcast %y : tensor<8xf32> -> tensor<3x8xf32>
    %f = mir.broadcast %e : tensor<3x8xf32> -> tensor<2x3x8xf32>
    %g = mir.reshape %y : tensor<8xf32> -> tensor<1x8xf32>
    %h = mir.transpose %g [1, 0] : tensor<1x8xf32> -> tensor<8x1xf32>
    %i = mir.concat axis 0 (%y) : (tensor<8xf32>) -> tensor<8xf32>
    func.return %b, %d, %f, %h, %i : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<2xf32>, tensor<2x3x8xf32>, tensor<8x1xf32>, tensor<8xf32>
  }
  // CHECK-LABEL: func.func @moves(
  // CHECK-NEXT:   %d = mir.slice %y starts [3] steps [2] : tensor<8xf32> -> tensor<2xf32>
  // CHECK-NEXT:   %f = mir.broadcast %y : tensor<8xf32> -> tensor<2x3x8xf32>
  // CHECK-NEXT:   %h = mir.reshape %y : tensor<8xf32> -> tensor<8x1xf32>
  // CHECK-NEXT:   func.return %x, %d, %f, %h, %y : tensor<?x4xf32, #hir.dims<seq, _>>, tensor<2xf32>, tensor<2x3x8xf32>, tensor<8x1xf32>, tensor<8xf32>

  // A copy of a state, made before an append, is not the state after it.
  func.func @state(%x: tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<32x32xf32> {
    %one = mir.constant dense<1.0> : tensor<32x32xf32>
    %s = mir.load_state @keys : tensor<32x32xf32>
    %copy = mir.binary mul %s, %one : tensor<32x32xf32>
    %v = mir.append %x to %s keys head_dim 16 start "past" : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    func.return %copy : tensor<32x32xf32>
  }
  // CHECK-LABEL: func.func @state(
  // CHECK-NEXT:   %one = mir.constant dense<1.000000e+00> : tensor<32x32xf32>
  // CHECK-NEXT:   %s = mir.load_state @keys : tensor<32x32xf32>
  // CHECK-NEXT:   %copy = mir.binary mul %s, %one : tensor<32x32xf32>
  // CHECK-NEXT:   %v = mir.append %x to %s keys head_dim 16 start "past" : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   func.return %copy : tensor<32x32xf32>

  // Inside a layer, a branch, a loop and not a kernel.
  func.func private @layer(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
    %y = mir.if %c -> (tensor<4xf32>) {
      %a = mir.unary neg %x : tensor<4xf32>
      %b = mir.unary neg %a : tensor<4xf32>
      mir.yield %b : tensor<4xf32>
    } else {
      %n, %z = mir.while (%c, %x) {
      ^bb0(%k: tensor<i1>, %v: tensor<4xf32>):
        %both = mir.binary or %k, %k : tensor<i1>
        mir.yield %both : tensor<i1>
      } do {
      ^bb0(%k: tensor<i1>, %v: tensor<4xf32>):
        %a = mir.unary neg %v : tensor<4xf32>
        %b = mir.unary neg %a : tensor<4xf32>
        %f = mir.binary xor %k, %k : tensor<i1>
        mir.yield %f, %b : tensor<i1>, tensor<4xf32>
      } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
      mir.yield %z : tensor<4xf32>
    } : tensor<i1>
    %k = mir.kernel -> (tensor<4xf32>) {
      %a = mir.unary neg %y : tensor<4xf32>
      %b = mir.unary neg %a : tensor<4xf32>
      mir.yield %b : tensor<4xf32>
    }
    func.return %k : tensor<4xf32>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %y = mir.if %c -> (tensor<4xf32>) {
  // CHECK-NEXT:     mir.yield %x : tensor<4xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     %n, %z = mir.while(%c, %x) {
  // CHECK-NEXT:     ^bb0(%k: tensor<i1>, %v: tensor<4xf32>):
  // CHECK-NEXT:       mir.yield %k : tensor<i1>
  // CHECK-NEXT:     } do {
  // CHECK-NEXT:     ^bb0(%k_1: tensor<i1>, %v_1: tensor<4xf32>):
  // CHECK-NEXT:       %f = mir.constant dense<false> : tensor<i1>
  // CHECK-NEXT:       mir.yield %f, %v_1 : tensor<i1>, tensor<4xf32>
  // CHECK-NEXT:     } : (tensor<i1>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
  // CHECK-NEXT:     mir.yield %z : tensor<4xf32>
  // CHECK-NEXT:   } : tensor<i1>
  // CHECK-NEXT:   %k_2 = mir.kernel -> (tensor<4xf32>) {
  // CHECK-NEXT:     %a = mir.unary neg %y : tensor<4xf32>
  // CHECK-NEXT:     %b = mir.unary neg %a : tensor<4xf32>
  // CHECK-NEXT:     mir.yield %b : tensor<4xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %k_2 : tensor<4xf32>
}
