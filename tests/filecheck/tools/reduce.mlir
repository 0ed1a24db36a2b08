// RUN: rlx-opt %s --reduce -p cse,legalize-hir,verify-stage{stage=hir},dce | filecheck %s

// What stays: the pass that lowers, the one that complains, and one operation to complain of.

// CHECK: {{/}}/ RUN: rlx-opt %s -p 'legalize-hir,verify-stage{stage="hir"}'
// CHECK-NEXT: builtin.module @two {
// CHECK-NEXT:   hir.weight @w "w" : tensor<32x32xf32>
// CHECK-NEXT:   func.func @main() {
// CHECK-NEXT:     %w = hir.load_weight @w : tensor<32x32xf32>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT: }

builtin.module @two {
  hir.weight @w "w" : tensor<32x32xf32>
  func.func @main(%x: tensor<4x32xf32> {rlx.name = "x"}) -> (tensor<4x32xf32> {rlx.name = "y"}) {
    %w = hir.load_weight @w : tensor<32x32xf32>
    %a = mir.unary exp %x : tensor<4x32xf32>
    %l = hir.linear %a, %w : tensor<4x32xf32>, tensor<32x32xf32> -> tensor<4x32xf32>
    %y = mir.binary add %x, %l : tensor<4x32xf32>
    func.return %y : tensor<4x32xf32>
  }
}
