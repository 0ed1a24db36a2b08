// RUN: rlx-opt %s -p 'verify-stage{stage=mir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module @control {
  func.func private @branch(%c: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
    %a, %b = mir.if %c -> (tensor<4xf32>, tensor<i32>) {
      %n = mir.unary neg %x : tensor<4xf32>
      %i = mir.constant dense<1> : tensor<i32>
      mir.yield %n, %i : tensor<4xf32>, tensor<i32>
    } else {
      %j = mir.constant dense<2> : tensor<i32>
      mir.yield %x, %j : tensor<4xf32>, tensor<i32>
    } : tensor<i1>
    mir.if %c -> () {
      mir.yield
    } else {
      mir.yield
    } attributes {phase = #mir<phase steady_state>} : tensor<i1>
    func.return %a : tensor<4xf32>
  }
  func.func private @loop(%n: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
    %i, %y = mir.while (%n, %x) {
    ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
      %zero = mir.constant dense<0> : tensor<i32>
      %more = mir.compare gt %k, %zero : tensor<i32> -> tensor<i1>
      mir.yield %more : tensor<i1>
    } do {
    ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
      %one = mir.constant dense<1> : tensor<i32>
      %less = mir.binary sub %k, %one : tensor<i32>
      %odd = mir.cast %k : tensor<i32> -> tensor<i1>
      %w = mir.if %odd -> (tensor<4xf32>) {
        %s = mir.binary add %v, %x : tensor<4xf32>
        mir.yield %s : tensor<4xf32>
      } else {
        mir.yield %v : tensor<4xf32>
      } : tensor<i1>
      mir.yield %less, %w : tensor<i32>, tensor<4xf32>
    } attributes {phase = #mir<phase steady_state>} : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
    func.return %y : tensor<4xf32>
  }
}

// CHECK: builtin.module @control {
// CHECK-NEXT:   func.func private @branch(%c: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
// CHECK-NEXT:     %a, %b = mir.if %c -> (tensor<4xf32>, tensor<i32>) {
// CHECK-NEXT:       %n = mir.unary neg %x : tensor<4xf32>
// CHECK-NEXT:       %i = mir.constant dense<1> : tensor<i32>
// CHECK-NEXT:       mir.yield %n, %i : tensor<4xf32>, tensor<i32>
// CHECK-NEXT:     } else {
// CHECK-NEXT:       %j = mir.constant dense<2> : tensor<i32>
// CHECK-NEXT:       mir.yield %x, %j : tensor<4xf32>, tensor<i32>
// CHECK-NEXT:     } : tensor<i1>
// CHECK-NEXT:     mir.if %c -> () {
// CHECK-NEXT:       mir.yield
// CHECK-NEXT:     } else {
// CHECK-NEXT:       mir.yield
// CHECK-NEXT:     } attributes {phase = #mir<phase steady_state>} : tensor<i1>
// CHECK-NEXT:     func.return %a : tensor<4xf32>
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func private @loop(%n: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
// CHECK-NEXT:     %i, %y = mir.while(%n, %x) {
// CHECK-NEXT:     ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
// CHECK-NEXT:       %zero = mir.constant dense<0> : tensor<i32>
// CHECK-NEXT:       %more = mir.compare gt %k, %zero : tensor<i32> -> tensor<i1>
// CHECK-NEXT:       mir.yield %more : tensor<i1>
// CHECK-NEXT:     } do {
// CHECK-NEXT:     ^bb0(%k_1: tensor<i32>, %v_1: tensor<4xf32>):
// CHECK-NEXT:       %one = mir.constant dense<1> : tensor<i32>
// CHECK-NEXT:       %less = mir.binary sub %k_1, %one : tensor<i32>
// CHECK-NEXT:       %odd = mir.cast %k_1 : tensor<i32> -> tensor<i1>
// CHECK-NEXT:       %w = mir.if %odd -> (tensor<4xf32>) {
// CHECK-NEXT:         %s = mir.binary add %v_1, %x : tensor<4xf32>
// CHECK-NEXT:         mir.yield %s : tensor<4xf32>
// CHECK-NEXT:       } else {
// CHECK-NEXT:         mir.yield %v_1 : tensor<4xf32>
// CHECK-NEXT:       } : tensor<i1>
// CHECK-NEXT:       mir.yield %less, %w : tensor<i32>, tensor<4xf32>
// CHECK-NEXT:     } attributes {phase = #mir<phase steady_state>} : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
// CHECK-NEXT:     func.return %y : tensor<4xf32>
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC: "builtin.module"() <{sym_name = "control"}> ({
// GENERIC-NEXT:   "func.func"() <{sym_name = "branch", function_type = (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>, sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%c: tensor<i1>, %x: tensor<4xf32>):
// GENERIC-NEXT:     %a, %b = "mir.if"(%c) ({
// GENERIC-NEXT:       %n = "mir.unary"(%x) <{kind = #mir<unary_kind neg>}> : (tensor<4xf32>) -> tensor<4xf32>
// GENERIC-NEXT:       %i = "mir.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
// GENERIC-NEXT:       "mir.yield"(%n, %i) : (tensor<4xf32>, tensor<i32>) -> ()
// GENERIC-NEXT:     }, {
// GENERIC-NEXT:       %j = "mir.constant"() <{value = dense<2> : tensor<i32>}> : () -> tensor<i32>
// GENERIC-NEXT:       "mir.yield"(%x, %j) : (tensor<4xf32>, tensor<i32>) -> ()
// GENERIC-NEXT:     }) : (tensor<i1>) -> (tensor<4xf32>, tensor<i32>)
// GENERIC-NEXT:     "mir.if"(%c) ({
// GENERIC-NEXT:       "mir.yield"() : () -> ()
// GENERIC-NEXT:     }, {
// GENERIC-NEXT:       "mir.yield"() : () -> ()
// GENERIC-NEXT:     }) {phase = #mir<phase steady_state>} : (tensor<i1>) -> ()
// GENERIC-NEXT:     "func.return"(%a) : (tensor<4xf32>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "func.func"() <{sym_name = "loop", function_type = (tensor<i32>, tensor<4xf32>) -> tensor<4xf32>, sym_visibility = "private"}> ({
// GENERIC-NEXT:   ^bb0(%n: tensor<i32>, %x: tensor<4xf32>):
// GENERIC-NEXT:     %i, %y = "mir.while"(%n, %x) ({
// GENERIC-NEXT:     ^bb0(%k: tensor<i32>, %v: tensor<4xf32>):
// GENERIC-NEXT:       %zero = "mir.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
// GENERIC-NEXT:       %more = "mir.compare"(%k, %zero) <{kind = #mir<compare_kind gt>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
// GENERIC-NEXT:       "mir.yield"(%more) : (tensor<i1>) -> ()
// GENERIC-NEXT:     }, {
// GENERIC-NEXT:     ^bb0(%k_1: tensor<i32>, %v_1: tensor<4xf32>):
// GENERIC-NEXT:       %one = "mir.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
// GENERIC-NEXT:       %less = "mir.binary"(%k_1, %one) <{kind = #mir<binary_kind sub>}> : (tensor<i32>, tensor<i32>) -> tensor<i32>
// GENERIC-NEXT:       %odd = "mir.cast"(%k_1) : (tensor<i32>) -> tensor<i1>
// GENERIC-NEXT:       %w = "mir.if"(%odd) ({
// GENERIC-NEXT:         %s = "mir.binary"(%v_1, %x) <{kind = #mir<binary_kind add>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// GENERIC-NEXT:         "mir.yield"(%s) : (tensor<4xf32>) -> ()
// GENERIC-NEXT:       }, {
// GENERIC-NEXT:         "mir.yield"(%v_1) : (tensor<4xf32>) -> ()
// GENERIC-NEXT:       }) : (tensor<i1>) -> tensor<4xf32>
// GENERIC-NEXT:       "mir.yield"(%less, %w) : (tensor<i32>, tensor<4xf32>) -> ()
// GENERIC-NEXT:     }) {phase = #mir<phase steady_state>} : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
// GENERIC-NEXT:     "func.return"(%y) : (tensor<4xf32>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) : () -> ()
