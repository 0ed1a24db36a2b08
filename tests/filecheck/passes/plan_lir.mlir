// RUN: rlx-opt %s --split-input-file -p plan-lir,verify-plan | filecheck %s

// A residual is added in place; what the caller binds has no slot; threads wait where rows meet.
builtin.module @residual {
  hir.weight @w "w" : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"}) -> (tensor<1x16xf32> {rlx.name = "y"}) {
    %h = mir.unary exp %x : tensor<1x16xf32>
    %w = mir.load_weight @w : tensor<16x16xf32>
    %p = mir.pack %w : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    %m = mir.matmul %h, %p : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32>
    %a = mir.binary add %h, %m : tensor<1x16xf32>
    %n = mir.matmul %a, %p : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32>
    %y = mir.binary add %a, %n : tensor<1x16xf32>
    func.return %y : tensor<1x16xf32>
  }
}
// CHECK-LABEL: builtin.module @residual
// CHECK-NEXT:   lir.weight @w "w" offset 0 stride 1024 layers 0 to 1 source 0 : tensor<16x16x!hir.packed<f32>>
// CHECK: lir.program @residual arena 64 lower_bound 64 alignment 64 state 0 weights 1024 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %1 = lir.output "y" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %2 = lir.slot offset 0 size 64 : tensor<1x16xf32>
// CHECK-NEXT:     %3 = lir.slot offset 0 size 64 : tensor<1x16xf32>
// CHECK-NEXT:     %4 = lir.source @w : tensor<16x16xf32>
// CHECK-NEXT:     %5 = lir.ref @w : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:     lir.launch @pack prologue ins(%4 : {{.*}}) outs(%5 :
// CHECK-NEXT:     lir.launch @exp steady_state ins(%0 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @matmul steady_state ins(%1, %5 : {{.*}}) outs(%2 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @add steady_state ins(%1, %2 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @matmul steady_state ins(%1, %5 : {{.*}}) outs(%3 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @add steady_state ins(%1, %3 : {{.*}}) outs(%1 :
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// A layer is planned once. What it carries stays in one buffer, where it is updated in place.
// Weights of a family and states have a member for each layer, other weights one for all.
builtin.module @loop attributes {rlx.dims = #hir.dim_table<seq = 1 to 4, past = 0 to 12, keys = past + seq>} {
  hir.weight @w "w.{layer}" : tensor<16x16xf32>
  hir.weight @one "one" : tensor<16x16xf32>
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  hir.state @v values head_dim 16 : tensor<16x16xf32>
  func.func private @layer(%x: tensor<?x16xf32, #hir.dims<seq, _>>, %cos: tensor<16x16xf32>, %sin: tensor<16x16xf32>) -> tensor<?x16xf32, #hir.dims<seq, _>> {
    %w = mir.load_weight @w : tensor<16x16xf32>
    %p = mir.pack %w : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    %q = mir.matmul %x, %p : tensor<?x16xf32, #hir.dims<seq, _>>, tensor<16x16x!hir.packed<f32>> -> tensor<?x16xf32, #hir.dims<seq, _>>
    %r = mir.rope %q, %cos, %sin start "past" head_dim 16 : tensor<?x16xf32, #hir.dims<seq, _>>, tensor<16x16xf32>, tensor<16x16xf32>
    %k = mir.load_state @k : tensor<16x16xf32>
    %v = mir.load_state @v : tensor<16x16xf32>
    %ks = mir.append %r to %k keys head_dim 16 start "past" : tensor<?x16xf32, #hir.dims<seq, _>>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %vs = mir.append %q to %v values head_dim 16 start "past" : tensor<?x16xf32, #hir.dims<seq, _>>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %a = mir.attention %r, %ks, %vs head_dim 16 scale 0.25 : tensor<?x16xf32, #hir.dims<seq, _>>, tensor<?x16xf32, #hir.dims<keys, _>>
    %o = mir.load_weight @one : tensor<16x16xf32>
    %po = mir.pack %o : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    %y = mir.kernel -> (tensor<?x16xf32, #hir.dims<seq, _>>) {
      %m = mir.matmul %a, %po : tensor<?x16xf32, #hir.dims<seq, _>>, tensor<16x16x!hir.packed<f32>> -> tensor<?x16xf32, #hir.dims<seq, _>>
      %s = mir.binary add %x, %m : tensor<?x16xf32, #hir.dims<seq, _>>
      mir.yield %s : tensor<?x16xf32, #hir.dims<seq, _>>
    }
    func.return %y : tensor<?x16xf32, #hir.dims<seq, _>>
  }
  func.func @main(%x: tensor<?x16xf32, #hir.dims<seq, _>> {rlx.name = "x"}) -> (tensor<?x16xf32, #hir.dims<seq, _>> {rlx.name = "y"}) {
    %cos, %sin = mir.rope_table base 1.0e+04 : tensor<16x16xf32>, tensor<16x16xf32> {phase = #mir<phase prologue>}
    %y = mir.repeat @layer(%x, %cos, %sin) layers 2 to 5 : (tensor<?x16xf32, #hir.dims<seq, _>>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<?x16xf32, #hir.dims<seq, _>>
    func.return %y : tensor<?x16xf32, #hir.dims<seq, _>>
  }
}
// CHECK-LABEL: builtin.module @loop
// CHECK-NEXT:   lir.weight @w "w.{layer}" offset 0 stride 1024 layers 2 to 5 source 0 : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:   lir.weight @one "one" offset 3072 stride 1024 layers 0 to 1 source 3 : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:   lir.state @k keys head_dim 16 offset 0 stride 1024 layers 2 to 5 : tensor<16x16xf32>
// CHECK-NEXT:   lir.state @v values head_dim 16 offset 3072 stride 1024 layers 2 to 5 : tensor<16x16xf32>
// CHECK: lir.program @loop arena 2560 lower_bound 2560 alignment 64 state 6144 weights 4096 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<?x16xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %1 = lir.output "y" index 0 : tensor<?x16xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %2 = lir.slot offset 0 size 1024 : tensor<16x16xf32>
// CHECK-NEXT:     %3 = lir.slot offset 1024 size 1024 : tensor<16x16xf32>
// CHECK-NEXT:     %4 = lir.slot offset 2048 size 256 : tensor<?x16xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %5 = lir.slot offset 2304 size 256 : tensor<?x16xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %6 = lir.slot offset 2048 size 256 : tensor<?x16xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %7 = lir.source @one : tensor<16x16xf32>
// CHECK-NEXT:     %8 = lir.ref @one : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:     lir.launch @pack prologue ins(%7 : {{.*}}) outs(%8 :
// CHECK-NEXT:     lir.loop 2 to 5 {
// CHECK-NEXT:     ^bb0(%layer: index):
// CHECK-NEXT:       %9 = lir.source @w layer %layer : tensor<16x16xf32>
// CHECK-NEXT:       %10 = lir.ref @w layer %layer : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:       lir.launch @pack prologue ins(%9 : {{.*}}) outs(%10 :
// CHECK-NEXT:     }
// CHECK-NEXT:     lir.launch @rope_table prologue ins() outs(%2, %3 :
// CHECK-NEXT:     lir.launch @copy steady_state ins(%0 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.loop 2 to 5 {
// CHECK-NEXT:     ^bb0(%layer_1: index):
// CHECK-NEXT:       %11 = lir.ref @w layer %layer_1 : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @matmul steady_state ins(%1, %11 : {{.*}}) outs(%4 :
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @rope steady_state ins(%4, %2, %3 : {{.*}}) outs(%5 :
// CHECK-NEXT:       %12 = lir.ref @k layer %layer_1 : tensor<16x16xf32>
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @append steady_state ins(%5, %12 : {{.*}}) outs()
// CHECK-NEXT:       %13 = lir.ref @v layer %layer_1 : tensor<16x16xf32>
// CHECK-NEXT:       lir.launch @append_1 steady_state ins(%4, %13 : {{.*}}) outs()
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @attention steady_state ins(%5, %12, %13 : {{.*}}) outs(%6 :
// CHECK-NEXT:       %14 = lir.ref @one : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @matmul_add steady_state ins(%6, %14, %1 : {{.*}}) outs(%1 :
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// A second repeat of a function is planned like the first, in the same buffer.
builtin.module @twice {
  func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = mir.unary tanh %x : tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %a = mir.repeat @layer(%x) layers 0 to 2 : (tensor<4xf32>) -> tensor<4xf32>
    %b = mir.repeat @layer(%a) layers 2 to 4 : (tensor<4xf32>) -> tensor<4xf32>
    func.return %b : tensor<4xf32>
  }
}
// CHECK-LABEL: builtin.module @twice
// CHECK: lir.program @twice arena 0 lower_bound 0 alignment 64 state 0 weights 0 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<4xf32>
// CHECK-NEXT:     %1 = lir.output "y" index 0 : tensor<4xf32>
// CHECK-NEXT:     lir.launch @copy steady_state ins(%0 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.loop 0 to 2 {
// CHECK-NEXT:     ^bb0(%layer: index):
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @tanh steady_state ins(%1 : {{.*}}) outs(%1 :
// CHECK-NEXT:     }
// CHECK-NEXT:     lir.loop 2 to 4 {
// CHECK-NEXT:     ^bb0(%layer_1: index):
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @tanh steady_state ins(%1 : {{.*}}) outs(%1 :
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// Values that change places go by one copy more; one that is carried and kept is carried as a copy.
builtin.module @carried {
  func.func private @swap(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %d = mir.binary sub %b, %c : tensor<4xf32>
    func.return %d, %a : tensor<4xf32>, tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}, tensor<4xf32> {rlx.name = "z"}) {
    %e = mir.unary exp %x : tensor<4xf32>
    %f = mir.unary neg %x : tensor<4xf32>
    %y, %z = mir.repeat @swap(%e, %f, %e) layers 0 to 3 : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    func.return %y, %z : tensor<4xf32>, tensor<4xf32>
  }
}
// CHECK-LABEL: builtin.module @carried
// CHECK: lir.program @carried arena 128 lower_bound 128 alignment 64 state 0 weights 0 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<4xf32>
// CHECK-NEXT:     %1 = lir.output "y" index 0 : tensor<4xf32>
// CHECK-NEXT:     %2 = lir.output "z" index 1 : tensor<4xf32>
// CHECK-NEXT:     %3 = lir.slot offset 0 size 16 : tensor<4xf32>
// CHECK-NEXT:     %4 = lir.slot offset 64 size 16 : tensor<4xf32>
// CHECK-NEXT:     lir.launch @exp steady_state ins(%0 : {{.*}}) outs(%3 :
// CHECK-NEXT:     lir.launch @neg steady_state ins(%0 : {{.*}}) outs(%2 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @copy steady_state ins(%3 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.loop 0 to 3 {
// CHECK-NEXT:     ^bb0(%layer: index):
// CHECK-NEXT:       lir.launch @sub steady_state ins(%2, %3 : {{.*}}) outs(%2 :
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @copy steady_state ins(%2 : {{.*}}) outs(%4 :
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @copy steady_state ins(%1 : {{.*}}) outs(%2 :
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @copy steady_state ins(%4 : {{.*}}) outs(%1 :
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// What a layer ends with is made where the next one looks for it, once nothing reads there any more.
builtin.module @made_in_place {
  func.func private @layer(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %s = mir.softmax %x : tensor<4x4xf32>
    %y = mir.transpose %s [1, 0] : tensor<4x4xf32> -> tensor<4x4xf32>
    func.return %y : tensor<4x4xf32>
  }
  func.func @main(%x: tensor<4x4xf32> {rlx.name = "x"}) -> (tensor<4x4xf32> {rlx.name = "y"}) {
    %y = mir.repeat @layer(%x) layers 0 to 3 : (tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %y : tensor<4x4xf32>
  }
}
// CHECK-LABEL: builtin.module @made_in_place
// CHECK:          lir.launch @copy steady_state ins(%0 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.loop 0 to 3 {
// CHECK-NEXT:     ^bb0(%layer: index):
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @softmax steady_state ins(%1 : {{.*}}) outs(%2 :
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @transpose steady_state ins(%2 : {{.*}}) outs(%1 :
// CHECK-NEXT:     }

// -----

// One condition is read by all threads, after a barrier; branches make results where they are wanted.
builtin.module @control {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}, %n: tensor<i32> {rlx.name = "n"}) -> (tensor<4xf32> {rlx.name = "y"}) {
    %zero = mir.constant dense<0> : tensor<i32> {phase = #mir<phase prologue>}
    %c = mir.compare gt %n, %zero : tensor<i32> -> tensor<i1>
    %y = mir.if %c -> (tensor<4xf32>) {
      %a = mir.unary neg %x : tensor<4xf32>
      mir.yield %a : tensor<4xf32>
    } else {
      mir.yield %x : tensor<4xf32>
    } : tensor<i1>
    %i, %z = mir.while (%n, %y) {
    ^bb0(%i: tensor<i32>, %z: tensor<4xf32>):
      %m = mir.compare gt %i, %zero : tensor<i32> -> tensor<i1>
      mir.yield %m : tensor<i1>
    } do {
    ^bb0(%i: tensor<i32>, %z: tensor<4xf32>):
      %d = mir.unary neg %i : tensor<i32>
      %s = mir.unary abs %z : tensor<4xf32>
      mir.yield %d, %s : tensor<i32>, tensor<4xf32>
    } : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
    func.return %z : tensor<4xf32>
  }
}
// CHECK-LABEL: builtin.module @control
// CHECK:          lir.launch @gt steady_state ins(%1, %[[ZERO:.*]] : {{.*}}) outs(%[[C:.*]] : tensor<i1>)
// CHECK:          lir.barrier
// CHECK-NEXT:     lir.if %[[C]] : tensor<i1> {
// CHECK-NEXT:       lir.launch @neg steady_state ins(%0 : {{.*}}) outs(%2 :
// CHECK-NEXT:     } else {
// CHECK-NEXT:       lir.launch @copy steady_state ins(%0 : {{.*}}) outs(%2 :
// CHECK-NEXT:     }
// CHECK:          lir.launch @copy_1 steady_state ins(%1 : {{.*}}) outs(%[[I:.*]] : tensor<i32>)
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.while %[[M:.*]] : tensor<i1> {
// CHECK-NEXT:       lir.launch @gt steady_state ins(%[[I]], %[[ZERO]] : {{.*}}) outs(%[[M]] : tensor<i1>)
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:     } do {
// CHECK-NEXT:       lir.launch @neg_1 steady_state ins(%[[I]] : {{.*}}) outs(%[[I]] : tensor<i32>)
// CHECK-NEXT:       lir.launch @abs steady_state ins(%2 : {{.*}}) outs(%2 :
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:     }

// -----

// An input returned as it is, a result returned twice, and one that is read after it is returned.
builtin.module @outputs {
  func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "a"}, tensor<4xf32> {rlx.name = "b"}, tensor<4xf32> {rlx.name = "c"}, tensor<4xf32> {rlx.name = "d"}) {
    %e = mir.unary exp %x : tensor<4xf32>
    %unused = mir.unary abs %x : tensor<4xf32>
    %f = mir.unary neg %e : tensor<4xf32>
    func.return %x, %e, %e, %f : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
// CHECK-LABEL: builtin.module @outputs
// CHECK: lir.program @outputs arena 64 lower_bound 64 alignment 64 state 0 weights 0 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<4xf32>
// CHECK-NEXT:     %1 = lir.output "a" index 0 : tensor<4xf32>
// CHECK-NEXT:     %2 = lir.output "b" index 1 : tensor<4xf32>
// CHECK-NEXT:     %3 = lir.output "c" index 2 : tensor<4xf32>
// CHECK-NEXT:     %4 = lir.output "d" index 3 : tensor<4xf32>
// CHECK-NEXT:     %5 = lir.slot offset 0 size 16 : tensor<4xf32>
// CHECK-NEXT:     lir.launch @exp steady_state ins(%0 : {{.*}}) outs(%2 :
// CHECK-NEXT:     lir.launch @abs steady_state ins(%0 : {{.*}}) outs(%5 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @neg steady_state ins(%2 : {{.*}}) outs(%4 :
// CHECK-NEXT:     lir.launch @copy epilogue ins(%0 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.launch @copy epilogue ins(%2 : {{.*}}) outs(%3 :
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// Launches stand in the order of their phases, and values live by that order: the logits of the
// first draw are needed until the end. Sampling has scratch of its own; a kernel takes no name of
// a weight.
builtin.module @phases {
  hir.weight @matmul "w" : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"}, %params: tensor<8xi32> {rlx.name = "params"}) -> (tensor<1xi32> {rlx.name = "a"}, tensor<1xi32> {rlx.name = "b"}) {
    %h = mir.unary exp %x : tensor<1x16xf32> {phase = #mir<phase steady_state>}
    %a = mir.sample %h, %params : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32> {phase = #mir<phase epilogue>}
    %w = mir.load_weight @matmul : tensor<16x16xf32>
    %p = mir.pack %w : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    %m = mir.matmul %x, %p : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32> {phase = #mir<phase steady_state>}
    %b = mir.sample %m, %params : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32> {phase = #mir<phase epilogue>}
    func.return %a, %b : tensor<1xi32>, tensor<1xi32>
  }
}
// CHECK-LABEL: builtin.module @phases
// CHECK-NEXT:   lir.weight @matmul "w" offset 0 stride 1024 layers 0 to 1 source 0 : tensor<16x16x!hir.packed<f32>>
// CHECK: lir.program @phases arena 512 lower_bound 512 alignment 64 state 0 weights 1024 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %1 = lir.input "params" index 1 : tensor<8xi32>
// CHECK-NEXT:     %2 = lir.output "a" index 0 : tensor<1xi32>
// CHECK-NEXT:     %3 = lir.output "b" index 1 : tensor<1xi32>
// CHECK-NEXT:     %4 = lir.slot offset 384 size 64 : tensor<1x16xf32>
// CHECK-NEXT:     %5 = lir.slot offset 448 size 64 : tensor<1x16xf32>
// CHECK-NEXT:     %6 = lir.slot offset 0 size 384 : tensor<384xi8>
// CHECK-NEXT:     %7 = lir.slot offset 0 size 384 : tensor<384xi8>
// CHECK-NEXT:     %8 = lir.source @matmul : tensor<16x16xf32>
// CHECK-NEXT:     %9 = lir.ref @matmul : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:     lir.launch @pack prologue ins(%8 : {{.*}}) outs(%9 :
// CHECK-NEXT:     lir.launch @exp steady_state ins(%0 : {{.*}}) outs(%4 :
// CHECK-NEXT:     lir.launch @matmul_1 steady_state ins(%0, %9 : {{.*}}) outs(%5 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @sample epilogue ins(%4, %1 : {{.*}}) outs(%2 : {{.*}}) scratch(%6
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @sample epilogue ins(%5, %1 : {{.*}}) outs(%3 : {{.*}}) scratch(%7
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// Attention to one query has scratch that is zero before each launch; a state outside of loops is
// that of layer 0, which a loop has too.
builtin.module @states attributes {rlx.dims = #hir.dim_table<past = 0 to 15, one = 1, keys = past + one>} {
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  hir.state @v values head_dim 16 : tensor<16x16xf32>
  func.func private @layer(%x: tensor<1x16xf32>) -> tensor<1x16xf32> {
    %k = mir.load_state @k : tensor<16x16xf32>
    %ks = mir.append %x to %k keys head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %v = mir.load_state @v : tensor<16x16xf32>
    %vs = mir.append %x to %v values head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %a = mir.attention %x, %ks, %vs head_dim 16 scale 0.25 : tensor<1x16xf32>, tensor<?x16xf32, #hir.dims<keys, _>>
    func.return %a : tensor<1x16xf32>
  }
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"}) -> (tensor<1x16xf32> {rlx.name = "y"}) {
    %k = mir.load_state @k : tensor<16x16xf32>
    %ks = mir.append %x to %k keys head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf32> -> tensor<?x16xf32, #hir.dims<keys, _>>
    %y = mir.repeat @layer(%x) layers 0 to 2 : (tensor<1x16xf32>) -> tensor<1x16xf32>
    func.return %y : tensor<1x16xf32>
  }
}
// CHECK-LABEL: builtin.module @states
// CHECK-NEXT:   lir.state @k keys head_dim 16 offset 0 stride 1024 layers 0 to 2 : tensor<16x16xf32>
// CHECK-NEXT:   lir.state @v values head_dim 16 offset 2048 stride 1024 layers 0 to 2 : tensor<16x16xf32>
// CHECK: lir.program @states arena 384 lower_bound 384 alignment 64 state 4096 weights 0 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %1 = lir.output "y" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %2 = lir.slot offset 320 size 64 : tensor<1x16xf32>
// CHECK-NEXT:     %3 = lir.slot offset 0 size 320 zeroed : tensor<320xi8>
// CHECK-NEXT:     %4 = lir.ref @k : tensor<16x16xf32>
// CHECK-NEXT:     lir.launch @append steady_state ins(%0, %4 : {{.*}}) outs()
// CHECK-NEXT:     lir.launch @copy steady_state ins(%0 : {{.*}}) outs(%1 :
// CHECK-NEXT:     lir.loop 0 to 2 {
// CHECK-NEXT:     ^bb0(%layer: index):
// CHECK-NEXT:       %5 = lir.ref @k layer %layer : tensor<16x16xf32>
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @append steady_state ins(%1, %5 : {{.*}}) outs()
// CHECK-NEXT:       %6 = lir.ref @v layer %layer : tensor<16x16xf32>
// CHECK-NEXT:       lir.launch @append_1 steady_state ins(%1, %6 : {{.*}}) outs()
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @attention steady_state ins(%1, %5, %6 : {{.*}}) outs(%2 : {{.*}}) scratch(%3
// CHECK-NEXT:       lir.barrier
// CHECK-NEXT:       lir.launch @copy steady_state ins(%2 : {{.*}}) outs(%1 :
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// A state of f16 or bf16 has half the bytes; rows are made, and attention is given, as f32.
builtin.module @narrow attributes {rlx.dims = #hir.dim_table<past = 0 to 15, one = 1, keys = past + one>} {
  hir.state @k keys head_dim 16 : tensor<16x16xf16>
  hir.state @v values head_dim 16 : tensor<16x16xbf16>
  hir.state @w values head_dim 16 : tensor<16x16xf16>
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"}) -> (tensor<1x16xf32> {rlx.name = "y"}) {
    %k = mir.load_state @k : tensor<16x16xf16>
    %ks = mir.append %x to %k keys head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf16> -> tensor<?x16xf16, #hir.dims<keys, _>>
    %w = mir.load_state @w : tensor<16x16xf16>
    %ws = mir.append %x to %w values head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xf16> -> tensor<?x16xf16, #hir.dims<keys, _>>
    %v = mir.load_state @v : tensor<16x16xbf16>
    %vs = mir.append %x to %v values head_dim 16 start "past" : tensor<1x16xf32>, tensor<16x16xbf16> -> tensor<?x16xbf16, #hir.dims<keys, _>>
    %a = mir.attention %x, %ks, %ws head_dim 16 scale 0.25 : tensor<1x16xf32>, tensor<?x16xf16, #hir.dims<keys, _>>
    func.return %a : tensor<1x16xf32>
  }
}
// CHECK-LABEL: builtin.module @narrow
// CHECK-NEXT:   lir.state @k keys head_dim 16 offset 0 stride 512 layers 0 to 1 : tensor<16x16xf16>
// CHECK-NEXT:   lir.state @v values head_dim 16 offset 512 stride 512 layers 0 to 1 : tensor<16x16xbf16>
// CHECK-NEXT:   lir.state @w values head_dim 16 offset 1024 stride 512 layers 0 to 1 : tensor<16x16xf16>
// CHECK: lir.program @narrow arena 320 lower_bound 320 alignment 64 state 1536 weights 0 fingerprint
// CHECK: %[[K:[0-9]+]] = lir.ref @k : tensor<16x16xf16>
// CHECK-NEXT: lir.launch @append steady_state ins(%0, %[[K]] : tensor<1x16xf32>, tensor<16x16xf16>) outs()
// CHECK: %[[W:[0-9]+]] = lir.ref @w : tensor<16x16xf16>
// CHECK: lir.launch @attention steady_state ins(%0, %[[K]], %[[W]] : tensor<1x16xf32>, tensor<16x16xf16>, tensor<16x16xf16>) outs(%1 : tensor<1x16xf32>)

// -----

// A residual that two products are added to may not be overwritten by the first of them.
builtin.module @shared {
  hir.weight @a "a" : tensor<16x16xf32>
  hir.weight @b "b" : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"}) -> (tensor<1x16xf32> {rlx.name = "y"}, tensor<1x16xf32> {rlx.name = "z"}) {
    %h = mir.unary exp %x : tensor<1x16xf32>
    %a = mir.load_weight @a : tensor<16x16xf32>
    %pa = mir.pack %a : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    %b = mir.load_weight @b : tensor<16x16xf32>
    %pb = mir.pack %b : tensor<16x16xf32> -> tensor<16x16x!hir.packed<f32>>
    %y, %z = mir.kernel -> (tensor<1x16xf32>, tensor<1x16xf32>) {
      %m = mir.matmul %x, %pa : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32>
      %n = mir.matmul %x, %pb : tensor<1x16xf32>, tensor<16x16x!hir.packed<f32>> -> tensor<1x16xf32>
      %p = mir.binary add %h, %m : tensor<1x16xf32>
      %q = mir.binary add %h, %n : tensor<1x16xf32>
      mir.yield %p, %q : tensor<1x16xf32>, tensor<1x16xf32>
    }
    func.return %y, %z : tensor<1x16xf32>, tensor<1x16xf32>
  }
}
// CHECK-LABEL: builtin.module @shared
// CHECK-NEXT:   lir.weight @a "a" offset 0 stride 1024 layers 0 to 1 source 0 : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:   lir.weight @b "b" offset 1024 stride 1024 layers 0 to 1 source 1 : tensor<16x16x!hir.packed<f32>>
// CHECK: lir.program @shared arena 64 lower_bound 64 alignment 64 state 0 weights 2048 fingerprint
// CHECK-NEXT:     %0 = lir.input "x" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %1 = lir.output "y" index 0 : tensor<1x16xf32>
// CHECK-NEXT:     %2 = lir.output "z" index 1 : tensor<1x16xf32>
// CHECK-NEXT:     %3 = lir.slot offset 0 size 64 : tensor<1x16xf32>
// CHECK-NEXT:     %4 = lir.source @a : tensor<16x16xf32>
// CHECK-NEXT:     %5 = lir.ref @a : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:     lir.launch @pack prologue ins(%4 : {{.*}}) outs(%5 :
// CHECK-NEXT:     %6 = lir.source @b : tensor<16x16xf32>
// CHECK-NEXT:     %7 = lir.ref @b : tensor<16x16x!hir.packed<f32>>
// CHECK-NEXT:     lir.launch @pack prologue ins(%6 : {{.*}}) outs(%7 :
// CHECK-NEXT:     lir.launch @exp steady_state ins(%0 : {{.*}}) outs(%3 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.launch @matmul_add steady_state ins(%0, %5, %7, %3 : {{.*}}) outs(%1, %2 :
// CHECK-NEXT:   }
// CHECK-NEXT: }

// -----

// The token that a step hands on is not taken while another thread still reads the input.
builtin.module @carry attributes {rlx.carry = {token = "id"}} {
  hir.weight @t "t" : tensor<8x16xf32>
  func.func @main(%token: tensor<1xi32> {rlx.name = "token"}, %logits: tensor<1x16xf32> {rlx.name = "logits"}, %params: tensor<8xi32> {rlx.name = "params"}) -> (tensor<1xi32> {rlx.name = "id"}, tensor<1x16xf32> {rlx.name = "e"}) {
    %t = mir.load_weight @t : tensor<8x16xf32>
    %p = mir.pack %t : tensor<8x16xf32> -> tensor<8x16x!hir.packed<f32>>
    %id = mir.sample %logits, %params : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32>
    %e = mir.embedding %token, %p : tensor<1xi32>, tensor<8x16x!hir.packed<f32>> -> tensor<1x16xf32>
    func.return %id, %e : tensor<1xi32>, tensor<1x16xf32>
  }
}
// CHECK-LABEL: builtin.module @carry
// CHECK-NEXT:   lir.weight @t "t" offset 0 stride 1024 layers 0 to 1 source 0 : tensor<8x16x!hir.packed<f32>>
// CHECK: lir.program @carry arena 384 lower_bound 384 alignment 64 state 0 weights 1024 fingerprint
// CHECK-NEXT:     %0 = lir.input "token" index 0 : tensor<1xi32>
// CHECK-NEXT:     %1 = lir.input "logits" index 1 : tensor<1x16xf32>
// CHECK-NEXT:     %2 = lir.input "params" index 2 : tensor<8xi32>
// CHECK-NEXT:     %3 = lir.output "id" index 0 : tensor<1xi32>
// CHECK-NEXT:     %4 = lir.output "e" index 1 : tensor<1x16xf32>
// CHECK-NEXT:     %5 = lir.slot offset 0 size 384 : tensor<384xi8>
// CHECK-NEXT:     %6 = lir.source @t : tensor<8x16xf32>
// CHECK-NEXT:     %7 = lir.ref @t : tensor<8x16x!hir.packed<f32>>
// CHECK-NEXT:     lir.launch @pack prologue ins(%6 : {{.*}}) outs(%7 :
// CHECK-NEXT:     lir.launch @sample steady_state ins(%1, %2 : {{.*}}) outs(%3 : {{.*}}) scratch(%5
// CHECK-NEXT:     lir.launch @embedding steady_state ins(%0, %7 : {{.*}}) outs(%4 :
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:   }
// CHECK-NEXT: }
