// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Whatever a pass would say later: the names in a function's types are checked when it is read.

// CHECK: :[[# @LINE + 1]]:1: error: func.func: dimension 'n' is not declared: rlx.dims declares nothing
func.func @f(%x: tensor<?x4xf32, #hir.dims<n, _>>) {
  func.return
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: func.func: dimension 'n' is not declared: rlx.dims declares nothing
func.func private @declared(tensor<4xf32>) -> tensor<?x4xf32, #hir.dims<n, _>>

// -----

// CHECK: :[[# @LINE + 1]]:1: error: func.func: tensor<3x4xf32, #hir.dims<n, _>>: a name stands for each '?' and '_' for each number
func.func @f(%x: tensor<3x4xf32, #hir.dims<n, _>>) {
  func.return
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: func.func: tensor<?x4xi32, #hir.dims<n>>: expected 2 dimension names, one for each dimension, got 1
func.func @f(%x: tensor<?x4xi32, #hir.dims<n>>) {
  func.return
}

// -----

// CHECK: :[[# @LINE + 1]]:1: error: func.func: tensor<?x4xf32> has a dynamic dimension without a name: add #hir.dims
func.func @f(%x: tensor<?x4xf32>) {
  func.return
}
