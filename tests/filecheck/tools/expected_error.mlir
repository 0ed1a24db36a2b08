// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p plan-lir | filecheck %s

// Parts whose errors are expected leave nothing; the others are processed as ever.

// CHECK: {{/}}/ -----
// CHECK-NEXT: {{/}}/ -----
// CHECK-NEXT: {{/}}/ -----
// CHECK-NEXT: {{/}}/ -----
// CHECK-NEXT: builtin.module {
// CHECK: lir.program @main
// CHECK: {{/}}/ -----
// CHECK-NEXT: {{.+}}: error: pass 'plan-lir': plan-lir: expected a function @main

hir.weight @w "w" : tensor<8x33x!hir.q<q8_0>> // expected-error {{whole q8_0 blocks}}

// -----

// expected-error @+2 {{dimension 'a' uses 'b', which is not declared before it}}

builtin.module attributes {rlx.dims = #hir.dim_table<a = b + b>} {}

// -----

func.func @main() {
  // expected-error@below {{mir.unary uses %x, which is not defined there}}
  %a = mir.unary exp %x : tensor<4xf32>
  func.return
}

// -----

// expected-error @unknown {{pass 'plan-lir': plan-lir: expected a function @main}}
func.func @other() {
  func.return
}

// -----

func.func @main(%x: tensor<4xf32> {rlx.name = "x"}) -> (tensor<4xf32> {rlx.name = "y"}) {
  %y = mir.unary neg %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

func.func @other() {
  func.return
}
