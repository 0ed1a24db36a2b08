// RUN: rlx-opt %s -p simplify-algebra | filecheck %s

// The magnitude of -x is not x where there is no sign; a sum of copies wraps as a product does.
func.func @f(%x: tensor<4xui8>) -> (tensor<4xui8>, tensor<4xui8>, tensor<4xui8>, tensor<4xui8>) {
  %n = mir.unary neg %x : tensor<4xui8>
  %a = mir.unary abs %n : tensor<4xui8>
  %w = mir.broadcast %x : tensor<4xui8> -> tensor<200x4xui8>
  %s = mir.reduce sum %w axes [0] : tensor<200x4xui8> -> tensor<4xui8>
  %eight = mir.constant dense<8> : tensor<4xui8>
  %d = mir.binary div %x, %eight : tensor<4xui8>
  %m = mir.binary mod %x, %eight : tensor<4xui8>
  func.return %a, %s, %d, %m : tensor<4xui8>, tensor<4xui8>, tensor<4xui8>, tensor<4xui8>
}
// CHECK-LABEL: func.func @f(
// CHECK-NEXT:  %n = mir.unary neg %x : tensor<4xui8>
// CHECK-NEXT:  %a = mir.unary abs %n : tensor<4xui8>
// CHECK-NEXT:  %s = mir.constant dense<200> : tensor<4xui8>
// CHECK-NEXT:  %s_1 = mir.binary mul %x, %s : tensor<4xui8>
// CHECK-NEXT:  %d = mir.constant dense<3> : tensor<4xui8>
// CHECK-NEXT:  %d_1 = mir.binary shr %x, %d : tensor<4xui8>
// CHECK-NEXT:  %m = mir.constant dense<7> : tensor<4xui8>
// CHECK-NEXT:  %m_1 = mir.binary and %x, %m : tensor<4xui8>
// CHECK-NEXT:  func.return %a, %s_1, %d_1, %m_1 : tensor<4xui8>, tensor<4xui8>, tensor<4xui8>, tensor<4xui8>

// A cast keeps what the type in the middle has, with or without a sign.
func.func @casts(%x: tensor<4xui8>, %y: tensor<4xi8>) -> (tensor<4xf32>, tensor<4xi64>, tensor<4xi64>, tensor<4xui8>) {
  %a = mir.cast %x : tensor<4xui8> -> tensor<4xi16>
  %b = mir.cast %a : tensor<4xi16> -> tensor<4xf32>
  %c = mir.cast %x : tensor<4xui8> -> tensor<4xi8>
  %d = mir.cast %c : tensor<4xi8> -> tensor<4xi64>
  %e = mir.cast %y : tensor<4xi8> -> tensor<4xui32>
  %f = mir.cast %e : tensor<4xui32> -> tensor<4xi64>
  %g = mir.cast %e : tensor<4xui32> -> tensor<4xui8>
  func.return %b, %d, %f, %g : tensor<4xf32>, tensor<4xi64>, tensor<4xi64>, tensor<4xui8>
}
// CHECK-LABEL: func.func @casts(
// CHECK-NEXT:  %b = mir.cast %x : tensor<4xui8> -> tensor<4xf32>
// CHECK-NEXT:  %c = mir.cast %x : tensor<4xui8> -> tensor<4xi8>
// CHECK-NEXT:  %d = mir.cast %c : tensor<4xi8> -> tensor<4xi64>
// CHECK-NEXT:  %e = mir.cast %y : tensor<4xi8> -> tensor<4xui32>
// CHECK-NEXT:  %f = mir.cast %e : tensor<4xui32> -> tensor<4xi64>
// CHECK-NEXT:  %g = mir.cast %y : tensor<4xi8> -> tensor<4xui8>
// CHECK-NEXT:  func.return %b, %d, %f, %g : tensor<4xf32>, tensor<4xi64>, tensor<4xi64>, tensor<4xui8>
