// RUN: rlx-opt %s -p 'select-peaks-only-outputs{report=true}' --split-input-file | filecheck %s --check-prefixes=ALL,CPU
// RUN: rlx-opt %s -p 'select-peaks-only-outputs{target=metal report=true}' --split-input-file | filecheck %s --check-prefixes=ALL,METAL
// RUN: rlx-opt %s -p 'select-peaks-only-outputs{target=cuda report=true}' --split-input-file | filecheck %s --check-prefixes=ALL,CUDA
// RUN: rlx-opt %s -p 'select-peaks-only-outputs{target=wgpu report=true}' --split-input-file | filecheck %s --check-prefixes=ALL,WGPU
// RUN: rlx-opt %s -p 'select-peaks-only-outputs{target=metal},dce' --split-input-file | filecheck %s --check-prefix=OFF

// The spectrum alone: the program of the contract's example, with its profiles and its scores.

// CPU: {rule = "select-peaks-only-outputs", function = "main", op = "output spectrum", kernel = "signal.welch_peaks %p", fused = false, launches = [3 : i64, 4 : i64], bytes = [184549376 : i64, 219152384 : i64], syncs = [0 : i64, 1 : i64], host_bytes = [33554432 : i64, 1048576 : i64], score_ns = {{.*}} : f64, reason = "what a CPU computes is in the host's memory"}
// METAL: fused = true, launches = [3 : i64, 4 : i64], bytes = [184549376 : i64, 219152384 : i64], syncs = [0 : i64, 1 : i64], host_bytes = [33554432 : i64, 1048576 : i64], score_ns = 30327340.96{{.*}} : f64, reason = ""}
// CUDA: fused = false, {{.*}} score_ns = -14415136.64{{.*}} : f64, reason = "the target's gate asks for at least 5000 ns"}
// WGPU: fused = false, {{.*}} score_ns = -24566383.68{{.*}} : f64, reason = "the target's gate asks for at least 10000 ns"}
// ALL: func.func @main
// CPU-SAME: -> (tensor<16384x512xf32> {rlx.name = "spectrum"}) {
// METAL-SAME: -> (tensor<8192x32xf32> {rlx.name = "spectrum"}) {
// CUDA-SAME: -> (tensor<16384x512xf32> {rlx.name = "spectrum"}) {
// WGPU-SAME: -> (tensor<16384x512xf32> {rlx.name = "spectrum"}) {
// METAL: func.return %p : tensor<8192x32xf32>
// WGPU: func.return %s : tensor<16384x512xf32>
// OFF-NOT: rlx.fusion_report
builtin.module {
  func.func @main(%x: tensor<16384x256xf32> {rlx.name = "x"}, %w: tensor<16384x256xf32> {rlx.name = "window"}, %zero: tensor<16384x256xf32> {rlx.name = "zero"}) -> (tensor<16384x512xf32> {rlx.name = "spectrum"}) {
    %windowed = mir.binary mul %x, %w : tensor<16384x256xf32>
    %complex = mir.concat axis 1 (%windowed, %zero) : (tensor<16384x256xf32>, tensor<16384x256xf32>) -> tensor<16384x512xf32>
    %s = signal.fft forward %complex : tensor<16384x512xf32>
    %p = signal.welch_peaks %s k 16 segments 2 : tensor<16384x512xf32> -> tensor<8192x32xf32>
    func.return %s : tensor<16384x512xf32>
  }
}

// -----

// Thirty-two times as much to read back pays on CUDA too, still not on wgpu. The sizes are the bounds
// of symbolic ones, and the spectrum is given under another shape.

// CUDA: fused = true, {{.*}} score_ns = 4397627{{.*}} reason = ""}
// WGPU: fused = false
// ALL: func.func @main
// CPU-SAME: -> (tensor<?x512x1xf32, #hir.dims<rows, _, _>> {rlx.name = "spectrum"}) {
// METAL-SAME: -> (tensor<?x32xf32, #hir.dims<b, _>> {rlx.name = "spectrum"}) {
// CUDA-SAME: -> (tensor<?x32xf32, #hir.dims<b, _>> {rlx.name = "spectrum"}) {
// WGPU-SAME: -> (tensor<?x512x1xf32, #hir.dims<rows, _, _>> {rlx.name = "spectrum"}) {
builtin.module attributes {rlx.dims = #hir.dim_table<b = 1 to 262144, two = 2, rows = b * two>} {
  func.func @main(%x: tensor<?x512xf32, #hir.dims<rows, _>> {rlx.name = "x"}) -> (tensor<?x512x1xf32, #hir.dims<rows, _, _>> {rlx.name = "spectrum"}) {
    %s = signal.fft forward %x : tensor<?x512xf32, #hir.dims<rows, _>>
    %t = mir.reshape %s : tensor<?x512xf32, #hir.dims<rows, _>> -> tensor<?x512x1xf32, #hir.dims<rows, _, _>>
    %p = signal.welch_peaks %s k 16 segments 2 : tensor<?x512xf32, #hir.dims<rows, _>> -> tensor<?x32xf32, #hir.dims<b, _>>
    func.return %t : tensor<?x512x1xf32, #hir.dims<rows, _, _>>
  }
}

// -----

// Both: the spectrum goes wherever it is not the CPU, however little it saves. Other outputs stay,
// what makes them too.

// CPU: fused = false, launches = [3 : i64, 3 : i64]
// WGPU: fused = true, launches = [3 : i64, 3 : i64], bytes = [{{.*}}], syncs = [1 : i64, 1 : i64], host_bytes = [576 : i64, 320 : i64], score_ns = 6.4{{.*}} : f64, reason = ""}
// ALL: func.func @main
// CPU-SAME: -> (tensor<2x32xf32> {rlx.name = "spectrum"}, tensor<2x32xf32> {rlx.name = "other"}, tensor<2x8xf32> {rlx.name = "peaks"}) {
// METAL-SAME: -> (tensor<2x32xf32> {rlx.name = "other"}, tensor<2x8xf32> {rlx.name = "peaks"}) {
// CUDA-SAME: -> (tensor<2x32xf32> {rlx.name = "other"}, tensor<2x8xf32> {rlx.name = "peaks"}) {
// WGPU-SAME: -> (tensor<2x32xf32> {rlx.name = "other"}, tensor<2x8xf32> {rlx.name = "peaks"}) {
// WGPU: func.return %o, %p : tensor<2x32xf32>, tensor<2x8xf32>
builtin.module {
  func.func @main(%x: tensor<2x32xf32> {rlx.name = "x"}) -> (tensor<2x32xf32> {rlx.name = "spectrum"}, tensor<2x32xf32> {rlx.name = "other"}, tensor<2x8xf32> {rlx.name = "peaks"}) {
    %s = signal.fft forward %x : tensor<2x32xf32>
    %o = mir.unary neg %s : tensor<2x32xf32>
    %p = signal.welch_peaks %s k 4 segments 1 : tensor<2x32xf32> -> tensor<2x8xf32>
    func.return %s, %o, %p : tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x8xf32>
  }
}

// -----

// Peaks of one spectrum twice: those that are an output decide, where the gate would take the first.

// ALL: func.func @main
// CPU: func.return %s, %q : tensor<16384x512xf32>, tensor<16384x4xf32>
// METAL: func.return %q : tensor<16384x4xf32>
// WGPU: func.return %q : tensor<16384x4xf32>
builtin.module {
  func.func @main(%x: tensor<16384x512xf32> {rlx.name = "x"}) -> (tensor<16384x512xf32> {rlx.name = "spectrum"}, tensor<16384x4xf32> {rlx.name = "peaks"}) {
    %s = signal.fft forward %x : tensor<16384x512xf32>
    %p = signal.welch_peaks %s k 4 segments 1 : tensor<16384x512xf32> -> tensor<16384x8xf32>
    %q = signal.welch_peaks %s k 2 segments 1 : tensor<16384x512xf32> -> tensor<16384x4xf32>
    func.return %s, %q : tensor<16384x512xf32>, tensor<16384x4xf32>
  }
}

// -----

// Nothing to decide: peaks alone, and a spectrum of which there are none.

// ALL: rlx.fusion_report = []
// ALL: func.return %p, %t : tensor<2x8xf32>, tensor<2x32xf32>
builtin.module {
  func.func @main(%x: tensor<2x32xf32> {rlx.name = "x"}) -> (tensor<2x8xf32> {rlx.name = "peaks"}, tensor<2x32xf32> {rlx.name = "t"}) {
    %s = signal.fft forward %x : tensor<2x32xf32>
    %t = signal.fft inverse %x : tensor<2x32xf32>
    %p = signal.welch_peaks %s k 4 segments 1 : tensor<2x32xf32> -> tensor<2x8xf32>
    func.return %p, %t : tensor<2x8xf32>, tensor<2x32xf32>
  }
}
