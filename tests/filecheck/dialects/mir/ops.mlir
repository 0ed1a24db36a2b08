// RUN: rlx-opt %s -p 'verify-stage{stage=mir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module @ops attributes {rlx.dims = #hir.dim_table<seq = 1 to 512, past = 0 to 2048, keys = past + seq>} {
  hir.weight @table "token_embd.weight" : tensor<300x64x!hir.q<q8_0>>
  hir.weight @norm "norm.weight" : tensor<64xf32>
  hir.state @k_cache keys head_dim 16 : tensor<2560x64xf32>
  hir.state @v_cache values head_dim 16 : tensor<2560x64xf32>
  func.func private @layer(%x: tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
    %norm = mir.load_weight @norm : tensor<64xf32>
    %packed_norm = mir.pack %norm : tensor<64xf32> -> tensor<64x!hir.packed<f32>>
    %h = mir.rms_norm %x, %packed_norm eps 1.0e-05 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x!hir.packed<f32>>
    %cos, %sin = mir.rope_table base 100000.0 : tensor<2560x8xf32>, tensor<2560x8xf32> {phase = #mir<phase prologue>}
    %k = mir.load_state @k_cache : tensor<2560x64xf32>
    %v = mir.load_state @v_cache : tensor<2560x64xf32>
    %r = mir.rope %h, %cos, %sin start "past" head_dim 16 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>
    %ks = mir.append %r to %k keys head_dim 16 start "past" : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
    %vs = mir.append %h to %v values head_dim 16 start "past" : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
    %ks_1 = mir.first_rows %k : tensor<2560x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
    %a = mir.attention %r, %ks, %vs head_dim 16 scale 0.25 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<keys, _>> {phase = #mir<phase steady_state>}
    %u = mir.unary silu %a : tensor<?x64xf32, #hir.dims<seq, _>>
    %y = mir.kernel -> (tensor<?x64xf32, #hir.dims<seq, _>>) {
      %n = mir.unary neg %u : tensor<?x64xf32, #hir.dims<seq, _>>
      %b = mir.binary add %x, %n : tensor<?x64xf32, #hir.dims<seq, _>>
      mir.yield %b : tensor<?x64xf32, #hir.dims<seq, _>>
    } attributes {phase = #mir<phase steady_state>}
    func.return %y : tensor<?x64xf32, #hir.dims<seq, _>>
  }
  func.func @main(%tokens: tensor<?xi32, #hir.dims<seq>>, %sampling: tensor<8xi32>) -> tensor<1xi32> {
    %table = mir.load_weight @table : tensor<300x64x!hir.q<q8_0>>
    %packed = mir.pack %table : tensor<300x64x!hir.q<q8_0>> -> tensor<300x64x!hir.packed<q8_0>>
    %e = mir.embedding %tokens, %packed : tensor<?xi32, #hir.dims<seq>>, tensor<300x64x!hir.packed<q8_0>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %y = mir.repeat @layer(%e) layers 0 to 30 : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
    %last = mir.last_rows %y : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<1x64xf32>
    %logits = mir.matmul %last, %packed : tensor<1x64xf32>, tensor<300x64x!hir.packed<q8_0>> -> tensor<1x300xf32>
    %id = mir.sample %logits, %sampling : tensor<1x300xf32>, tensor<8xi32> -> tensor<1xi32> {phase = #mir<phase epilogue>}
    func.return %id : tensor<1xi32>
  }
}

// CHECK: builtin.module @ops attributes {rlx.dims = #hir.dim_table<seq = 1 to 512, past = 0 to 2048, keys = past + seq>} {
// CHECK-NEXT:   hir.weight @table "token_embd.weight" : tensor<300x64x!hir.q<q8_0>>
// CHECK-NEXT:   hir.weight @norm "norm.weight" : tensor<64xf32>
// CHECK-NEXT:   hir.state @k_cache keys head_dim 16 : tensor<2560x64xf32>
// CHECK-NEXT:   hir.state @v_cache values head_dim 16 : tensor<2560x64xf32>
// CHECK-NEXT:   func.func private @layer(%x: tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
// CHECK-NEXT:     %norm = mir.load_weight @norm : tensor<64xf32>
// CHECK-NEXT:     %packed_norm = mir.pack %norm : tensor<64xf32> -> tensor<64x!hir.packed<f32>>
// CHECK-NEXT:     %h = mir.rms_norm %x, %packed_norm eps 1.0e-05 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x!hir.packed<f32>>
// CHECK-NEXT:     %cos, %sin = mir.rope_table base 100000.0 : tensor<2560x8xf32>, tensor<2560x8xf32> {phase = #mir<phase prologue>}
// CHECK-NEXT:     %k = mir.load_state @k_cache : tensor<2560x64xf32>
// CHECK-NEXT:     %v = mir.load_state @v_cache : tensor<2560x64xf32>
// CHECK-NEXT:     %r = mir.rope %h, %cos, %sin start "past" head_dim 16 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>
// CHECK-NEXT:     %ks = mir.append %r to %k keys head_dim 16 start "past" : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
// CHECK-NEXT:     %vs = mir.append %h to %v values head_dim 16 start "past" : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
// CHECK-NEXT:     %ks_1 = mir.first_rows %k : tensor<2560x64xf32> -> tensor<?x64xf32, #hir.dims<keys, _>>
// CHECK-NEXT:     %a = mir.attention %r, %ks, %vs head_dim 16 scale 0.25 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<keys, _>> {phase = #mir<phase steady_state>}
// CHECK-NEXT:     %u = mir.unary silu %a : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %y = mir.kernel -> (tensor<?x64xf32, #hir.dims<seq, _>>) {
// CHECK-NEXT:       %n = mir.unary neg %u : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:       %b = mir.binary add %x, %n : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:       mir.yield %b : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     } attributes {phase = #mir<phase steady_state>}
// CHECK-NEXT:     func.return %y : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func @main(%tokens: tensor<?xi32, #hir.dims<seq>>, %sampling: tensor<8xi32>) -> tensor<1xi32> {
// CHECK-NEXT:     %table = mir.load_weight @table : tensor<300x64x!hir.q<q8_0>>
// CHECK-NEXT:     %packed = mir.pack %table : tensor<300x64x!hir.q<q8_0>> -> tensor<300x64x!hir.packed<q8_0>>
// CHECK-NEXT:     %e = mir.embedding %tokens, %packed : tensor<?xi32, #hir.dims<seq>>, tensor<300x64x!hir.packed<q8_0>> -> tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %y = mir.repeat @layer(%e) layers 0 to 30 : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %last = mir.last_rows %y : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<1x64xf32>
// CHECK-NEXT:     %logits = mir.matmul %last, %packed : tensor<1x64xf32>, tensor<300x64x!hir.packed<q8_0>> -> tensor<1x300xf32>
// CHECK-NEXT:     %id = mir.sample %logits, %sampling : tensor<1x300xf32>, tensor<8xi32> -> tensor<1xi32> {phase = #mir<phase epilogue>}
// CHECK-NEXT:     func.return %id : tensor<1xi32>
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC: "builtin.module"() <{sym_name = "ops"}> ({
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "table", key = "token_embd.weight", type = tensor<300x64x!hir.q<q8_0>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "norm", key = "norm.weight", type = tensor<64xf32>}> : () -> ()
// GENERIC-NEXT:   "hir.state"() <{sym_name = "k_cache", role = #hir<state_role keys>, head_dim = 16 : i64, type = tensor<2560x64xf32>}> : () -> ()
// GENERIC-NEXT:   "hir.state"() <{sym_name = "v_cache", role = #hir<state_role values>, head_dim = 16 : i64, type = tensor<2560x64xf32>}> : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "layer", function_type = (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>, sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x64xf32, #hir.dims<seq, _>>):
// GENERIC-NEXT:     %norm = "mir.load_weight"() <{weight = @norm}> : () -> tensor<64xf32>
// GENERIC-NEXT:     %packed_norm = "mir.pack"(%norm) : (tensor<64xf32>) -> tensor<64x!hir.packed<f32>>
// GENERIC-NEXT:     %h = "mir.rms_norm"(%x, %packed_norm) <{eps = 1.000000e-05 : f64}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64x!hir.packed<f32>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %cos, %sin = "mir.rope_table"() <{base = 1.000000e+05 : f64}> {phase = #mir<phase prologue>} : () -> (tensor<2560x8xf32>, tensor<2560x8xf32>)
// GENERIC-NEXT:     %k = "mir.load_state"() <{state = @k_cache}> : () -> tensor<2560x64xf32>
// GENERIC-NEXT:     %v = "mir.load_state"() <{state = @v_cache}> : () -> tensor<2560x64xf32>
// GENERIC-NEXT:     %r = "mir.rope"(%h, %cos, %sin) <{start = "past", head_dim = 16 : i64}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %ks = "mir.append"(%r, %k) <{role = #hir<state_role keys>, head_dim = 16 : i64, start = "past"}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x64xf32>) -> tensor<?x64xf32, #hir.dims<keys, _>>
// GENERIC-NEXT:     %vs = "mir.append"(%h, %v) <{role = #hir<state_role values>, head_dim = 16 : i64, start = "past"}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x64xf32>) -> tensor<?x64xf32, #hir.dims<keys, _>>
// GENERIC-NEXT:     %ks_1 = "mir.first_rows"(%k) : (tensor<2560x64xf32>) -> tensor<?x64xf32, #hir.dims<keys, _>>
// GENERIC-NEXT:     %a = "mir.attention"(%r, %ks, %vs) <{head_dim = 16 : i64, scale = 2.500000e-01 : f64}> {phase = #mir<phase steady_state>} : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<keys, _>>, tensor<?x64xf32, #hir.dims<keys, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %u = "mir.unary"(%a) <{kind = #mir<unary_kind silu>}> : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %y = "mir.kernel"() ({
// GENERIC-NEXT:       %n = "mir.unary"(%u) <{kind = #mir<unary_kind neg>}> : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:       %b = "mir.binary"(%x, %n) <{kind = #mir<binary_kind add>}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:       "mir.yield"(%b) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> ()
// GENERIC-NEXT:     }) {phase = #mir<phase steady_state>} : () -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     "func.return"(%y) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "main", function_type = (tensor<?xi32, #hir.dims<seq>>, tensor<8xi32>) -> tensor<1xi32>}> ({
// GENERIC-NEXT:   ^bb0(%tokens: tensor<?xi32, #hir.dims<seq>>, %sampling: tensor<8xi32>):
// GENERIC-NEXT:     %table = "mir.load_weight"() <{weight = @table}> : () -> tensor<300x64x!hir.q<q8_0>>
// GENERIC-NEXT:     %packed = "mir.pack"(%table) : (tensor<300x64x!hir.q<q8_0>>) -> tensor<300x64x!hir.packed<q8_0>>
// GENERIC-NEXT:     %e = "mir.embedding"(%tokens, %packed) : (tensor<?xi32, #hir.dims<seq>>, tensor<300x64x!hir.packed<q8_0>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %y = "mir.repeat"(%e) <{callee = @layer, first = 0 : i64, last = 30 : i64}> : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %last = "mir.last_rows"(%y) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<1x64xf32>
// GENERIC-NEXT:     %logits = "mir.matmul"(%last, %packed) : (tensor<1x64xf32>, tensor<300x64x!hir.packed<q8_0>>) -> tensor<1x300xf32>
// GENERIC-NEXT:     %id = "mir.sample"(%logits, %sampling) {phase = #mir<phase epilogue>} : (tensor<1x300xf32>, tensor<8xi32>) -> tensor<1xi32>
// GENERIC-NEXT:     "func.return"(%id) : (tensor<1xi32>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) {rlx.dims = #hir.dim_table<seq = 1 to 512, past = 0 to 2048, keys = past + seq>} : () -> ()
