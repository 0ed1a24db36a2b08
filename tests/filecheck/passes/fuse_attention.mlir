// RUN: rlx-opt %s -p fuse-attention | filecheck %s
// RUN: rlx-opt %s -p 'fuse-attention{report=true}' | filecheck %s --check-prefix=REPORT

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 16>} {
  // In a layer function: a scale, a causal choice, keys that come transposed, and two heads of keys
  // for four of queries, with a symbolic length.
  func.func private @layer(%q: tensor<4x?x8xf32, #hir.dims<_, seq, _>>, %k: tensor<2x?x8xf32, #hir.dims<_, seq, _>>, %v: tensor<2x?x8xf32, #hir.dims<_, seq, _>>) -> tensor<4x?x8xf32, #hir.dims<_, seq, _>> {
    %k1 = mir.reshape %k : tensor<2x?x8xf32, #hir.dims<_, seq, _>> -> tensor<2x1x?x8xf32, #hir.dims<_, _, seq, _>>
    %k2 = mir.broadcast %k1 : tensor<2x1x?x8xf32, #hir.dims<_, _, seq, _>> -> tensor<2x2x?x8xf32, #hir.dims<_, _, seq, _>>
    %k3 = mir.reshape %k2 : tensor<2x2x?x8xf32, #hir.dims<_, _, seq, _>> -> tensor<4x?x8xf32, #hir.dims<_, seq, _>>
    %kt = mir.transpose %k3 [0, 2, 1] : tensor<4x?x8xf32, #hir.dims<_, seq, _>> -> tensor<4x8x?xf32, #hir.dims<_, _, seq>>
    %v1 = mir.reshape %v : tensor<2x?x8xf32, #hir.dims<_, seq, _>> -> tensor<2x1x?x8xf32, #hir.dims<_, _, seq, _>>
    %v2 = mir.broadcast %v1 : tensor<2x1x?x8xf32, #hir.dims<_, _, seq, _>> -> tensor<2x2x?x8xf32, #hir.dims<_, _, seq, _>>
    %v3 = mir.reshape %v2 : tensor<2x2x?x8xf32, #hir.dims<_, _, seq, _>> -> tensor<4x?x8xf32, #hir.dims<_, seq, _>>
    %s = mir.dot %q, %kt : tensor<4x?x8xf32, #hir.dims<_, seq, _>>, tensor<4x8x?xf32, #hir.dims<_, _, seq>> -> tensor<4x?x?xf32, #hir.dims<_, seq, seq>>
    %c = mir.constant dense<0.25> : tensor<f32>
    %cb = mir.broadcast %c : tensor<f32> -> tensor<4x?x?xf32, #hir.dims<_, seq, seq>>
    %sc = mir.binary mul %s, %cb : tensor<4x?x?xf32, #hir.dims<_, seq, seq>>
    %i = mir.iota axis 0 : tensor<?x1xi32, #hir.dims<seq, _>>
    %ib = mir.broadcast %i : tensor<?x1xi32, #hir.dims<seq, _>> -> tensor<?x?xi32, #hir.dims<seq, seq>>
    %j = mir.iota axis 0 : tensor<?xi32, #hir.dims<seq>>
    %jb = mir.broadcast %j : tensor<?xi32, #hir.dims<seq>> -> tensor<?x?xi32, #hir.dims<seq, seq>>
    %le = mir.compare le %jb, %ib : tensor<?x?xi32, #hir.dims<seq, seq>> -> tensor<?x?xi1, #hir.dims<seq, seq>>
    %leb = mir.broadcast %le : tensor<?x?xi1, #hir.dims<seq, seq>> -> tensor<4x?x?xi1, #hir.dims<_, seq, seq>>
    %n = mir.constant dense<-1.0e30> : tensor<f32>
    %nb = mir.broadcast %n : tensor<f32> -> tensor<4x?x?xf32, #hir.dims<_, seq, seq>>
    %m = mir.select %leb, %sc, %nb : tensor<4x?x?xi1, #hir.dims<_, seq, seq>>, tensor<4x?x?xf32, #hir.dims<_, seq, seq>>
    %p = mir.softmax %m : tensor<4x?x?xf32, #hir.dims<_, seq, seq>>
    %y = mir.dot %p, %v3 : tensor<4x?x?xf32, #hir.dims<_, seq, seq>>, tensor<4x?x8xf32, #hir.dims<_, seq, _>> -> tensor<4x?x8xf32, #hir.dims<_, seq, _>>
    func.return %y : tensor<4x?x8xf32, #hir.dims<_, seq, _>>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:    %y = mir.sdpa %q, %k, %v scale 0.25 causal : tensor<4x?x8xf32, #hir.dims<_, seq, _>>, tensor<2x?x8xf32, #hir.dims<_, seq, _>>, tensor<2x?x8xf32, #hir.dims<_, seq, _>> -> tensor<4x?x8xf32, #hir.dims<_, seq, _>>
  // CHECK-NEXT:    func.return %y : tensor<4x?x8xf32, #hir.dims<_, seq, _>>

  // In a loop and in a branch, without heads and with a mask; refused where the weights are used.
  func.func @main(%x: tensor<4x8xf32>, %mask: tensor<4x4xf32>, %if: tensor<i1>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>) {
    %r, %u = mir.if %if -> (tensor<4x8xf32>, tensor<4x4xf32>) {
      %s = mir.dot %x, %x rhs_t : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x4xf32>
      %m = mir.binary add %s, %mask : tensor<4x4xf32>
      %p = mir.softmax %m : tensor<4x4xf32>
      %y = mir.dot %p, %x : tensor<4x4xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
      mir.yield %y, %mask : tensor<4x8xf32>, tensor<4x4xf32>
    } else {
      %s = mir.dot %x, %x rhs_t : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x4xf32>
      %weights = mir.softmax %s : tensor<4x4xf32>
      %y = mir.dot %weights, %x : tensor<4x4xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
      mir.yield %y, %weights : tensor<4x8xf32>, tensor<4x4xf32>
    } : tensor<i1>
    %w = mir.while (%r) {
    ^bb0(%v: tensor<4x8xf32>):
      mir.yield %if : tensor<i1>
    } do {
    ^bb0(%v: tensor<4x8xf32>):
      %s = mir.dot %v, %x rhs_t : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x4xf32>
      %p = mir.softmax %s : tensor<4x4xf32>
      %y = mir.dot %p, %x : tensor<4x4xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
      mir.yield %y : tensor<4x8xf32>
    } : (tensor<4x8xf32>) -> (tensor<4x8xf32>)
    func.return %r, %w, %u : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:    %r, %u = mir.if %if
  // CHECK-COUNT-3:   mir.reshape %x : tensor<4x8xf32> -> tensor<1x4x8xf32>
  // CHECK-NEXT:      mir.sdpa {{%.*}}, {{%.*}}, {{%.*}} mask %mask : tensor<4x4xf32> scale 1.0 : tensor<1x4x8xf32>, tensor<1x4x8xf32>, tensor<1x4x8xf32> -> tensor<1x4x8xf32>
  // CHECK-NEXT:      [[Y:%.*]] = mir.reshape {{%.*}} : tensor<1x4x8xf32> -> tensor<4x8xf32>
  // CHECK-NEXT:      mir.yield [[Y]], %mask : tensor<4x8xf32>, tensor<4x4xf32>
  // CHECK-NEXT:    } else {
  // CHECK-NEXT:      %s = mir.dot
  // CHECK-NEXT:      %weights = mir.softmax %s : tensor<4x4xf32>
  // CHECK-NEXT:      {{%.*}} = mir.dot %weights, %x
  // CHECK:         } do {
  // CHECK:           mir.sdpa
  // CHECK-NOT:       mir.softmax

  // REPORT: op = "softmax %weights", kernel = "dot %s, dot %y", fused = false
  // REPORT-SAME: reason = "several consumers of mir.softmax"
}
