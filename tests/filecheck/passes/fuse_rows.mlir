// RUN: rlx-opt %s -p fuse-rows | filecheck %s
// RUN: rlx-opt %s -p 'fuse-rows{report=true}' | filecheck %s --check-prefix=REPORT
// RUN: rlx-opt %s -p 'fuse-rows{target=wgpu}' | filecheck %s --check-prefix=GATE

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16>} {
  // A row program in a layer function, with a reshape as the link and a number in both of its uses.
  func.func private @layer(%x: tensor<?x8xf32, #hir.dims<seq, _>>) -> tensor<?x8xf32, #hir.dims<seq, _>> {
    %c = mir.constant dense<2.0> : tensor<f32>
    %b = mir.broadcast %c : tensor<f32> -> tensor<?x8xf32, #hir.dims<seq, _>>
    %s = mir.binary mul %x, %b : tensor<?x8xf32, #hir.dims<seq, _>>
    %m = mir.reduce max %s axes [1] : tensor<?x8xf32, #hir.dims<seq, _>> -> tensor<?xf32, #hir.dims<seq>>
    %m1 = mir.reshape %m : tensor<?xf32, #hir.dims<seq>> -> tensor<?x1xf32, #hir.dims<seq, _>>
    %mb = mir.broadcast %m1 : tensor<?x1xf32, #hir.dims<seq, _>> -> tensor<?x8xf32, #hir.dims<seq, _>>
    %d = mir.binary sub %s, %mb : tensor<?x8xf32, #hir.dims<seq, _>>
    %y = mir.binary div %d, %b : tensor<?x8xf32, #hir.dims<seq, _>>
    func.return %y : tensor<?x8xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:    %y = mir.kernel -> (tensor<?x8xf32, #hir.dims<seq, _>>) {
  // CHECK-DAG:       mir.constant dense<2.000000e+00> : tensor<f32>
  // CHECK-DAG:       mir.binary mul
  // CHECK-DAG:       mir.reduce max
  // CHECK-DAG:       mir.reshape
  // CHECK-DAG:       mir.binary sub
  // CHECK:           %y_1 = mir.binary div
  // CHECK-NEXT:      mir.yield %y_1 : tensor<?x8xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:    }
  // CHECK-NEXT:    func.return %y : tensor<?x8xf32, #hir.dims<seq, _>>
  // GATE-LABEL: func.func private @layer(
  // GATE-NOT:      mir.kernel

  // A broadcast is copied into each of its consumers, a value with other users is yielded, and a
  // lone operation stays alone.
  func.func private @used_twice(%x: tensor<4x8xf32>, %v: tensor<8xf32>, %w: tensor<8x8x!hir.packed<f32>>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
    %b = mir.broadcast %v : tensor<8xf32> -> tensor<4x8xf32>
    %s = mir.binary add %x, %b : tensor<4x8xf32>
    %e = mir.unary exp %s : tensor<4x8xf32>
    %y = mir.matmul %s, %w : tensor<4x8xf32>, tensor<8x8x!hir.packed<f32>> -> tensor<4x8xf32>
    %z = mir.binary mul %y, %b : tensor<4x8xf32>
    %a = mir.unary neg %y : tensor<4x8xf32>
    func.return %e, %z, %a : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
  }
  // CHECK-LABEL: func.func private @used_twice(
  // CHECK-NEXT:    %s, %e = mir.kernel -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  // CHECK-NEXT:      %b = mir.broadcast %v : tensor<8xf32> -> tensor<4x8xf32>
  // CHECK-NEXT:      %s_1 = mir.binary add %x, %b : tensor<4x8xf32>
  // CHECK-NEXT:      %e_1 = mir.unary exp %s_1 : tensor<4x8xf32>
  // CHECK-NEXT:      mir.yield %s_1, %e_1 : tensor<4x8xf32>, tensor<4x8xf32>
  // CHECK-NEXT:    }
  // CHECK-NEXT:    %y = mir.matmul %s, %w : tensor<4x8xf32>, tensor<8x8x!hir.packed<f32>> -> tensor<4x8xf32>
  // CHECK-NEXT:    %z = mir.kernel -> (tensor<4x8xf32>) {
  // CHECK-NEXT:      %b_1 = mir.broadcast %v : tensor<8xf32> -> tensor<4x8xf32>
  // CHECK-NEXT:      %z_1 = mir.binary mul %y, %b_1 : tensor<4x8xf32>
  // CHECK-NEXT:      mir.yield %z_1 : tensor<4x8xf32>
  // CHECK-NEXT:    }
  // CHECK-NEXT:    %a = mir.unary neg %y : tensor<4x8xf32>
  // CHECK-NEXT:    func.return %e, %z, %a : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>

  // Refused: %d needs what comes between, which needs %s and is no row program.
  func.func private @cycle(%x: tensor<4x8xf32>, %w: tensor<8x8x!hir.packed<f32>>) -> tensor<4x8xf32> {
    %s = mir.unary exp %x : tensor<4x8xf32>
    %y = mir.matmul %s, %w : tensor<4x8xf32>, tensor<8x8x!hir.packed<f32>> -> tensor<4x8xf32>
    %d = mir.binary add %s, %y : tensor<4x8xf32>
    func.return %d : tensor<4x8xf32>
  }
  // CHECK-LABEL: func.func private @cycle(
  // CHECK-NEXT:    %s = mir.unary exp %x : tensor<4x8xf32>
  // CHECK-NEXT:    %y = mir.matmul %s, %w : tensor<4x8xf32>, tensor<8x8x!hir.packed<f32>> -> tensor<4x8xf32>
  // CHECK-NEXT:    %d = mir.binary add %s, %y : tensor<4x8xf32>
  // CHECK-NEXT:    func.return %d : tensor<4x8xf32>

  // A value behind a cast to fewer bytes is stored as that: the cast up is copied, the one down isn't.
  func.func private @stored(%x: tensor<4x8xf32>, %w: tensor<8x8x!hir.packed<f32>>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %e = mir.unary exp %x : tensor<4x8xf32>
    %h = mir.cast %e : tensor<4x8xf32> -> tensor<4x8xbf16>
    %f = mir.cast %h : tensor<4x8xbf16> -> tensor<4x8xf32>
    %y = mir.matmul %x, %w : tensor<4x8xf32>, tensor<8x8x!hir.packed<f32>> -> tensor<4x8xf32>
    %a = mir.binary add %f, %y : tensor<4x8xf32>
    %z = mir.matmul %a, %w : tensor<4x8xf32>, tensor<8x8x!hir.packed<f32>> -> tensor<4x8xf32>
    %b = mir.binary add %f, %z : tensor<4x8xf32> {phase = #mir<phase epilogue>}
    func.return %a, %b : tensor<4x8xf32>, tensor<4x8xf32>
  }
  // CHECK-LABEL: func.func private @stored(
  // CHECK:         %h, %a = mir.kernel -> (tensor<4x8xbf16>, tensor<4x8xf32>) {
  // CHECK:         %b = mir.kernel -> (tensor<4x8xf32>) {
  // CHECK-NEXT:      %f_1 = mir.cast %h : tensor<4x8xbf16> -> tensor<4x8xf32>
  // CHECK-NEXT:      %b_1 = mir.binary add %f_1, %z : tensor<4x8xf32>

  // In a branch and in a loop: what stands outside stays there, but for what costs nothing.
  func.func @main(%x: tensor<4x8xf32>, %if: tensor<i1>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %c = mir.constant dense<1.0> : tensor<4x8xf32>
    %e = mir.unary exp %x : tensor<4x8xf32>
    %r = mir.if %if -> (tensor<4x8xf32>) {
      %a = mir.binary add %e, %c : tensor<4x8xf32>
      %n = mir.unary neg %a : tensor<4x8xf32>
      mir.yield %n : tensor<4x8xf32>
    } else {
      mir.yield %e : tensor<4x8xf32>
    } : tensor<i1>
    %w = mir.while (%r) {
    ^bb0(%v: tensor<4x8xf32>):
      %m = mir.reduce max %v axes [0, 1] : tensor<4x8xf32> -> tensor<f32>
      %one = mir.constant dense<100.0> : tensor<f32>
      %t = mir.compare lt %m, %one : tensor<f32> -> tensor<i1>
      mir.yield %t : tensor<i1>
    } do {
    ^bb0(%v: tensor<4x8xf32>):
      %p = mir.binary add %v, %c : tensor<4x8xf32>
      %q = mir.binary mul %p, %p : tensor<4x8xf32>
      mir.yield %q : tensor<4x8xf32>
    } : (tensor<4x8xf32>) -> (tensor<4x8xf32>)
    func.return %r, %w : tensor<4x8xf32>, tensor<4x8xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:    %e = mir.unary exp %x : tensor<4x8xf32>
  // CHECK-NEXT:    %r = mir.if %if -> (tensor<4x8xf32>) {
  // CHECK-NEXT:      %n = mir.kernel -> (tensor<4x8xf32>) {
  // CHECK-NEXT:        %c = mir.constant dense<1.000000e+00> : tensor<4x8xf32>
  // CHECK-NEXT:        %a = mir.binary add %e, %c : tensor<4x8xf32>
  // CHECK-NEXT:        %n_1 = mir.unary neg %a : tensor<4x8xf32>
  // CHECK-NEXT:        mir.yield %n_1 : tensor<4x8xf32>
  // CHECK-NEXT:      }
  // CHECK-NEXT:      mir.yield %n : tensor<4x8xf32>
  // CHECK-NEXT:    } else {
  // CHECK-NEXT:      mir.yield %e : tensor<4x8xf32>
  // CHECK-NEXT:    } : tensor<i1>
  // CHECK-NEXT:    %w = mir.while(%r) {
  // CHECK-NEXT:    ^bb0(%v: tensor<4x8xf32>):
  // CHECK-NEXT:      %t = mir.kernel -> (tensor<i1>) {
  // CHECK:             mir.reduce max %v
  // CHECK:             mir.yield
  // CHECK-NEXT:      }
  // CHECK-NEXT:      mir.yield %t : tensor<i1>
  // CHECK-NEXT:    } do {
  // CHECK-NEXT:    ^bb0(%v_1: tensor<4x8xf32>):
  // CHECK-NEXT:      %q = mir.kernel -> (tensor<4x8xf32>) {
  // CHECK-NEXT:        %c_1 = mir.constant dense<1.000000e+00> : tensor<4x8xf32>
  // CHECK-NEXT:        %p = mir.binary add %v_1, %c_1 : tensor<4x8xf32>
  // CHECK-NEXT:        %q_1 = mir.binary mul %p, %p : tensor<4x8xf32>

  // REPORT: {rule = "fuse-rows", function = "cycle", op = "binary add %d", kernel = "unary exp %s", fused = false, launches = [2 : i64, 1 : i64], bytes = [640 : i64, 512 : i64], score_ns = 5.256000e+01 : f64, reason = "an operation between them needs the one and feeds the other"}
  // REPORT-SAME: reason = "they stand in different blocks"
}
