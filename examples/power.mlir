// The largest eigenvalue of w^T w by power iteration: a loop that runs until its result settles.
//
// rlx-opt examples/power.mlir --run main
builtin.module @power {
  hir.weight @w "w" : tensor<64x64xf32>
  func.func @main(%x: tensor<64x1xf32> {rlx.name = "x"}, %tolerance: tensor<f32> {rlx.name = "tolerance"})
      -> (tensor<f32> {rlx.name = "eigenvalue"}, tensor<i32> {rlx.name = "turns"}) {
    %w = hir.load_weight @w : tensor<64x64xf32>
    %zero = mir.constant dense<0.0> : tensor<f32>
    %far = mir.constant dense<1.0e30> : tensor<f32>
    %none = mir.constant dense<0> : tensor<i32>
    %one = mir.constant dense<1> : tensor<i32>
    %last = mir.constant dense<200> : tensor<i32>
    %v, %value, %change, %turns = mir.while (%x, %zero, %far, %none) {
    ^bb0(%v: tensor<64x1xf32>, %value: tensor<f32>, %change: tensor<f32>, %turn: tensor<i32>):
      %moves = mir.compare gt %change, %tolerance : tensor<f32> -> tensor<i1>
      %more = mir.compare lt %turn, %last : tensor<i32> -> tensor<i1>
      %both = mir.binary and %moves, %more : tensor<i1>
      mir.yield %both : tensor<i1>
    } do {
    ^bb0(%v: tensor<64x1xf32>, %value: tensor<f32>, %change: tensor<f32>, %turn: tensor<i32>):
      %u = mir.dot %w, %v : tensor<64x64xf32>, tensor<64x1xf32> -> tensor<64x1xf32>
      %z = mir.dot %w lhs_t, %u : tensor<64x64xf32>, tensor<64x1xf32> -> tensor<64x1xf32>
      %squares = mir.binary mul %z, %z : tensor<64x1xf32>
      %sum = mir.reduce sum %squares axes [0, 1] : tensor<64x1xf32> -> tensor<f32>
      %norm = mir.unary sqrt %sum : tensor<f32>
      %wide = mir.broadcast %norm : tensor<f32> -> tensor<64x1xf32>
      %next = mir.binary div %z, %wide : tensor<64x1xf32>
      %difference = mir.binary sub %norm, %value : tensor<f32>
      %moved = mir.unary abs %difference : tensor<f32>
      %count = mir.binary add %turn, %one : tensor<i32>
      mir.yield %next, %norm, %moved, %count : tensor<64x1xf32>, tensor<f32>, tensor<f32>, tensor<i32>
    } : (tensor<64x1xf32>, tensor<f32>, tensor<f32>, tensor<i32>)
      -> (tensor<64x1xf32>, tensor<f32>, tensor<f32>, tensor<i32>)
    func.return %value, %turns : tensor<f32>, tensor<i32>
  }
}
