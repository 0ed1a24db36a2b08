// RUN: rlx-opt %s -p rlx-default -t llvm | filecheck %s

// A thread that waits for the row of a product asks for the product's weights meanwhile. A product
// of many rows does not wait for memory, and asks for nothing.

builtin.module {
  hir.weight @a "a" : tensor<64x32x!hir.q<q4_0>>
  hir.weight @b "b" : tensor<32x64x!hir.q<q4_0>>
  func.func @main(%x: tensor<1x32xf32> {rlx.name = "x"}, %many: tensor<9x32xf32> {rlx.name = "many"})
      -> (tensor<1x32xf32> {rlx.name = "y"}, tensor<9x64xf32> {rlx.name = "z"}) {
    %a = hir.load_weight @a : tensor<64x32x!hir.q<q4_0>>
    %b = hir.load_weight @b : tensor<32x64x!hir.q<q4_0>>
    %h = hir.linear %x, %a : tensor<1x32xf32>, tensor<64x32x!hir.q<q4_0>> -> tensor<1x64xf32>
    %y = hir.linear %h, %b : tensor<1x64xf32>, tensor<32x64x!hir.q<q4_0>> -> tensor<1x32xf32>
    %z = hir.linear %many, %a : tensor<9x32xf32>, tensor<64x32x!hir.q<q4_0>> -> tensor<9x64xf32>
    func.return %y, %z : tensor<1x32xf32>, tensor<9x64xf32>
  }
}

// CHECK: define internal void @k_matmul.ahead(
// CHECK: call void @llvm.prefetch
// CHECK: define internal void @k_matmul_1.ahead(
// CHECK-NOT: @k_matmul_2.ahead(

// CHECK-LABEL: define void @rlx_step(
// CHECK: call void @k_matmul(
// CHECK: [[SEEN:%.+]] = call i32 @arrive(
// CHECK: call void @k_matmul_1.ahead(
// CHECK-NEXT: call void @leave(ptr {{%.+}}, i32 [[SEEN]])
// CHECK: call void @k_matmul_1(
// CHECK: call void @k_matmul_2(
