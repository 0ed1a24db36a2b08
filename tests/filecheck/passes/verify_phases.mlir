// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p 'verify-stage{stage=mir}' | filecheck %s

// A consumer in an earlier phase than its producer.
// CHECK: mir.unary in @main is of the phase steady_state but needs a result of mir.unary, of the phase epilogue: let it have a later phase
builtin.module {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %a = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
    %b = mir.unary neg %a : tensor<4xf32> {phase = #mir<phase steady_state>}
    func.return %b : tensor<4xf32>
  }
}

// -----

// The prologue has no inputs.
// CHECK: mir.unary in @main is of the phase prologue but needs the argument %x, which comes with each step: let it have a later phase
builtin.module {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %a = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase prologue>}
    func.return %a : tensor<4xf32>
  }
}

// -----

// A loop needs what its regions use.
// CHECK: mir.while in @main is of the phase steady_state but needs a result of mir.unary, of the phase epilogue
builtin.module {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}, %c: tensor<i1> {rlx.name = "c"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %a = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
    %l = mir.while (%x) {
    ^bb0(%v: tensor<4xf32>):
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%v: tensor<4xf32>):
      %s = mir.binary add %v, %a : tensor<4xf32>
      mir.yield %s : tensor<4xf32>
    } attributes {phase = #mir<phase steady_state>} : (tensor<4xf32>) -> (tensor<4xf32>)
    func.return %l : tensor<4xf32>
  }
}

// -----

// What a branch holds runs with it.
// CHECK: mir.unary: runs with the mir.if around it: expected no phase of its own
builtin.module {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}, %c: tensor<i1> {rlx.name = "c"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %r = mir.if %c -> (tensor<4xf32>) {
      %a = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
      mir.yield %a : tensor<4xf32>
    } else {
      mir.yield %x : tensor<4xf32>
    } : tensor<i1>
    func.return %r : tensor<4xf32>
  }
}

// -----

// What a step says the size of is not made before it.
// CHECK: mir.iota: the prologue makes [seq] f32, but each step says how large it is
builtin.module attributes {rlx.dims = #hir.dim_table<n = 4, seq = 1 to 8>} {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<?xf32, #hir.dims<seq>> {rlx.name = "y"}) {
    %a = mir.iota axis 0 : tensor<?xf32, #hir.dims<n>> {phase = #mir<phase prologue>}
    %b = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>> {phase = #mir<phase prologue>}
    func.return %b : tensor<?xf32, #hir.dims<seq>>
  }
}

// -----

// Nothing is wrong where the phases follow the order, or are not written yet.
// CHECK: func.func @main
// CHECK-NOT: error
builtin.module {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %a = mir.unary exp %x : tensor<4xf32> {phase = #mir<phase epilogue>}
    %b = mir.unary neg %a : tensor<4xf32>
    %c = mir.unary neg %b : tensor<4xf32> {phase = #mir<phase epilogue>}
    func.return %c : tensor<4xf32>
  }
}
