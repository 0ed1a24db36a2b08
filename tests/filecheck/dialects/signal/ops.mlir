// RUN: rlx-opt %s -p 'verify-stage{stage=hir},verify-stage{stage=mir}' | rlx-opt | filecheck %s
// RUN: RLX_ROUNDTRIP | filecheck %s
// RUN: RLX_GENERIC_ROUNDTRIP | filecheck %s --check-prefix=GENERIC
// RUN: rlx-opt %s -p derive-phases,plan-lir,verify-stage{stage=lir} | filecheck %s --check-prefix=LIR

builtin.module @signal attributes {rlx.dims = #hir.dim_table<batch = 1 to 16, two = 2, rows = batch * two>} {
  func.func @main(%x: tensor<?x64xf32, #hir.dims<rows, _>> {rlx.name = "x"}, %d: tensor<6xf64> {rlx.name = "d"}, %f: tensor<8x17xf32> {rlx.name = "f"}) -> (tensor<?x8xf32, #hir.dims<batch, _>> {rlx.name = "p"}, tensor<6xf64> {rlx.name = "u"}, tensor<?x8xf32, #hir.dims<rows, _>> {rlx.name = "m"}) {
    %s = signal.fft forward %x : tensor<?x64xf32, #hir.dims<rows, _>>
    %t = signal.fft inverse %d norm forward : tensor<6xf64>
    %u = signal.fft forward %t norm ortho : tensor<6xf64> {note = "kept"}
    %p = signal.welch_peaks %s k 4 segments 2 : tensor<?x64xf32, #hir.dims<rows, _>> -> tensor<?x8xf32, #hir.dims<batch, _>>
    %m = signal.log_mel %s, %f : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<8x17xf32> -> tensor<?x8xf32, #hir.dims<rows, _>>
    func.return %p, %u, %m : tensor<?x8xf32, #hir.dims<batch, _>>, tensor<6xf64>, tensor<?x8xf32, #hir.dims<rows, _>>
  }
}

// CHECK: %s = signal.fft forward %x : tensor<?x64xf32, #hir.dims<rows, _>>
// CHECK-NEXT: %t = signal.fft inverse %d norm forward : tensor<6xf64>
// CHECK-NEXT: %u = signal.fft forward %t norm ortho : tensor<6xf64> {note = "kept"}
// CHECK-NEXT: %p = signal.welch_peaks %s k 4 segments 2 : tensor<?x64xf32, #hir.dims<rows, _>> -> tensor<?x8xf32, #hir.dims<batch, _>>
// CHECK-NEXT: %m = signal.log_mel %s, %f : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<8x17xf32> -> tensor<?x8xf32, #hir.dims<rows, _>>

// GENERIC: "signal.fft"(%x) <{kind = #signal<fft_kind forward>, norm = #signal<fft_norm backward>}>

// LIR: lir.kernel @signal.fft {
// LIR: lir.kernel @signal.welch_peaks {
// LIR: lir.kernel @signal.log_mel {
// LIR: lir.launch @signal.fft steady_state
