// RUN: rlx-opt %s -p 'verify-stage{stage=mir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

func.func @f(%x: tensor<3xui8>, %y: tensor<4xui32>) {
  %a = mir.constant dense<[0, 200, 255]> : tensor<3xui8>
  %b = mir.constant dense<4294967295> : tensor<4xui32>
  %s = mir.binary shr %x, %a : tensor<3xui8>
  %c = mir.compare lt %y, %b : tensor<4xui32> -> tensor<4xi1>
  %d = mir.cast %s : tensor<3xui8> -> tensor<3xf32>
  %m = mir.reduce max %y axes [0] : tensor<4xui32> -> tensor<ui32>
  %i = mir.iota axis 0 : tensor<4xui8>
  func.return
}

// CHECK:      builtin.module {
// CHECK-NEXT:   func.func @f(%x: tensor<3xui8>, %y: tensor<4xui32>) {
// CHECK-NEXT:     %a = mir.constant dense<[0, 200, 255]> : tensor<3xui8>
// CHECK-NEXT:     %b = mir.constant dense<4294967295> : tensor<4xui32>
// CHECK-NEXT:     %s = mir.binary shr %x, %a : tensor<3xui8>
// CHECK-NEXT:     %c = mir.compare lt %y, %b : tensor<4xui32> -> tensor<4xi1>
// CHECK-NEXT:     %d = mir.cast %s : tensor<3xui8> -> tensor<3xf32>
// CHECK-NEXT:     %m = mir.reduce max %y axes [0] : tensor<4xui32> -> tensor<ui32>
// CHECK-NEXT:     %i = mir.iota axis 0 : tensor<4xui8>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC:      "builtin.module"() ({
// GENERIC-NEXT:   "func.func"() <{sym_name = "f", function_type = (tensor<3xui8>, tensor<4xui32>) -> ()}> ({
// GENERIC-NEXT:   ^bb0(%x: tensor<3xui8>, %y: tensor<4xui32>):
// GENERIC-NEXT:     %a = "mir.constant"() <{value = dense<[0, 200, 255]> : tensor<3xui8>}> : () -> tensor<3xui8>
// GENERIC-NEXT:     %b = "mir.constant"() <{value = dense<4294967295> : tensor<4xui32>}> : () -> tensor<4xui32>
// GENERIC-NEXT:     %s = "mir.binary"(%x, %a) <{kind = #mir<binary_kind shr>}> : (tensor<3xui8>, tensor<3xui8>) -> tensor<3xui8>
// GENERIC-NEXT:     %c = "mir.compare"(%y, %b) <{kind = #mir<compare_kind lt>}> : (tensor<4xui32>, tensor<4xui32>) -> tensor<4xi1>
// GENERIC-NEXT:     %d = "mir.cast"(%s) : (tensor<3xui8>) -> tensor<3xf32>
// GENERIC-NEXT:     %m = "mir.reduce"(%y) <{kind = #mir<reduce_kind max>, axes = array<i64: 0>}> : (tensor<4xui32>) -> tensor<ui32>
// GENERIC-NEXT:     %i = "mir.iota"() <{axis = 0 : i64}> : () -> tensor<4xui8>
// GENERIC-NEXT:     "func.return"() : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) : () -> ()
