// RUN: rlx-opt %s -p 'verify-stage{stage=hir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module @ops attributes {rlx.dims = #hir.dim_table<batch = 2, seq = 1 to 512, past = 0 to 2048, keys = past + seq, rows = batch * seq>} {
  hir.weight @table "token_embd.weight" : tensor<300x64x!hir.q<q8_0>>
  hir.weight @norm "blk.{layer}.norm.weight" : tensor<64xf32>
  hir.weight @up "blk.{layer}.up.weight" : tensor<96x64x!hir.q<q4_1>>
  hir.weight @gate "blk.{layer}.gate.weight" : tensor<96x64x!hir.q<q4_1>>
  hir.weight @down "blk.{layer}.down.weight" : tensor<64x96xbf16> {note = "attributes stay"}
  hir.state @k_cache keys head_dim 16 : tensor<2560x32xf32>
  hir.state @v_cache values head_dim 16 : tensor<2560x32xf32>
  func.func private @layer(%x: tensor<?x64xf32, #hir.dims<seq, _>>, %cos: tensor<2560x8xf32>, %sin: tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
    %norm = hir.load_weight @norm : tensor<64xf32>
    %h = hir.rms_norm %x, %norm eps 1.0e-05 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64xf32>
    %up = hir.load_weight @up : tensor<96x64x!hir.q<q4_1>>
    %gate = hir.load_weight @gate : tensor<96x64x!hir.q<q4_1>>
    %down = hir.load_weight @down : tensor<64x96xbf16>
    %f = hir.glu silu %h up %up gate %gate down %down : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<96x64x!hir.q<q4_1>>, tensor<96x64x!hir.q<q4_1>>, tensor<64x96xbf16>
    %l = hir.linear %f, %up : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<96x64x!hir.q<q4_1>> -> tensor<?x96xf32, #hir.dims<seq, _>>
    %q = hir.linear %l, %down : tensor<?x96xf32, #hir.dims<seq, _>>, tensor<64x96xbf16> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %r = hir.rope %q, %cos, %sin start "past" head_dim 16 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>
    %k = hir.last_rows %r : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<1x64xf32>
    %u = mir.unary gelu_tanh %q : tensor<?x64xf32, #hir.dims<seq, _>>
    %s = mir.binary add %x, %u : tensor<?x64xf32, #hir.dims<seq, _>>
    func.return %s : tensor<?x64xf32, #hir.dims<seq, _>>
  }
  func.func private @cache(%x: tensor<?x64xf32, #hir.dims<seq, _>>, %k: tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
    %ks = hir.append %k to @k_cache start "past" : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %vs = hir.append %k to @v_cache start "past" : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %a = hir.attention %x, %ks, %vs head_dim 16 scale 0.25 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x32xf32, #hir.dims<keys, _>>
    func.return %a : tensor<?x64xf32, #hir.dims<seq, _>>
  }
  func.func @main(%tokens: tensor<?xi32, #hir.dims<seq>> {rlx.name = "tokens"}, %sampling: tensor<8xi32> {rlx.name = "sampling"}) -> (tensor<1xi32> {rlx.name = "id"}, tensor<1x300xf32> {rlx.name = "logits"}) {
    %table = hir.load_weight @table : tensor<300x64x!hir.q<q8_0>>
    %e = hir.embedding %tokens, %table : tensor<?xi32, #hir.dims<seq>>, tensor<300x64x!hir.q<q8_0>> -> tensor<?x64xf32, #hir.dims<seq, _>>
    %cos, %sin = hir.rope_table base 100000.0 : tensor<2560x8xf32>, tensor<2560x8xf32>
    %y = hir.repeat @layer(%e, %cos, %sin) layers 0 to 30 : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>
    %last = hir.last_rows %y : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<1x64xf32>
    %logits = hir.linear %last, %table : tensor<1x64xf32>, tensor<300x64x!hir.q<q8_0>> -> tensor<1x300xf32>
    %id = hir.sample %logits, %sampling : tensor<1x300xf32>, tensor<8xi32> -> tensor<1xi32>
    func.return %id, %logits : tensor<1xi32>, tensor<1x300xf32>
  }
  hir.weight @f32 "f32" : tensor<8x256xf32>
  hir.weight @f16 "f16" : tensor<8x256xf16>
  hir.weight @bf16 "bf16" : tensor<8x256xbf16>
  hir.weight @q4_0 "q4_0" : tensor<8x256x!hir.q<q4_0>>
  hir.weight @q4_1 "q4_1" : tensor<8x256x!hir.q<q4_1>>
  hir.weight @q5_0 "q5_0" : tensor<8x256x!hir.q<q5_0>>
  hir.weight @q5_1 "q5_1" : tensor<8x256x!hir.q<q5_1>>
  hir.weight @q8_0 "q8_0" : tensor<8x256x!hir.q<q8_0>>
  hir.weight @q2_k "q2_k" : tensor<8x256x!hir.q<q2_k>>
  hir.weight @q3_k "q3_k" : tensor<8x256x!hir.q<q3_k>>
  hir.weight @q4_k "q4_k" : tensor<8x256x!hir.q<q4_k>>
  hir.weight @q5_k "q5_k" : tensor<8x256x!hir.q<q5_k>>
  hir.weight @q6_k "q6_k" : tensor<8x256x!hir.q<q6_k>>
  hir.weight @packed "packed" : tensor<8x256x!hir.packed<q4_0>>
  func.func private @kinds(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %neg = mir.unary neg %x : tensor<4x4xf32>
    %exp = mir.unary exp %x : tensor<4x4xf32>
    %silu = mir.unary silu %x : tensor<4x4xf32>
    %sigmoid = mir.unary sigmoid %x : tensor<4x4xf32>
    %tanh = mir.unary tanh %x : tensor<4x4xf32>
    %gelu_tanh = mir.unary gelu_tanh %x : tensor<4x4xf32>
    %relu = mir.unary relu %x : tensor<4x4xf32>
    %sqrt = mir.unary sqrt %x : tensor<4x4xf32>
    %rsqrt = mir.unary rsqrt %x : tensor<4x4xf32>
    %recip = mir.unary recip %x : tensor<4x4xf32>
    %abs = mir.unary abs %x : tensor<4x4xf32>
    %add = mir.binary add %x, %x : tensor<4x4xf32>
    %sub = mir.binary sub %x, %x : tensor<4x4xf32>
    %mul = mir.binary mul %x, %x : tensor<4x4xf32>
    %div = mir.binary div %x, %x : tensor<4x4xf32>
    %max = mir.binary max %x, %x : tensor<4x4xf32>
    %min = mir.binary min %x, %x : tensor<4x4xf32>
    func.return %x : tensor<4x4xf32>
  }
}

// CHECK: builtin.module @ops attributes {rlx.dims = #hir.dim_table<batch = 2, seq = 1 to 512, past = 0 to 2048, keys = past + seq, rows = batch * seq>} {
// CHECK-NEXT:   hir.weight @table "token_embd.weight" : tensor<300x64x!hir.q<q8_0>>
// CHECK-NEXT:   hir.weight @norm "blk.{layer}.norm.weight" : tensor<64xf32>
// CHECK-NEXT:   hir.weight @up "blk.{layer}.up.weight" : tensor<96x64x!hir.q<q4_1>>
// CHECK-NEXT:   hir.weight @gate "blk.{layer}.gate.weight" : tensor<96x64x!hir.q<q4_1>>
// CHECK-NEXT:   hir.weight @down "blk.{layer}.down.weight" : tensor<64x96xbf16> {note = "attributes stay"}
// CHECK-NEXT:   hir.state @k_cache keys head_dim 16 : tensor<2560x32xf32>
// CHECK-NEXT:   hir.state @v_cache values head_dim 16 : tensor<2560x32xf32>
// CHECK-NEXT:   func.func private @layer(%x: tensor<?x64xf32, #hir.dims<seq, _>>, %cos: tensor<2560x8xf32>, %sin: tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
// CHECK-NEXT:     %norm = hir.load_weight @norm : tensor<64xf32>
// CHECK-NEXT:     %h = hir.rms_norm %x, %norm eps 1.0e-05 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64xf32>
// CHECK-NEXT:     %up = hir.load_weight @up : tensor<96x64x!hir.q<q4_1>>
// CHECK-NEXT:     %gate = hir.load_weight @gate : tensor<96x64x!hir.q<q4_1>>
// CHECK-NEXT:     %down = hir.load_weight @down : tensor<64x96xbf16>
// CHECK-NEXT:     %f = hir.glu silu %h up %up gate %gate down %down : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<96x64x!hir.q<q4_1>>, tensor<96x64x!hir.q<q4_1>>, tensor<64x96xbf16>
// CHECK-NEXT:     %l = hir.linear %f, %up : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<96x64x!hir.q<q4_1>> -> tensor<?x96xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %q = hir.linear %l, %down : tensor<?x96xf32, #hir.dims<seq, _>>, tensor<64x96xbf16> -> tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %r = hir.rope %q, %cos, %sin start "past" head_dim 16 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>
// CHECK-NEXT:     %k = hir.last_rows %r : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<1x64xf32>
// CHECK-NEXT:     %u = mir.unary gelu_tanh %q : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %s = mir.binary add %x, %u : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     func.return %s : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func private @cache(%x: tensor<?x64xf32, #hir.dims<seq, _>>, %k: tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>> {
// CHECK-NEXT:     %ks = hir.append %k to @k_cache start "past" : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<?x32xf32, #hir.dims<keys, _>>
// CHECK-NEXT:     %vs = hir.append %k to @v_cache start "past" : tensor<?x32xf32, #hir.dims<seq, _>> -> tensor<?x32xf32, #hir.dims<keys, _>>
// CHECK-NEXT:     %a = hir.attention %x, %ks, %vs head_dim 16 scale 0.25 : tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x32xf32, #hir.dims<keys, _>>
// CHECK-NEXT:     func.return %a : tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func @main(%tokens: tensor<?xi32, #hir.dims<seq>> {rlx.name = "tokens"}, %sampling: tensor<8xi32> {rlx.name = "sampling"}) -> (tensor<1xi32> {rlx.name = "id"}, tensor<1x300xf32> {rlx.name = "logits"}) {
// CHECK-NEXT:     %table = hir.load_weight @table : tensor<300x64x!hir.q<q8_0>>
// CHECK-NEXT:     %e = hir.embedding %tokens, %table : tensor<?xi32, #hir.dims<seq>>, tensor<300x64x!hir.q<q8_0>> -> tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %cos, %sin = hir.rope_table base 100000.0 : tensor<2560x8xf32>, tensor<2560x8xf32>
// CHECK-NEXT:     %y = hir.repeat @layer(%e, %cos, %sin) layers 0 to 30 : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %last = hir.last_rows %y : tensor<?x64xf32, #hir.dims<seq, _>> -> tensor<1x64xf32>
// CHECK-NEXT:     %logits = hir.linear %last, %table : tensor<1x64xf32>, tensor<300x64x!hir.q<q8_0>> -> tensor<1x300xf32>
// CHECK-NEXT:     %id = hir.sample %logits, %sampling : tensor<1x300xf32>, tensor<8xi32> -> tensor<1xi32>
// CHECK-NEXT:     func.return %id, %logits : tensor<1xi32>, tensor<1x300xf32>
// CHECK-NEXT:   }
// CHECK-NEXT:   hir.weight @f32 "f32" : tensor<8x256xf32>
// CHECK-NEXT:   hir.weight @f16 "f16" : tensor<8x256xf16>
// CHECK-NEXT:   hir.weight @bf16 "bf16" : tensor<8x256xbf16>
// CHECK-NEXT:   hir.weight @q4_0 "q4_0" : tensor<8x256x!hir.q<q4_0>>
// CHECK-NEXT:   hir.weight @q4_1 "q4_1" : tensor<8x256x!hir.q<q4_1>>
// CHECK-NEXT:   hir.weight @q5_0 "q5_0" : tensor<8x256x!hir.q<q5_0>>
// CHECK-NEXT:   hir.weight @q5_1 "q5_1" : tensor<8x256x!hir.q<q5_1>>
// CHECK-NEXT:   hir.weight @q8_0 "q8_0" : tensor<8x256x!hir.q<q8_0>>
// CHECK-NEXT:   hir.weight @q2_k "q2_k" : tensor<8x256x!hir.q<q2_k>>
// CHECK-NEXT:   hir.weight @q3_k "q3_k" : tensor<8x256x!hir.q<q3_k>>
// CHECK-NEXT:   hir.weight @q4_k "q4_k" : tensor<8x256x!hir.q<q4_k>>
// CHECK-NEXT:   hir.weight @q5_k "q5_k" : tensor<8x256x!hir.q<q5_k>>
// CHECK-NEXT:   hir.weight @q6_k "q6_k" : tensor<8x256x!hir.q<q6_k>>
// CHECK-NEXT:   hir.weight @packed "packed" : tensor<8x256x!hir.packed<q4_0>>
// CHECK-NEXT:   func.func private @kinds(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
// CHECK-NEXT:     %neg = mir.unary neg %x : tensor<4x4xf32>
// CHECK-NEXT:     %exp = mir.unary exp %x : tensor<4x4xf32>
// CHECK-NEXT:     %silu = mir.unary silu %x : tensor<4x4xf32>
// CHECK-NEXT:     %sigmoid = mir.unary sigmoid %x : tensor<4x4xf32>
// CHECK-NEXT:     %tanh = mir.unary tanh %x : tensor<4x4xf32>
// CHECK-NEXT:     %gelu_tanh = mir.unary gelu_tanh %x : tensor<4x4xf32>
// CHECK-NEXT:     %relu = mir.unary relu %x : tensor<4x4xf32>
// CHECK-NEXT:     %sqrt = mir.unary sqrt %x : tensor<4x4xf32>
// CHECK-NEXT:     %rsqrt = mir.unary rsqrt %x : tensor<4x4xf32>
// CHECK-NEXT:     %recip = mir.unary recip %x : tensor<4x4xf32>
// CHECK-NEXT:     %abs = mir.unary abs %x : tensor<4x4xf32>
// CHECK-NEXT:     %add = mir.binary add %x, %x : tensor<4x4xf32>
// CHECK-NEXT:     %sub = mir.binary sub %x, %x : tensor<4x4xf32>
// CHECK-NEXT:     %mul = mir.binary mul %x, %x : tensor<4x4xf32>
// CHECK-NEXT:     %div = mir.binary div %x, %x : tensor<4x4xf32>
// CHECK-NEXT:     %max = mir.binary max %x, %x : tensor<4x4xf32>
// CHECK-NEXT:     %min = mir.binary min %x, %x : tensor<4x4xf32>
// CHECK-NEXT:     func.return %x : tensor<4x4xf32>
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC: "builtin.module"() <{sym_name = "ops"}> ({
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "table", key = "token_embd.weight", type = tensor<300x64x!hir.q<q8_0>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "norm", key = "blk.{layer}.norm.weight", type = tensor<64xf32>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "up", key = "blk.{layer}.up.weight", type = tensor<96x64x!hir.q<q4_1>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "gate", key = "blk.{layer}.gate.weight", type = tensor<96x64x!hir.q<q4_1>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "down", key = "blk.{layer}.down.weight", type = tensor<64x96xbf16>}> {note = "attributes stay"} : () -> ()
// GENERIC-NEXT:   "hir.state"() <{sym_name = "k_cache", role = #hir<state_role keys>, head_dim = 16 : i64, type = tensor<2560x32xf32>}> : () -> ()
// GENERIC-NEXT:   "hir.state"() <{sym_name = "v_cache", role = #hir<state_role values>, head_dim = 16 : i64, type = tensor<2560x32xf32>}> : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "layer", function_type = (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>, sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x64xf32, #hir.dims<seq, _>>, %cos: tensor<2560x8xf32>, %sin: tensor<2560x8xf32>):
// GENERIC-NEXT:     %norm = "hir.load_weight"() <{weight = @norm}> : () -> tensor<64xf32>
// GENERIC-NEXT:     %h = "hir.rms_norm"(%x, %norm) <{eps = 1.000000e-05 : f64}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<64xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %up = "hir.load_weight"() <{weight = @up}> : () -> tensor<96x64x!hir.q<q4_1>>
// GENERIC-NEXT:     %gate = "hir.load_weight"() <{weight = @gate}> : () -> tensor<96x64x!hir.q<q4_1>>
// GENERIC-NEXT:     %down = "hir.load_weight"() <{weight = @down}> : () -> tensor<64x96xbf16>
// GENERIC-NEXT:     %f = "hir.glu"(%h, %up, %gate, %down) <{kind = #mir<unary_kind silu>}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<96x64x!hir.q<q4_1>>, tensor<96x64x!hir.q<q4_1>>, tensor<64x96xbf16>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %l = "hir.linear"(%f, %up) : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<96x64x!hir.q<q4_1>>) -> tensor<?x96xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %q = "hir.linear"(%l, %down) : (tensor<?x96xf32, #hir.dims<seq, _>>, tensor<64x96xbf16>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %r = "hir.rope"(%q, %cos, %sin) <{start = "past", head_dim = 16 : i64}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %k = "hir.last_rows"(%r) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<1x64xf32>
// GENERIC-NEXT:     %u = "mir.unary"(%q) <{kind = #mir<unary_kind gelu_tanh>}> : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %s = "mir.binary"(%x, %u) <{kind = #mir<binary_kind add>}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     "func.return"(%s) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "cache", function_type = (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>, sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x64xf32, #hir.dims<seq, _>>, %k: tensor<?x32xf32, #hir.dims<seq, _>>):
// GENERIC-NEXT:     %ks = "hir.append"(%k) <{state = @k_cache, start = "past"}> : (tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x32xf32, #hir.dims<keys, _>>
// GENERIC-NEXT:     %vs = "hir.append"(%k) <{state = @v_cache, start = "past"}> : (tensor<?x32xf32, #hir.dims<seq, _>>) -> tensor<?x32xf32, #hir.dims<keys, _>>
// GENERIC-NEXT:     %a = "hir.attention"(%x, %ks, %vs) <{head_dim = 16 : i64, scale = 2.500000e-01 : f64}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<?x32xf32, #hir.dims<keys, _>>, tensor<?x32xf32, #hir.dims<keys, _>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     "func.return"(%a) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "main", function_type = (tensor<?xi32, #hir.dims<seq>>, tensor<8xi32>) -> (tensor<1xi32>, tensor<1x300xf32>), arg_attrs = [{rlx.name = "tokens"}, {rlx.name = "sampling"}], res_attrs = [{rlx.name = "id"}, {rlx.name = "logits"}]}> ({
// GENERIC-NEXT:   ^bb0(%tokens: tensor<?xi32, #hir.dims<seq>>, %sampling: tensor<8xi32>):
// GENERIC-NEXT:     %table = "hir.load_weight"() <{weight = @table}> : () -> tensor<300x64x!hir.q<q8_0>>
// GENERIC-NEXT:     %e = "hir.embedding"(%tokens, %table) : (tensor<?xi32, #hir.dims<seq>>, tensor<300x64x!hir.q<q8_0>>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %cos, %sin = "hir.rope_table"() <{base = 1.000000e+05 : f64}> : () -> (tensor<2560x8xf32>, tensor<2560x8xf32>)
// GENERIC-NEXT:     %y = "hir.repeat"(%e, %cos, %sin) <{callee = @layer, first = 0 : i64, last = 30 : i64}> : (tensor<?x64xf32, #hir.dims<seq, _>>, tensor<2560x8xf32>, tensor<2560x8xf32>) -> tensor<?x64xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %last = "hir.last_rows"(%y) : (tensor<?x64xf32, #hir.dims<seq, _>>) -> tensor<1x64xf32>
// GENERIC-NEXT:     %logits = "hir.linear"(%last, %table) : (tensor<1x64xf32>, tensor<300x64x!hir.q<q8_0>>) -> tensor<1x300xf32>
// GENERIC-NEXT:     %id = "hir.sample"(%logits, %sampling) : (tensor<1x300xf32>, tensor<8xi32>) -> tensor<1xi32>
// GENERIC-NEXT:     "func.return"(%id, %logits) : (tensor<1xi32>, tensor<1x300xf32>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "f32", key = "f32", type = tensor<8x256xf32>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "f16", key = "f16", type = tensor<8x256xf16>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "bf16", key = "bf16", type = tensor<8x256xbf16>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q4_0", key = "q4_0", type = tensor<8x256x!hir.q<q4_0>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q4_1", key = "q4_1", type = tensor<8x256x!hir.q<q4_1>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q5_0", key = "q5_0", type = tensor<8x256x!hir.q<q5_0>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q5_1", key = "q5_1", type = tensor<8x256x!hir.q<q5_1>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q8_0", key = "q8_0", type = tensor<8x256x!hir.q<q8_0>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q2_k", key = "q2_k", type = tensor<8x256x!hir.q<q2_k>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q3_k", key = "q3_k", type = tensor<8x256x!hir.q<q3_k>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q4_k", key = "q4_k", type = tensor<8x256x!hir.q<q4_k>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q5_k", key = "q5_k", type = tensor<8x256x!hir.q<q5_k>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "q6_k", key = "q6_k", type = tensor<8x256x!hir.q<q6_k>>}> : () -> ()
// GENERIC-NEXT:   "hir.weight"() <{sym_name = "packed", key = "packed", type = tensor<8x256x!hir.packed<q4_0>>}> : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "kinds", function_type = (tensor<4x4xf32>) -> tensor<4x4xf32>, sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<4x4xf32>):
// GENERIC-NEXT:     %neg = "mir.unary"(%x) <{kind = #mir<unary_kind neg>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %exp = "mir.unary"(%x) <{kind = #mir<unary_kind exp>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %silu = "mir.unary"(%x) <{kind = #mir<unary_kind silu>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %sigmoid = "mir.unary"(%x) <{kind = #mir<unary_kind sigmoid>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %tanh = "mir.unary"(%x) <{kind = #mir<unary_kind tanh>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %gelu_tanh = "mir.unary"(%x) <{kind = #mir<unary_kind gelu_tanh>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %relu = "mir.unary"(%x) <{kind = #mir<unary_kind relu>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %sqrt = "mir.unary"(%x) <{kind = #mir<unary_kind sqrt>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %rsqrt = "mir.unary"(%x) <{kind = #mir<unary_kind rsqrt>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %recip = "mir.unary"(%x) <{kind = #mir<unary_kind recip>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %abs = "mir.unary"(%x) <{kind = #mir<unary_kind abs>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %add = "mir.binary"(%x, %x) <{kind = #mir<binary_kind add>}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %sub = "mir.binary"(%x, %x) <{kind = #mir<binary_kind sub>}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %mul = "mir.binary"(%x, %x) <{kind = #mir<binary_kind mul>}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %div = "mir.binary"(%x, %x) <{kind = #mir<binary_kind div>}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %max = "mir.binary"(%x, %x) <{kind = #mir<binary_kind max>}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     %min = "mir.binary"(%x, %x) <{kind = #mir<binary_kind min>}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// GENERIC-NEXT:     "func.return"(%x) : (tensor<4x4xf32>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) {rlx.dims = #hir.dim_table<batch = 2, seq = 1 to 512, past = 0 to 2048, keys = past + seq, rows = batch * seq>} : () -> ()
