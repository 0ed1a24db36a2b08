// RUN: rlx-opt %s --split-input-file --verify-diagnostics -p verify-ssa | filecheck %s

// A use before the definition
// CHECK: :[[# @LINE + 2]]:5: error: mir.unary uses %b before its definition by mir.unary ({{.*}}:[[# @LINE + 3]]:5)
func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.unary exp %b : tensor<4x64xf32>
    %b = mir.unary exp %x : tensor<4x64xf32>
    func.return
  }

// -----

// A value of an inner region
// CHECK: :[[# @LINE + 6]]:5: error: mir.unary uses %a, which is not defined there
func.func @f(%x: tensor<4x64xf32>) {
    %k = mir.kernel -> (tensor<4x64xf32>) {
      %a = mir.unary exp %x : tensor<4x64xf32>
      mir.yield %a : tensor<4x64xf32>
    }
    %b = mir.unary exp %a : tensor<4x64xf32>
    func.return
  }

// -----

// A value that nothing defines
// CHECK: :[[# @LINE + 2]]:5: error: mir.unary uses %b, which is not defined there
func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.unary exp %b : tensor<4x64xf32>
    func.return
  }

// -----

// A value from outside a function, which is isolated
// CHECK: :[[# @LINE + 9]]:3: error: mir.unary uses %y from outside func.func, which is isolated from above
  func.func @f(%x: tensor<4x64xf32>) {
    func.return
  }
%y = mir.kernel -> (tensor<4x64xf32>) {
  %cos, %sin = mir.rope_table base 1.0e+05 : tensor<4x64xf32>, tensor<4x64xf32>
  mir.yield %cos : tensor<4x64xf32>
}
func.func @g() {
  %z = mir.unary exp %y : tensor<4x64xf32>
  func.return
}

// -----

// An operation that uses its own result
// CHECK: :[[# @LINE + 2]]:5: error: mir.unary uses %a before its definition by mir.unary ({{.*}}:[[# @LINE + 2]]:5)
func.func @f(%x: tensor<4x64xf32>) {
    %a = mir.unary exp %a : tensor<4x64xf32>
    func.return
  }

// -----

// More than one block
// CHECK: :[[# @LINE + 1]]:1: error: func.func: expected a region of one block, got several
func.func @f() {
  func.return
^bb1:
  func.return
}
