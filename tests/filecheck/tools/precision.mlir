// RUN: rlx-opt %s -p rlx-default | filecheck %s --check-prefix=LIR
// RUN: rlx-opt %s -p rlx-default -t 'llvm{cpu=x86-64-v4}' | filecheck %s --check-prefix=WIDE
// RUN: rlx-opt %s -p rlx-default -t 'llvm{cpu=haswell}' | filecheck %s --check-prefix=AVX2

// A module that asks for fast functions does so down to LLVM IR, which has them for f32 alone.

// LIR: builtin.module attributes {rlx.precision = "fast"}
builtin.module attributes {rlx.precision = "fast"} {
  func.func @main(%x: tensor<64xf32> {rlx.name = "x"}, %w: tensor<64xf64> {rlx.name = "w"})
      -> (tensor<64xf32> {rlx.name = "y"}, tensor<64xf64> {rlx.name = "z"}) {
    %y = mir.unary rsqrt %x : tensor<64xf32>
    %z = mir.unary rsqrt %w : tensor<64xf64>
    func.return %y, %z : tensor<64xf32>, tensor<64xf64>
  }
}

// WIDE: call <16 x float> @llvm.x86.avx512.rsqrt14.ps.512(
// WIDE: call <16 x double> @llvm.sqrt.v16f64(
// AVX2: call <8 x float> @llvm.x86.avx.rsqrt.ps.256(
// AVX2: call <16 x double> @llvm.sqrt.v16f64(
