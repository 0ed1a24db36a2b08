// RUN: rlx-opt %s -p 'verify-stage{stage=mir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module @primitives attributes {rlx.dims = #hir.dim_table<n = 1 to 16, twice = n + n, four = n * n>} {
  func.func private @kinds(%x: tensor<?x8xf32, #hir.dims<n, _>>, %d: tensor<4xf64>, %i: tensor<4xi8>, %b: tensor<4xi1>) {
    %neg = mir.unary neg %d : tensor<4xf64>
    %abs = mir.unary abs %d : tensor<4xf64>
    %sign = mir.unary sign %d : tensor<4xf64>
    %not = mir.unary not %b : tensor<4xi1>
    %floor = mir.unary floor %d : tensor<4xf64>
    %ceil = mir.unary ceil %d : tensor<4xf64>
    %round = mir.unary round %d : tensor<4xf64>
    %sqrt = mir.unary sqrt %d : tensor<4xf64>
    %rsqrt = mir.unary rsqrt %d : tensor<4xf64>
    %recip = mir.unary recip %d : tensor<4xf64>
    %exp = mir.unary exp %d : tensor<4xf64>
    %log = mir.unary log %d : tensor<4xf64>
    %sin = mir.unary sin %d : tensor<4xf64>
    %cos = mir.unary cos %d : tensor<4xf64>
    %tan = mir.unary tan %d : tensor<4xf64>
    %atan = mir.unary atan %d : tensor<4xf64>
    %tanh = mir.unary tanh %d : tensor<4xf64>
    %erf = mir.unary erf %d : tensor<4xf64>
    %sigmoid = mir.unary sigmoid %d : tensor<4xf64>
    %log_sigmoid = mir.unary log_sigmoid %d : tensor<4xf64>
    %silu = mir.unary silu %d : tensor<4xf64>
    %gelu = mir.unary gelu %d : tensor<4xf64>
    %gelu_tanh = mir.unary gelu_tanh %d : tensor<4xf64>
    %relu = mir.unary relu %d : tensor<4xf64>
    %elu = mir.unary elu %d : tensor<4xf64>
    %softplus = mir.unary softplus %d : tensor<4xf64>
    %softsign = mir.unary softsign %d : tensor<4xf64>
    %hard_sigmoid = mir.unary hard_sigmoid %d : tensor<4xf64>
    %hard_swish = mir.unary hard_swish %d : tensor<4xf64>
    %mish = mir.unary mish %d : tensor<4xf64>
    %add_2 = mir.binary add %d, %d : tensor<4xf64>
    %sub_2 = mir.binary sub %d, %d : tensor<4xf64>
    %mul_2 = mir.binary mul %d, %d : tensor<4xf64>
    %div_2 = mir.binary div %d, %d : tensor<4xf64>
    %max_2 = mir.binary max %d, %d : tensor<4xf64>
    %min_2 = mir.binary min %d, %d : tensor<4xf64>
    %pow_2 = mir.binary pow %d, %d : tensor<4xf64>
    %mod_2 = mir.binary mod %d, %d : tensor<4xf64>
    %atan2_2 = mir.binary atan2 %d, %d : tensor<4xf64>
    %and_2 = mir.binary and %i, %i : tensor<4xi8>
    %or_2 = mir.binary or %i, %i : tensor<4xi8>
    %xor_2 = mir.binary xor %i, %i : tensor<4xi8>
    %shl_2 = mir.binary shl %i, %i : tensor<4xi8>
    %shr_2 = mir.binary shr %i, %i : tensor<4xi8>
    %eq = mir.compare eq %d, %d : tensor<4xf64> -> tensor<4xi1>
    %ne = mir.compare ne %d, %d : tensor<4xf64> -> tensor<4xi1>
    %lt = mir.compare lt %d, %d : tensor<4xf64> -> tensor<4xi1>
    %le = mir.compare le %d, %d : tensor<4xf64> -> tensor<4xi1>
    %gt = mir.compare gt %d, %d : tensor<4xf64> -> tensor<4xi1>
    %ge = mir.compare ge %d, %d : tensor<4xf64> -> tensor<4xi1>
    %sum_3 = mir.reduce sum %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
    %mean_3 = mir.reduce mean %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
    %max_3 = mir.reduce max %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
    %min_3 = mir.reduce min %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
    %prod_3 = mir.reduce prod %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
    func.return
  }
  func.func private @constants() {
    %f = mir.constant dense<[1.000000e+00, -2.500000e+00]> : tensor<2xf32>
    %splat = mir.constant dense<1.000000e-01> : tensor<3x2xf64>
    %half = mir.constant dense<[5.000000e-01, 2.000000e+00]> : tensor<2xf16>
    %brain = mir.constant dense<3.000000e+00> : tensor<bf16>
    %i = mir.constant dense<[[-1, 2], [3, 4]]> : tensor<2x2xi16>
    %b = mir.constant dense<[true, false]> : tensor<2xi1>
    %none = mir.constant dense<> : tensor<0x2xi64> {note = "attributes stay"}
    %at = mir.iota axis 1 : tensor<?x8xi32, #hir.dims<n, _>>
    %ramp = mir.iota axis 0 : tensor<?xf32, #hir.dims<n>>
    func.return
  }
  func.func private @maps(%x: tensor<?x8xf32, #hir.dims<n, _>>, %b: tensor<?x8xi1, #hir.dims<n, _>>, %h: tensor<4xbf16>) {
    %s = mir.select %b, %x, %x : tensor<?x8xi1, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>
    %c = mir.cast %x : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x8xi64, #hir.dims<n, _>>
    %w = mir.cast %h : tensor<4xbf16> -> tensor<4xf32> {phase = #mir<phase steady_state>}
    func.return
  }
  func.func private @rows(%x: tensor<?x8xf32, #hir.dims<n, _>>, %v: tensor<8xf32>, %q: tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, %k: tensor<2x2x9x8xf32>, %m: tensor<2x?x9xf32, #hir.dims<_, n, _>>) {
    %all = mir.reduce sum %x axes [0, 1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<f32>
    %none = mir.reduce max %x axes [] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x8xf32, #hir.dims<n, _>>
    %soft = mir.softmax %x : tensor<?x8xf32, #hir.dims<n, _>>
    %norm = mir.layer_norm %x, %v, %v eps 1.0e-05 : tensor<?x8xf32, #hir.dims<n, _>>, tensor<8xf32>
    %gram = mir.dot %x, %x rhs_t : tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x?xf32, #hir.dims<n, n>>
    %cov = mir.dot %x lhs_t, %x : tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<8x8xf32>
    %plain = mir.dot %gram, %x : tensor<?x?xf32, #hir.dims<n, n>>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x8xf32, #hir.dims<n, _>>
    %both = mir.dot %cov lhs_t, %x rhs_t : tensor<8x8xf32>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<8x?xf32, #hir.dims<_, n>>
    %att = mir.sdpa %q, %k, %k scale 0.5 : tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32> -> tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>
    %masked = mir.sdpa %q, %k, %k mask %m : tensor<2x?x9xf32, #hir.dims<_, n, _>> scale 0.25 causal : tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32> -> tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>
    func.return
  }
  func.func private @moves(%x: tensor<?x8xf32, #hir.dims<n, _>>, %f: tensor<6x4xf16>, %ids: tensor<2x3xi64>) {
    %flat = mir.reshape %f : tensor<6x4xf16> -> tensor<2x12x1xf16>
    %square = mir.reshape %x : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x2x4xf32, #hir.dims<n, _, _>>
    %up = mir.broadcast %f : tensor<6x4xf16> -> tensor<?x6x4xf16, #hir.dims<n, _, _>>
    %one = mir.reshape %x : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x1x8xf32, #hir.dims<n, _, _>>
    %many = mir.broadcast %one : tensor<?x1x8xf32, #hir.dims<n, _, _>> -> tensor<?x?x8xf32, #hir.dims<n, n, _>>
    %merged = mir.reshape %many : tensor<?x?x8xf32, #hir.dims<n, n, _>> -> tensor<?x8xf32, #hir.dims<four, _>>
    %turned = mir.transpose %x [1, 0] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<8x?xf32, #hir.dims<_, n>>
    %cut = mir.slice %x starts [0, 1] steps [1, 3] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x3xf32, #hir.dims<n, _>>
    %wide = mir.concat axis 1 (%x, %cut, %x) : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x3xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x19xf32, #hir.dims<n, _>>
    %long = mir.concat axis 0 (%x, %x) : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<twice, _>>
    %taken = mir.gather %f, %ids axis 1 : tensor<6x4xf16>, tensor<2x3xi64> -> tensor<6x2x3xf16>
    func.return
  }
}

// CHECK: builtin.module @primitives attributes {rlx.dims = #hir.dim_table<n = 1 to 16, twice = n + n, four = n * n>} {
// CHECK-NEXT:   func.func private @kinds(%x: tensor<?x8xf32, #hir.dims<n, _>>, %d: tensor<4xf64>, %i: tensor<4xi8>, %b: tensor<4xi1>) {
// CHECK-NEXT:     %neg = mir.unary neg %d : tensor<4xf64>
// CHECK-NEXT:     %abs = mir.unary abs %d : tensor<4xf64>
// CHECK-NEXT:     %sign = mir.unary sign %d : tensor<4xf64>
// CHECK-NEXT:     %not = mir.unary not %b : tensor<4xi1>
// CHECK-NEXT:     %floor = mir.unary floor %d : tensor<4xf64>
// CHECK-NEXT:     %ceil = mir.unary ceil %d : tensor<4xf64>
// CHECK-NEXT:     %round = mir.unary round %d : tensor<4xf64>
// CHECK-NEXT:     %sqrt = mir.unary sqrt %d : tensor<4xf64>
// CHECK-NEXT:     %rsqrt = mir.unary rsqrt %d : tensor<4xf64>
// CHECK-NEXT:     %recip = mir.unary recip %d : tensor<4xf64>
// CHECK-NEXT:     %exp = mir.unary exp %d : tensor<4xf64>
// CHECK-NEXT:     %log = mir.unary log %d : tensor<4xf64>
// CHECK-NEXT:     %sin = mir.unary sin %d : tensor<4xf64>
// CHECK-NEXT:     %cos = mir.unary cos %d : tensor<4xf64>
// CHECK-NEXT:     %tan = mir.unary tan %d : tensor<4xf64>
// CHECK-NEXT:     %atan = mir.unary atan %d : tensor<4xf64>
// CHECK-NEXT:     %tanh = mir.unary tanh %d : tensor<4xf64>
// CHECK-NEXT:     %erf = mir.unary erf %d : tensor<4xf64>
// CHECK-NEXT:     %sigmoid = mir.unary sigmoid %d : tensor<4xf64>
// CHECK-NEXT:     %log_sigmoid = mir.unary log_sigmoid %d : tensor<4xf64>
// CHECK-NEXT:     %silu = mir.unary silu %d : tensor<4xf64>
// CHECK-NEXT:     %gelu = mir.unary gelu %d : tensor<4xf64>
// CHECK-NEXT:     %gelu_tanh = mir.unary gelu_tanh %d : tensor<4xf64>
// CHECK-NEXT:     %relu = mir.unary relu %d : tensor<4xf64>
// CHECK-NEXT:     %elu = mir.unary elu %d : tensor<4xf64>
// CHECK-NEXT:     %softplus = mir.unary softplus %d : tensor<4xf64>
// CHECK-NEXT:     %softsign = mir.unary softsign %d : tensor<4xf64>
// CHECK-NEXT:     %hard_sigmoid = mir.unary hard_sigmoid %d : tensor<4xf64>
// CHECK-NEXT:     %hard_swish = mir.unary hard_swish %d : tensor<4xf64>
// CHECK-NEXT:     %mish = mir.unary mish %d : tensor<4xf64>
// CHECK-NEXT:     %add = mir.binary add %d, %d : tensor<4xf64>
// CHECK-NEXT:     %sub = mir.binary sub %d, %d : tensor<4xf64>
// CHECK-NEXT:     %mul = mir.binary mul %d, %d : tensor<4xf64>
// CHECK-NEXT:     %div = mir.binary div %d, %d : tensor<4xf64>
// CHECK-NEXT:     %max = mir.binary max %d, %d : tensor<4xf64>
// CHECK-NEXT:     %min = mir.binary min %d, %d : tensor<4xf64>
// CHECK-NEXT:     %pow = mir.binary pow %d, %d : tensor<4xf64>
// CHECK-NEXT:     %mod = mir.binary mod %d, %d : tensor<4xf64>
// CHECK-NEXT:     %atan2 = mir.binary atan2 %d, %d : tensor<4xf64>
// CHECK-NEXT:     %and = mir.binary and %i, %i : tensor<4xi8>
// CHECK-NEXT:     %or = mir.binary or %i, %i : tensor<4xi8>
// CHECK-NEXT:     %xor = mir.binary xor %i, %i : tensor<4xi8>
// CHECK-NEXT:     %shl = mir.binary shl %i, %i : tensor<4xi8>
// CHECK-NEXT:     %shr = mir.binary shr %i, %i : tensor<4xi8>
// CHECK-NEXT:     %eq = mir.compare eq %d, %d : tensor<4xf64> -> tensor<4xi1>
// CHECK-NEXT:     %ne = mir.compare ne %d, %d : tensor<4xf64> -> tensor<4xi1>
// CHECK-NEXT:     %lt = mir.compare lt %d, %d : tensor<4xf64> -> tensor<4xi1>
// CHECK-NEXT:     %le = mir.compare le %d, %d : tensor<4xf64> -> tensor<4xi1>
// CHECK-NEXT:     %gt = mir.compare gt %d, %d : tensor<4xf64> -> tensor<4xi1>
// CHECK-NEXT:     %ge = mir.compare ge %d, %d : tensor<4xf64> -> tensor<4xi1>
// CHECK-NEXT:     %sum = mir.reduce sum %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
// CHECK-NEXT:     %mean = mir.reduce mean %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
// CHECK-NEXT:     %max_1 = mir.reduce max %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
// CHECK-NEXT:     %min_1 = mir.reduce min %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
// CHECK-NEXT:     %prod = mir.reduce prod %x axes [1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?xf32, #hir.dims<n>>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func private @constants() {
// CHECK-NEXT:     %f = mir.constant dense<[1.000000e+00, -2.500000e+00]> : tensor<2xf32>
// CHECK-NEXT:     %splat = mir.constant dense<1.000000e-01> : tensor<3x2xf64>
// CHECK-NEXT:     %half = mir.constant dense<[5.000000e-01, 2.000000e+00]> : tensor<2xf16>
// CHECK-NEXT:     %brain = mir.constant dense<3.000000e+00> : tensor<bf16>
// CHECK-NEXT:     %i = mir.constant dense<[[-1, 2], [3, 4]]> : tensor<2x2xi16>
// CHECK-NEXT:     %b = mir.constant dense<[true, false]> : tensor<2xi1>
// CHECK-NEXT:     %none = mir.constant dense<> : tensor<0x2xi64> {note = "attributes stay"}
// CHECK-NEXT:     %at = mir.iota axis 1 : tensor<?x8xi32, #hir.dims<n, _>>
// CHECK-NEXT:     %ramp = mir.iota axis 0 : tensor<?xf32, #hir.dims<n>>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func private @maps(%x: tensor<?x8xf32, #hir.dims<n, _>>, %b: tensor<?x8xi1, #hir.dims<n, _>>, %h: tensor<4xbf16>) {
// CHECK-NEXT:     %s = mir.select %b, %x, %x : tensor<?x8xi1, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>
// CHECK-NEXT:     %c = mir.cast %x : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x8xi64, #hir.dims<n, _>>
// CHECK-NEXT:     %w = mir.cast %h : tensor<4xbf16> -> tensor<4xf32> {phase = #mir<phase steady_state>}
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func private @rows(%x: tensor<?x8xf32, #hir.dims<n, _>>, %v: tensor<8xf32>, %q: tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, %k: tensor<2x2x9x8xf32>, %m: tensor<2x?x9xf32, #hir.dims<_, n, _>>) {
// CHECK-NEXT:     %all = mir.reduce sum %x axes [0, 1] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<f32>
// CHECK-NEXT:     %none = mir.reduce max %x axes [] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x8xf32, #hir.dims<n, _>>
// CHECK-NEXT:     %soft = mir.softmax %x : tensor<?x8xf32, #hir.dims<n, _>>
// CHECK-NEXT:     %norm = mir.layer_norm %x, %v, %v eps 1.0e-05 : tensor<?x8xf32, #hir.dims<n, _>>, tensor<8xf32>
// CHECK-NEXT:     %gram = mir.dot %x, %x rhs_t : tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x?xf32, #hir.dims<n, n>>
// CHECK-NEXT:     %cov = mir.dot %x lhs_t, %x : tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<8x8xf32>
// CHECK-NEXT:     %plain = mir.dot %gram, %x : tensor<?x?xf32, #hir.dims<n, n>>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x8xf32, #hir.dims<n, _>>
// CHECK-NEXT:     %both = mir.dot %cov lhs_t, %x rhs_t : tensor<8x8xf32>, tensor<?x8xf32, #hir.dims<n, _>> -> tensor<8x?xf32, #hir.dims<_, n>>
// CHECK-NEXT:     %att = mir.sdpa %q, %k, %k scale 0.5 : tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32> -> tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>
// CHECK-NEXT:     %masked = mir.sdpa %q, %k, %k mask %m : tensor<2x?x9xf32, #hir.dims<_, n, _>> scale 0.25 causal : tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32> -> tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func private @moves(%x: tensor<?x8xf32, #hir.dims<n, _>>, %f: tensor<6x4xf16>, %ids: tensor<2x3xi64>) {
// CHECK-NEXT:     %flat = mir.reshape %f : tensor<6x4xf16> -> tensor<2x12x1xf16>
// CHECK-NEXT:     %square = mir.reshape %x : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x2x4xf32, #hir.dims<n, _, _>>
// CHECK-NEXT:     %up = mir.broadcast %f : tensor<6x4xf16> -> tensor<?x6x4xf16, #hir.dims<n, _, _>>
// CHECK-NEXT:     %one = mir.reshape %x : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x1x8xf32, #hir.dims<n, _, _>>
// CHECK-NEXT:     %many = mir.broadcast %one : tensor<?x1x8xf32, #hir.dims<n, _, _>> -> tensor<?x?x8xf32, #hir.dims<n, n, _>>
// CHECK-NEXT:     %merged = mir.reshape %many : tensor<?x?x8xf32, #hir.dims<n, n, _>> -> tensor<?x8xf32, #hir.dims<four, _>>
// CHECK-NEXT:     %turned = mir.transpose %x [1, 0] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<8x?xf32, #hir.dims<_, n>>
// CHECK-NEXT:     %cut = mir.slice %x starts [0, 1] steps [1, 3] : tensor<?x8xf32, #hir.dims<n, _>> -> tensor<?x3xf32, #hir.dims<n, _>>
// CHECK-NEXT:     %wide = mir.concat axis 1(%x, %cut, %x) : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x3xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x19xf32, #hir.dims<n, _>>
// CHECK-NEXT:     %long = mir.concat axis 0(%x, %x) : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<twice, _>>
// CHECK-NEXT:     %taken = mir.gather %f, %ids axis 1 : tensor<6x4xf16>, tensor<2x3xi64> -> tensor<6x2x3xf16>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC: "builtin.module"() <{sym_name = "primitives"}> ({
// GENERIC-NEXT:   "func.func"() <{sym_name = "kinds", function_type = (tensor<?x8xf32, #hir.dims<n, _>>, tensor<4xf64>, tensor<4xi8>, tensor<4xi1>) -> (), sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x8xf32, #hir.dims<n, _>>, %d: tensor<4xf64>, %i: tensor<4xi8>, %b: tensor<4xi1>):
// GENERIC-NEXT:     %neg = "mir.unary"(%d) <{kind = #mir<unary_kind neg>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %abs = "mir.unary"(%d) <{kind = #mir<unary_kind abs>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %sign = "mir.unary"(%d) <{kind = #mir<unary_kind sign>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %not = "mir.unary"(%b) <{kind = #mir<unary_kind not>}> : (tensor<4xi1>) -> tensor<4xi1>
// GENERIC-NEXT:     %floor = "mir.unary"(%d) <{kind = #mir<unary_kind floor>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %ceil = "mir.unary"(%d) <{kind = #mir<unary_kind ceil>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %round = "mir.unary"(%d) <{kind = #mir<unary_kind round>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %sqrt = "mir.unary"(%d) <{kind = #mir<unary_kind sqrt>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %rsqrt = "mir.unary"(%d) <{kind = #mir<unary_kind rsqrt>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %recip = "mir.unary"(%d) <{kind = #mir<unary_kind recip>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %exp = "mir.unary"(%d) <{kind = #mir<unary_kind exp>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %log = "mir.unary"(%d) <{kind = #mir<unary_kind log>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %sin = "mir.unary"(%d) <{kind = #mir<unary_kind sin>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %cos = "mir.unary"(%d) <{kind = #mir<unary_kind cos>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %tan = "mir.unary"(%d) <{kind = #mir<unary_kind tan>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %atan = "mir.unary"(%d) <{kind = #mir<unary_kind atan>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %tanh = "mir.unary"(%d) <{kind = #mir<unary_kind tanh>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %erf = "mir.unary"(%d) <{kind = #mir<unary_kind erf>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %sigmoid = "mir.unary"(%d) <{kind = #mir<unary_kind sigmoid>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %log_sigmoid = "mir.unary"(%d) <{kind = #mir<unary_kind log_sigmoid>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %silu = "mir.unary"(%d) <{kind = #mir<unary_kind silu>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %gelu = "mir.unary"(%d) <{kind = #mir<unary_kind gelu>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %gelu_tanh = "mir.unary"(%d) <{kind = #mir<unary_kind gelu_tanh>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %relu = "mir.unary"(%d) <{kind = #mir<unary_kind relu>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %elu = "mir.unary"(%d) <{kind = #mir<unary_kind elu>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %softplus = "mir.unary"(%d) <{kind = #mir<unary_kind softplus>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %softsign = "mir.unary"(%d) <{kind = #mir<unary_kind softsign>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %hard_sigmoid = "mir.unary"(%d) <{kind = #mir<unary_kind hard_sigmoid>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %hard_swish = "mir.unary"(%d) <{kind = #mir<unary_kind hard_swish>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %mish = "mir.unary"(%d) <{kind = #mir<unary_kind mish>}> : (tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %add = "mir.binary"(%d, %d) <{kind = #mir<binary_kind add>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %sub = "mir.binary"(%d, %d) <{kind = #mir<binary_kind sub>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %mul = "mir.binary"(%d, %d) <{kind = #mir<binary_kind mul>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %div = "mir.binary"(%d, %d) <{kind = #mir<binary_kind div>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %max = "mir.binary"(%d, %d) <{kind = #mir<binary_kind max>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %min = "mir.binary"(%d, %d) <{kind = #mir<binary_kind min>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %pow = "mir.binary"(%d, %d) <{kind = #mir<binary_kind pow>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %mod = "mir.binary"(%d, %d) <{kind = #mir<binary_kind mod>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %atan2 = "mir.binary"(%d, %d) <{kind = #mir<binary_kind atan2>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>
// GENERIC-NEXT:     %and = "mir.binary"(%i, %i) <{kind = #mir<binary_kind and>}> : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
// GENERIC-NEXT:     %or = "mir.binary"(%i, %i) <{kind = #mir<binary_kind or>}> : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
// GENERIC-NEXT:     %xor = "mir.binary"(%i, %i) <{kind = #mir<binary_kind xor>}> : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
// GENERIC-NEXT:     %shl = "mir.binary"(%i, %i) <{kind = #mir<binary_kind shl>}> : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
// GENERIC-NEXT:     %shr = "mir.binary"(%i, %i) <{kind = #mir<binary_kind shr>}> : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
// GENERIC-NEXT:     %eq = "mir.compare"(%d, %d) <{kind = #mir<compare_kind eq>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>
// GENERIC-NEXT:     %ne = "mir.compare"(%d, %d) <{kind = #mir<compare_kind ne>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>
// GENERIC-NEXT:     %lt = "mir.compare"(%d, %d) <{kind = #mir<compare_kind lt>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>
// GENERIC-NEXT:     %le = "mir.compare"(%d, %d) <{kind = #mir<compare_kind le>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>
// GENERIC-NEXT:     %gt = "mir.compare"(%d, %d) <{kind = #mir<compare_kind gt>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>
// GENERIC-NEXT:     %ge = "mir.compare"(%d, %d) <{kind = #mir<compare_kind ge>}> : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>
// GENERIC-NEXT:     %sum = "mir.reduce"(%x) <{kind = #mir<reduce_kind sum>, axes = array<i64: 1>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?xf32, #hir.dims<n>>
// GENERIC-NEXT:     %mean = "mir.reduce"(%x) <{kind = #mir<reduce_kind mean>, axes = array<i64: 1>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?xf32, #hir.dims<n>>
// GENERIC-NEXT:     %max_1 = "mir.reduce"(%x) <{kind = #mir<reduce_kind max>, axes = array<i64: 1>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?xf32, #hir.dims<n>>
// GENERIC-NEXT:     %min_1 = "mir.reduce"(%x) <{kind = #mir<reduce_kind min>, axes = array<i64: 1>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?xf32, #hir.dims<n>>
// GENERIC-NEXT:     %prod = "mir.reduce"(%x) <{kind = #mir<reduce_kind prod>, axes = array<i64: 1>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?xf32, #hir.dims<n>>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "constants", function_type = () -> (), sym_visibility = "private"}> ({
// GENERIC-NEXT:     %f = "mir.constant"() <{value = dense<[1.000000e+00, -2.500000e+00]> : tensor<2xf32>}> : () -> tensor<2xf32>
// GENERIC-NEXT:     %splat = "mir.constant"() <{value = dense<1.000000e-01> : tensor<3x2xf64>}> : () -> tensor<3x2xf64>
// GENERIC-NEXT:     %half = "mir.constant"() <{value = dense<[5.000000e-01, 2.000000e+00]> : tensor<2xf16>}> : () -> tensor<2xf16>
// GENERIC-NEXT:     %brain = "mir.constant"() <{value = dense<3.000000e+00> : tensor<bf16>}> : () -> tensor<bf16>
// GENERIC-NEXT:     %i = "mir.constant"() <{value = dense<[[-1, 2], [3, 4]]> : tensor<2x2xi16>}> : () -> tensor<2x2xi16>
// GENERIC-NEXT:     %b = "mir.constant"() <{value = dense<[true, false]> : tensor<2xi1>}> : () -> tensor<2xi1>
// GENERIC-NEXT:     %none = "mir.constant"() <{value = dense<> : tensor<0x2xi64>}> {note = "attributes stay"} : () -> tensor<0x2xi64>
// GENERIC-NEXT:     %at = "mir.iota"() <{axis = 1 : i64}> : () -> tensor<?x8xi32, #hir.dims<n, _>>
// GENERIC-NEXT:     %ramp = "mir.iota"() <{axis = 0 : i64}> : () -> tensor<?xf32, #hir.dims<n>>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "maps", function_type = (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xi1, #hir.dims<n, _>>, tensor<4xbf16>) -> (), sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x8xf32, #hir.dims<n, _>>, %b: tensor<?x8xi1, #hir.dims<n, _>>, %h: tensor<4xbf16>):
// GENERIC-NEXT:     %s = "mir.select"(%b, %x, %x) : (tensor<?x8xi1, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %c = "mir.cast"(%x) : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xi64, #hir.dims<n, _>>
// GENERIC-NEXT:     %w = "mir.cast"(%h) {phase = #mir<phase steady_state>} : (tensor<4xbf16>) -> tensor<4xf32>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "rows", function_type = (tensor<?x8xf32, #hir.dims<n, _>>, tensor<8xf32>, tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x?x9xf32, #hir.dims<_, n, _>>) -> (), sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x8xf32, #hir.dims<n, _>>, %v: tensor<8xf32>, %q: tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, %k: tensor<2x2x9x8xf32>, %m: tensor<2x?x9xf32, #hir.dims<_, n, _>>):
// GENERIC-NEXT:     %all = "mir.reduce"(%x) <{kind = #mir<reduce_kind sum>, axes = array<i64: 0, 1>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<f32>
// GENERIC-NEXT:     %none = "mir.reduce"(%x) <{kind = #mir<reduce_kind max>, axes = array<i64>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %soft = "mir.softmax"(%x) : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %norm = "mir.layer_norm"(%x, %v, %v) <{eps = 1.000000e-05 : f64}> : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<8xf32>, tensor<8xf32>) -> tensor<?x8xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %gram = "mir.dot"(%x, %x) <{rhs_t}> : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x?xf32, #hir.dims<n, n>>
// GENERIC-NEXT:     %cov = "mir.dot"(%x, %x) <{lhs_t}> : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<8x8xf32>
// GENERIC-NEXT:     %plain = "mir.dot"(%gram, %x) : (tensor<?x?xf32, #hir.dims<n, n>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %both = "mir.dot"(%cov, %x) <{lhs_t, rhs_t}> : (tensor<8x8xf32>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<8x?xf32, #hir.dims<_, n>>
// GENERIC-NEXT:     %att = "mir.sdpa"(%q, %k, %k) <{scale = 5.000000e-01 : f64}> : (tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>
// GENERIC-NEXT:     %masked = "mir.sdpa"(%q, %k, %k, %m) <{scale = 2.500000e-01 : f64, causal}> : (tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<2x?x9xf32, #hir.dims<_, n, _>>) -> tensor<2x4x?x8xf32, #hir.dims<_, _, n, _>>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "moves", function_type = (tensor<?x8xf32, #hir.dims<n, _>>, tensor<6x4xf16>, tensor<2x3xi64>) -> (), sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<?x8xf32, #hir.dims<n, _>>, %f: tensor<6x4xf16>, %ids: tensor<2x3xi64>):
// GENERIC-NEXT:     %flat = "mir.reshape"(%f) : (tensor<6x4xf16>) -> tensor<2x12x1xf16>
// GENERIC-NEXT:     %square = "mir.reshape"(%x) : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x2x4xf32, #hir.dims<n, _, _>>
// GENERIC-NEXT:     %up = "mir.broadcast"(%f) : (tensor<6x4xf16>) -> tensor<?x6x4xf16, #hir.dims<n, _, _>>
// GENERIC-NEXT:     %one = "mir.reshape"(%x) : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x1x8xf32, #hir.dims<n, _, _>>
// GENERIC-NEXT:     %many = "mir.broadcast"(%one) : (tensor<?x1x8xf32, #hir.dims<n, _, _>>) -> tensor<?x?x8xf32, #hir.dims<n, n, _>>
// GENERIC-NEXT:     %merged = "mir.reshape"(%many) : (tensor<?x?x8xf32, #hir.dims<n, n, _>>) -> tensor<?x8xf32, #hir.dims<four, _>>
// GENERIC-NEXT:     %turned = "mir.transpose"(%x) <{order = array<i64: 1, 0>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<8x?xf32, #hir.dims<_, n>>
// GENERIC-NEXT:     %cut = "mir.slice"(%x) <{starts = array<i64: 0, 1>, steps = array<i64: 1, 3>}> : (tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x3xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %wide = "mir.concat"(%x, %cut, %x) <{axis = 1 : i64}> : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x3xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x19xf32, #hir.dims<n, _>>
// GENERIC-NEXT:     %long = "mir.concat"(%x, %x) <{axis = 0 : i64}> : (tensor<?x8xf32, #hir.dims<n, _>>, tensor<?x8xf32, #hir.dims<n, _>>) -> tensor<?x8xf32, #hir.dims<twice, _>>
// GENERIC-NEXT:     %taken = "mir.gather"(%f, %ids) <{axis = 1 : i64}> : (tensor<6x4xf16>, tensor<2x3xi64>) -> tensor<6x2x3xf16>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) {rlx.dims = #hir.dim_table<n = 1 to 16, twice = n + n, four = n * n>} : () -> ()
