// RUN: rlx-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Branches
// CHECK: :[[# @LINE + 2]]:3: error: mir.if: expected a condition of the type tensor<i1>, got tensor<4xf32>
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  mir.if %x -> () {
    mir.yield
  } else {
    mir.yield
  } : tensor<4xf32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.if: expected a condition of the type tensor<i1>, got tensor<i32>
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  mir.if %i -> () {
    mir.yield
  } else {
    mir.yield
  } : tensor<i32>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.if: expected the else region to yield ([4] f32), got ()
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
    mir.yield %x : tensor<4xf32>
  } else {
    mir.yield
  } : tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.if: expected the then region to yield ([4] f32), got ([] i32)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
    mir.yield %i : tensor<i32>
  } else {
    mir.yield %x : tensor<4xf32>
  } : tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: Expected 'else'
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
    mir.yield %x : tensor<4xf32>
  } : tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.if: expected the then region to have the arguments (), got ([4] f32)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } else {
    mir.yield %x : tensor<4xf32>
  } : tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 3]]:5: error: 'func.return' expects parent op 'func.func'
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
    func.return
  } else {
    mir.yield %x : tensor<4xf32>
  } : tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: Region 'then' at position 0 expected a single block, but got 0 blocks
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
  } else {
    mir.yield %x : tensor<4xf32>
  } : tensor<i1>
  func.return
}

// -----

// CHECK: :[[# @LINE + 6]]:5: error: mir.yield uses %z, which is not defined there
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.if %c -> (tensor<4xf32>) {
    %z = mir.unary neg %x : tensor<4xf32>
    mir.yield %z : tensor<4xf32>
  } else {
    mir.yield %z : tensor<4xf32>
  } : tensor<i1>
  func.return
}

// -----

// Loops
// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected results of the types that are carried, ([4] f32), got ([] i32)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<i32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the condition to yield one tensor<i1>, got ()
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the condition to yield one tensor<i1>, got ([] i1, [] i1)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c, %c : tensor<i1>, tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected a condition of the type tensor<i1>, got tensor<4xf32>
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected a condition of the type tensor<i1>, got tensor<i32>
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %i : tensor<i32>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the body to yield ([4] f32), got ()
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the body to yield ([4] f32), got ([] i32)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %i : tensor<i32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the condition to have the arguments ([4] f32), got ([] i32)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<i32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the body to have the arguments ([4] f32), got ([4] f32, [4] f32)
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 2]]:3: error: mir.while: expected the condition to have the arguments ([4] f32), got ()
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
    mir.yield %c : tensor<i1>
  } do {
    mir.yield
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 4]]:5: error: 'func.return' expects parent op 'func.func'
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    func.return
  } do {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 7]]:5: error: 'func.return' expects parent op 'func.func'
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    func.return
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}

// -----

// CHECK: :[[# @LINE + 7]]:5: error: mir.unary uses %y before its definition by mir.while
func.func @f(%c: tensor<i1>, %x: tensor<4xf32>, %i: tensor<i32>) {
  %y = mir.while (%x) {
  ^bb0(%a: tensor<4xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%a: tensor<4xf32>):
    %z = mir.unary neg %y : tensor<4xf32>
    mir.yield %z : tensor<4xf32>
  } : (tensor<4xf32>) -> (tensor<4xf32>)
  func.return
}
