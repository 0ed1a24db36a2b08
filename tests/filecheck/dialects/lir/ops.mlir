// RUN: rlx-opt %s | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC

builtin.module @ops attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
  lir.weight @w "blk.{layer}.weight" offset 64 stride 512 layers 2 to 4 source 1 : tensor<8x8x!hir.packed<f32>>
  lir.state @k_cache keys head_dim 4 offset 0 stride 128 layers 2 to 4 : tensor<4x8xf32>
  lir.kernel @pack {
  ^bb0(%a: tensor<8x8xf32>):
    %p = mir.pack %a : tensor<8x8xf32> -> tensor<8x8x!hir.packed<f32>>
    mir.yield %p : tensor<8x8x!hir.packed<f32>>
  }
  lir.kernel @matmul {
  ^bb0(%a: tensor<?x8xf32, #hir.dims<seq, _>>, %b: tensor<8x8x!hir.packed<f32>>):
    %c = mir.matmul %a, %b : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x8x!hir.packed<f32>> -> tensor<?x8xf32, #hir.dims<seq, _>>
    mir.yield %c : tensor<?x8xf32, #hir.dims<seq, _>>
  }
  lir.kernel @constant {
    %cos, %sin = mir.rope_table base 100000.0 : tensor<4x8xf32>, tensor<4x8xf32>
    mir.yield %cos, %sin : tensor<4x8xf32>, tensor<4x8xf32>
  }
  lir.program @main arena 576 lower_bound 512 alignment 64 state 256 weights 1088 fingerprint "0123456789abcdef" {
    %in = lir.input "x" index 0 : tensor<?x8xf32, #hir.dims<seq, _>>
    %out = lir.output "y" index 0 : tensor<?x8xf32, #hir.dims<seq, _>>
    %cos = lir.slot offset 0 size 128 : tensor<4x8xf32>
    %sin = lir.slot offset 128 size 128 : tensor<4x8xf32>
    %scratch = lir.slot offset 512 size 64 zeroed : tensor<64xi8>
    %view = lir.view %cos byte_offset 64 : tensor<4x8xf32> -> tensor<16xf32>
    lir.launch @constant prologue ins() outs(%cos, %sin : tensor<4x8xf32>, tensor<4x8xf32>)
    lir.loop 2 to 4 {
    ^bb0(%layer: index):
      %source = lir.source @w layer %layer : tensor<8x8xf32>
      %packed = lir.ref @w layer %layer : tensor<8x8x!hir.packed<f32>>
      lir.launch @pack prologue ins(%source : tensor<8x8xf32>) outs(%packed : tensor<8x8x!hir.packed<f32>>)
    }
    lir.barrier
    lir.loop 2 to 4 {
    ^bb0(%layer_1: index):
      %k = lir.ref @k_cache layer %layer_1 : tensor<4x8xf32>
      %weight = lir.ref @w layer %layer_1 : tensor<8x8x!hir.packed<f32>>
      lir.launch @matmul steady_state ins(%in, %weight : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x8x!hir.packed<f32>>) outs(%out : tensor<?x8xf32, #hir.dims<seq, _>>) scratch(%scratch : tensor<64xi8>)
    }
  }
}

// CHECK: builtin.module @ops attributes {rlx.dims = #hir.dim_table<seq = 1 to 4>} {
// CHECK-NEXT:   lir.weight @w "blk.{layer}.weight" offset 64 stride 512 layers 2 to 4 source 1 : tensor<8x8x!hir.packed<f32>>
// CHECK-NEXT:   lir.state @k_cache keys head_dim 4 offset 0 stride 128 layers 2 to 4 : tensor<4x8xf32>
// CHECK-NEXT:   lir.kernel @pack {
// CHECK-NEXT:   ^bb0(%a: tensor<8x8xf32>):
// CHECK-NEXT:     %p = mir.pack %a : tensor<8x8xf32> -> tensor<8x8x!hir.packed<f32>>
// CHECK-NEXT:     mir.yield %p : tensor<8x8x!hir.packed<f32>>
// CHECK-NEXT:   }
// CHECK-NEXT:   lir.kernel @matmul {
// CHECK-NEXT:   ^bb0(%a: tensor<?x8xf32, #hir.dims<seq, _>>, %b: tensor<8x8x!hir.packed<f32>>):
// CHECK-NEXT:     %c = mir.matmul %a, %b : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x8x!hir.packed<f32>> -> tensor<?x8xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     mir.yield %c : tensor<?x8xf32, #hir.dims<seq, _>>
// CHECK-NEXT:   }
// CHECK-NEXT:   lir.kernel @constant {
// CHECK-NEXT:     %cos, %sin = mir.rope_table base 100000.0 : tensor<4x8xf32>, tensor<4x8xf32>
// CHECK-NEXT:     mir.yield %cos, %sin : tensor<4x8xf32>, tensor<4x8xf32>
// CHECK-NEXT:   }
// CHECK-NEXT:   lir.program @main arena 576 lower_bound 512 alignment 64 state 256 weights 1088 fingerprint "0123456789abcdef" {
// CHECK-NEXT:     %in = lir.input "x" index 0 : tensor<?x8xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %out = lir.output "y" index 0 : tensor<?x8xf32, #hir.dims<seq, _>>
// CHECK-NEXT:     %cos = lir.slot offset 0 size 128 : tensor<4x8xf32>
// CHECK-NEXT:     %sin = lir.slot offset 128 size 128 : tensor<4x8xf32>
// CHECK-NEXT:     %scratch = lir.slot offset 512 size 64 zeroed : tensor<64xi8>
// CHECK-NEXT:     %view = lir.view %cos byte_offset 64 : tensor<4x8xf32> -> tensor<16xf32>
// CHECK-NEXT:     lir.launch @constant prologue ins() outs(%cos, %sin : tensor<4x8xf32>, tensor<4x8xf32>)
// CHECK-NEXT:     lir.loop 2 to 4 {
// CHECK-NEXT:     ^bb0(%layer: index):
// CHECK-NEXT:       %source = lir.source @w layer %layer : tensor<8x8xf32>
// CHECK-NEXT:       %packed = lir.ref @w layer %layer : tensor<8x8x!hir.packed<f32>>
// CHECK-NEXT:       lir.launch @pack prologue ins(%source : tensor<8x8xf32>) outs(%packed : tensor<8x8x!hir.packed<f32>>)
// CHECK-NEXT:     }
// CHECK-NEXT:     lir.barrier
// CHECK-NEXT:     lir.loop 2 to 4 {
// CHECK-NEXT:     ^bb0(%layer_1: index):
// CHECK-NEXT:       %k = lir.ref @k_cache layer %layer_1 : tensor<4x8xf32>
// CHECK-NEXT:       %weight = lir.ref @w layer %layer_1 : tensor<8x8x!hir.packed<f32>>
// CHECK-NEXT:       lir.launch @matmul steady_state ins(%in, %weight : tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x8x!hir.packed<f32>>) outs(%out : tensor<?x8xf32, #hir.dims<seq, _>>) scratch(%scratch : tensor<64xi8>)
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT: }

// GENERIC: "builtin.module"() <{sym_name = "ops"}> ({
// GENERIC-NEXT:   "lir.weight"() <{sym_name = "w", key = "blk.{layer}.weight", offset = 64 : i64, stride = 512 : i64, first = 2 : i64, last = 4 : i64, source = 1 : i64, type = tensor<8x8x!hir.packed<f32>>}> : () -> ()
// GENERIC-NEXT:   "lir.state"() <{sym_name = "k_cache", role = #hir<state_role keys>, head_dim = 4 : i64, offset = 0 : i64, stride = 128 : i64, first = 2 : i64, last = 4 : i64, type = tensor<4x8xf32>}> : () -> ()
// GENERIC-NEXT:   "lir.kernel"() <{sym_name = "pack"}> ({
// GENERIC-NEXT:   ^bb0(%a: tensor<8x8xf32>):
// GENERIC-NEXT:     %p = "mir.pack"(%a) : (tensor<8x8xf32>) -> tensor<8x8x!hir.packed<f32>>
// GENERIC-NEXT:     "mir.yield"(%p) : (tensor<8x8x!hir.packed<f32>>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "lir.kernel"() <{sym_name = "matmul"}> ({
// GENERIC-NEXT:   ^bb0(%a: tensor<?x8xf32, #hir.dims<seq, _>>, %b: tensor<8x8x!hir.packed<f32>>):
// GENERIC-NEXT:     %c = "mir.matmul"(%a, %b) : (tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x8x!hir.packed<f32>>) -> tensor<?x8xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     "mir.yield"(%c) : (tensor<?x8xf32, #hir.dims<seq, _>>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "lir.kernel"() <{sym_name = "constant"}> ({
// GENERIC-NEXT:     %cos, %sin = "mir.rope_table"() <{base = 1.000000e+05 : f64}> : () -> (tensor<4x8xf32>, tensor<4x8xf32>)
// GENERIC-NEXT:     "mir.yield"(%cos, %sin) : (tensor<4x8xf32>, tensor<4x8xf32>) -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT:   "lir.program"() <{sym_name = "main", arena_size = 576 : i64, lower_bound = 512 : i64, alignment = 64 : i64, state_size = 256 : i64, weights_size = 1088 : i64, fingerprint = "0123456789abcdef"}> ({
// GENERIC-NEXT:     %in = "lir.input"() <{io_name = "x", index = 0 : i64}> : () -> tensor<?x8xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %out = "lir.output"() <{io_name = "y", index = 0 : i64}> : () -> tensor<?x8xf32, #hir.dims<seq, _>>
// GENERIC-NEXT:     %cos = "lir.slot"() <{offset = 0 : i64, size = 128 : i64}> : () -> tensor<4x8xf32>
// GENERIC-NEXT:     %sin = "lir.slot"() <{offset = 128 : i64, size = 128 : i64}> : () -> tensor<4x8xf32>
// GENERIC-NEXT:     %scratch = "lir.slot"() <{offset = 512 : i64, size = 64 : i64, zeroed}> : () -> tensor<64xi8>
// GENERIC-NEXT:     %view = "lir.view"(%cos) <{byte_offset = 64 : i64}> : (tensor<4x8xf32>) -> tensor<16xf32>
// GENERIC-NEXT:     "lir.launch"(%cos, %sin) <{kernel = @constant, phase = #mir<phase prologue>, operandSegmentSizes = array<i32: 0, 2, 0>}> : (tensor<4x8xf32>, tensor<4x8xf32>) -> ()
// GENERIC-NEXT:     "lir.loop"() <{first = 2 : i64, last = 4 : i64}> ({
// GENERIC-NEXT:     ^bb0(%layer: index):
// GENERIC-NEXT:       %source = "lir.source"(%layer) <{symbol = @w}> : (index) -> tensor<8x8xf32>
// GENERIC-NEXT:       %packed = "lir.ref"(%layer) <{symbol = @w}> : (index) -> tensor<8x8x!hir.packed<f32>>
// GENERIC-NEXT:       "lir.launch"(%source, %packed) <{kernel = @pack, phase = #mir<phase prologue>, operandSegmentSizes = array<i32: 1, 1, 0>}> : (tensor<8x8xf32>, tensor<8x8x!hir.packed<f32>>) -> ()
// GENERIC-NEXT:     }) : () -> ()
// GENERIC-NEXT:     "lir.barrier"() : () -> ()
// GENERIC-NEXT:     "lir.loop"() <{first = 2 : i64, last = 4 : i64}> ({
// GENERIC-NEXT:     ^bb0(%layer_1: index):
// GENERIC-NEXT:       %k = "lir.ref"(%layer_1) <{symbol = @k_cache}> : (index) -> tensor<4x8xf32>
// GENERIC-NEXT:       %weight = "lir.ref"(%layer_1) <{symbol = @w}> : (index) -> tensor<8x8x!hir.packed<f32>>
// GENERIC-NEXT:       "lir.launch"(%in, %weight, %out, %scratch) <{kernel = @matmul, phase = #mir<phase steady_state>, operandSegmentSizes = array<i32: 2, 1, 1>}> : (tensor<?x8xf32, #hir.dims<seq, _>>, tensor<8x8x!hir.packed<f32>>, tensor<?x8xf32, #hir.dims<seq, _>>, tensor<64xi8>) -> ()
// GENERIC-NEXT:     }) : () -> ()
// GENERIC-NEXT:   }) : () -> ()
// GENERIC-NEXT: }) {rlx.dims = #hir.dim_table<seq = 1 to 4>} : () -> ()
