// RUN: rlx-opt %s -p fuse-shared-input | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 512, past = 0 to 2048, keys = past + seq>} {
  // Matmuls of one input become one kernel, with the results in their order; loads stay before it.
  // A layer function is a function like others. %o has another input.
  func.func private @layer(%x: tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
    %wq = mir.load_weight @wq : tensor<64x64xf32>
    %pq = mir.pack %wq : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
    %q = mir.matmul %x, %pq : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %wk = mir.load_weight @wk : tensor<64x64x!hir.q<q4_1>>
    %pk = mir.pack %wk : tensor<64x64x!hir.q<q4_1>> -> tensor<64x64x!hir.packed<q4_1>>
    %k = mir.matmul %x, %pk : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<q4_1>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %a = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<seq, _>>
    %o = mir.matmul %a, %pq : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    func.return %o : tensor<?x64xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %wq = mir.load_weight @wq : tensor<64x64xf32>
  // CHECK-NEXT:   %pq = mir.pack %wq : tensor<64x64xf32> -> tensor<64x64x!hir.packed<f32>>
  // CHECK-NEXT:   %wk = mir.load_weight @wk : tensor<64x64x!hir.q<q4_1>>
  // CHECK-NEXT:   %pk = mir.pack %wk : tensor<64x64x!hir.q<q4_1>> -> tensor<64x64x!hir.packed<q4_1>>
  // CHECK-NEXT:   %q, %k = mir.kernel -> (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<seq, _>>) {
  // CHECK-NEXT:     %q_1 = mir.matmul %x, %pq : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:     %k_1 = mir.matmul %x, %pk : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<q4_1>> -> tensor<?x64xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:     mir.yield %q_1, %k_1 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %a = mir.attention %q, %k, %k head_dim 16 scale 0.25 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   %o = mir.matmul %a, %pq : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x64x!hir.packed<f32>> -> tensor<?x64xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %o : tensor<?x64xf32, #hir.dims<seq, _>>
  func.func @main(%x: tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
    %y = mir.repeat @layer(%x) layers 0 to 2 : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
    func.return %y : tensor<?x64xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:   %y = mir.repeat @layer(%x) layers 0 to 2 : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %y : tensor<?x64xf32, #hir.dims<seq, _>>

  // What uses a result between the matmuls follows the kernel.
  func.func private @used_between(%x: tensor<4x64xf32>, %wg: tensor<32x64x!hir.packed<f32>>) -> tensor<4x32xf32> {
    %gate = mir.matmul %x, %wg : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.unary silu %gate : tensor<4x32xf32>
    %wu = mir.load_weight @wu : tensor<32x64xf32>
    %pu = mir.pack %wu : tensor<32x64xf32> -> tensor<32x64x!hir.packed<f32>>
    %up = mir.matmul %x, %pu : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
    %p = mir.binary mul %s, %up : tensor<4x32xf32>
    func.return %p : tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @used_between(
  // CHECK-NEXT:   %wu = mir.load_weight @wu : tensor<32x64xf32>
  // CHECK-NEXT:   %pu = mir.pack %wu : tensor<32x64xf32> -> tensor<32x64x!hir.packed<f32>>
  // CHECK-NEXT:   %gate, %up = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
  // CHECK-NEXT:     %gate_1 = mir.matmul %x, %wg : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %up_1 = mir.matmul %x, %pu : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %gate_1, %up_1 : tensor<4x32xf32>, tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %s = mir.unary silu %gate : tensor<4x32xf32>
  // CHECK-NEXT:   %p = mir.binary mul %s, %up : tensor<4x32xf32>
  // CHECK-NEXT:   func.return %p : tensor<4x32xf32>

  // Kernels of matmuls merge too, so that the fusion passes can run in any order.
  func.func private @kernels(%x: tensor<4x64xf32>, %w: tensor<32x64x!hir.packed<f32>>, %v: tensor<16x64x!hir.packed<f32>>) -> (tensor<4x32xf32>, tensor<4x16xf32>) {
    %a = mir.kernel -> (tensor<4x32xf32>) {
      %a0 = mir.matmul %x, %w : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
      %a1 = mir.unary exp %a0 : tensor<4x32xf32>
      mir.yield %a1 : tensor<4x32xf32>
    }
    %b = mir.matmul %x, %v : tensor<4x64xf32>, tensor<16x64x!hir.packed<f32>> -> tensor<4x16xf32>
    func.return %a, %b : tensor<4x32xf32>, tensor<4x16xf32>
  }
  // CHECK-LABEL: func.func private @kernels(
  // CHECK-NEXT:   %b, %a1 = mir.kernel -> (tensor<4x16xf32>, tensor<4x32xf32>) {
  // CHECK-NEXT:     %a0 = mir.matmul %x, %w : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %b_1 = mir.matmul %x, %v : tensor<4x64xf32>, tensor<16x64x!hir.packed<f32>> -> tensor<4x16xf32>
  // CHECK-NEXT:     %a1_1 = mir.unary exp %a0 : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %b_1, %a1_1 : tensor<4x16xf32>, tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %a1, %b : tensor<4x32xf32>, tensor<4x16xf32>

  // A result that nobody uses is not yielded.
  func.func private @unused(%x: tensor<4x64xf32>, %w: tensor<32x64x!hir.packed<f32>>, %v: tensor<16x64x!hir.packed<f32>>) -> tensor<4x16xf32> {
    %a = mir.matmul %x, %w : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
    %b = mir.matmul %x, %v : tensor<4x64xf32>, tensor<16x64x!hir.packed<f32>> -> tensor<4x16xf32>
    func.return %b : tensor<4x16xf32>
  }
  // CHECK-LABEL: func.func private @unused(
  // CHECK-NEXT:   %b = mir.kernel -> (tensor<4x16xf32>) {
  // CHECK-NEXT:     %a = mir.matmul %x, %w : tensor<4x64xf32>, tensor<32x64x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %b_1 = mir.matmul %x, %v : tensor<4x64xf32>, tensor<16x64x!hir.packed<f32>> -> tensor<4x16xf32>
  // CHECK-NEXT:     mir.yield %b_1 : tensor<4x16xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %b : tensor<4x16xf32>

  // Refused: other inputs, one matmul alone, another phase.
  func.func private @refused(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %b = mir.matmul %a, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %c = mir.matmul %b, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %d = mir.matmul %b, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32> {phase = #mir<phase epilogue>}
    func.return %c, %d : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @refused(
  // CHECK-NEXT:   %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:   %b = mir.matmul %a, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:   %c = mir.matmul %b, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:   %d = mir.matmul %b, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32> {phase = #mir<phase epilogue>}
  // CHECK-NEXT:   func.return %c, %d : tensor<4x32xf32>, tensor<4x32xf32>

  // In a branch and in a loop: those of one block. %a is computed whether or not the branch is taken.
  func.func private @control(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %if: tensor<i1>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %r = mir.if %if -> (tensor<4x32xf32>) {
      %b = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %c = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %s = mir.binary mul %b, %c : tensor<4x32xf32>
      mir.yield %s : tensor<4x32xf32>
    } else {
      mir.yield %a : tensor<4x32xf32>
    } : tensor<i1>
    %l = mir.while (%r) {
    ^bb0(%v: tensor<4x32xf32>):
      mir.yield %if : tensor<i1>
    } do {
    ^bb0(%v: tensor<4x32xf32>):
      %d = mir.matmul %v, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %e = mir.matmul %v, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %s = mir.binary mul %d, %e : tensor<4x32xf32>
      mir.yield %s : tensor<4x32xf32>
    } : (tensor<4x32xf32>) -> (tensor<4x32xf32>)
    func.return %a, %l : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @control(
  // CHECK-NEXT:   %a = mir.matmul %x, %w
  // CHECK-NEXT:   %r = mir.if %if -> (tensor<4x32xf32>) {
  // CHECK-NEXT:     %b, %c = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
  // CHECK-NEXT:       %b_1 = mir.matmul %x, %w
  // CHECK-NEXT:       %c_1 = mir.matmul %x, %w
  // CHECK:          %s = mir.binary mul %b, %c : tensor<4x32xf32>
  // CHECK:        } do {
  // CHECK-NEXT:   ^bb0(%v_1: tensor<4x32xf32>):
  // CHECK-NEXT:     %d, %e = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
}
