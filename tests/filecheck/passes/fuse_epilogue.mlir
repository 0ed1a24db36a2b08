// RUN: rlx-opt %s -p fuse-epilogue | filecheck %s

builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 512, past = 0 to 2048, keys = past + seq>} {
  hir.state @keys keys head_dim 16 : tensor<2560x32xf32>
  hir.state @values values head_dim 16 : tensor<2560x32xf32>
  hir.state @narrow_keys keys head_dim 16 : tensor<2560x32xbf16>

  // rope, then append, then the residual of another matmul; the view of the state is a result.
  func.func private @layer(%x: tensor<?x32xf32, #hir.dims<seq, _>>, %w: tensor<32x32x!hir.packed<f32>>, %cos: tensor<2560x16xf32>, %sin: tensor<2560x16xf32>) -> tensor<?x32xf32, #hir.dims<seq, _>> {
    %k = mir.matmul %x, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>> -> tensor<?x32xf32, #hir.dims<seq, _>>
    %r = mir.rope %k, %cos, %sin start "past" head_dim 16 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<2560x16xf32>, tensor<2560x16xf32>
    %state = mir.load_state @keys : tensor<2560x32xf32>
    %s = mir.append %r to %state keys head_dim 16 start "past" : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %a = mir.attention %x, %s, %s head_dim 16 scale 0.25 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<?x32xf32, #hir.dims<keys, _>>
    %o = mir.matmul %a, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>> -> tensor<?x32xf32, #hir.dims<seq, _>>
    %y = mir.binary add %x, %o : tensor<?x32xf32, #hir.dims<seq, _>>
    func.return %y : tensor<?x32xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func private @layer(
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %s = mir.kernel -> (tensor<?x32xf32, #hir.dims<keys, _>>) {
  // CHECK-NEXT:     %k = mir.matmul %x, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>> -> tensor<?x32xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:     %r = mir.rope %k, %cos, %sin start "past" head_dim 16 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<2560x16xf32>, tensor<2560x16xf32>
  // CHECK-NEXT:     %s_1 = mir.append %r to %state keys head_dim 16 start "past" : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     mir.yield %s_1 : tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %a = mir.attention %x, %s, %s head_dim 16 scale 0.25 : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %y = mir.kernel -> (tensor<?x32xf32, #hir.dims<seq, _>>) {
  // CHECK-NEXT:     %o = mir.matmul %a, %w : tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>> -> tensor<?x32xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:     %y_1 = mir.binary add %x, %o : tensor<?x32xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:     mir.yield %y_1 : tensor<?x32xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %y : tensor<?x32xf32, #hir.dims<seq, _>>
  func.func @main(%x: tensor<?x32xf32, #hir.dims<seq, _>>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<?x32xf32, #hir.dims<seq, _>> {
    %cos, %sin = mir.rope_table base 10000.0 : tensor<2560x16xf32>, tensor<2560x16xf32>
    %y = mir.repeat @layer(%x, %w, %cos, %sin) layers 0 to 2 : (tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>>, tensor<2560x16xf32>, tensor<2560x16xf32>) -> tensor<?x32xf32, #hir.dims<seq, _>>
    func.return %y : tensor<?x32xf32, #hir.dims<seq, _>>
  }
  // CHECK-LABEL: func.func @main(
  // CHECK-NEXT:   %cos, %sin = mir.rope_table base 10000.0 : tensor<2560x16xf32>, tensor<2560x16xf32>
  // CHECK-NEXT:   %y = mir.repeat @layer(%x, %w, %cos, %sin) layers 0 to 2 : (tensor<?x32xf32, #hir.dims<seq, _>>, tensor<32x32x!hir.packed<f32>>, tensor<2560x16xf32>, tensor<2560x16xf32>) -> tensor<?x32xf32, #hir.dims<seq, _>>
  // CHECK-NEXT:   func.return %y : tensor<?x32xf32, #hir.dims<seq, _>>

  // Both operands come from one kernel.
  func.func private @swiglu(%x: tensor<4x32xf32>, %w: tensor<48x32x!hir.packed<f32>>) -> tensor<4x48xf32> {
    %gate, %up = mir.kernel -> (tensor<4x48xf32>, tensor<4x48xf32>) {
      %g = mir.matmul %x, %w : tensor<4x32xf32>, tensor<48x32x!hir.packed<f32>> -> tensor<4x48xf32>
      %u = mir.matmul %x, %w : tensor<4x32xf32>, tensor<48x32x!hir.packed<f32>> -> tensor<4x48xf32>
      mir.yield %g, %u : tensor<4x48xf32>, tensor<4x48xf32>
    }
    %silu = mir.unary silu %gate : tensor<4x48xf32>
    %p = mir.binary mul %silu, %up : tensor<4x48xf32>
    func.return %p : tensor<4x48xf32>
  }
  // CHECK-LABEL: func.func private @swiglu(
  // CHECK-NEXT:   %p = mir.kernel -> (tensor<4x48xf32>) {
  // CHECK-NEXT:     %g = mir.matmul %x, %w : tensor<4x32xf32>, tensor<48x32x!hir.packed<f32>> -> tensor<4x48xf32>
  // CHECK-NEXT:     %u = mir.matmul %x, %w : tensor<4x32xf32>, tensor<48x32x!hir.packed<f32>> -> tensor<4x48xf32>
  // CHECK-NEXT:     %silu = mir.unary silu %g : tensor<4x48xf32>
  // CHECK-NEXT:     %p_1 = mir.binary mul %silu, %u : tensor<4x48xf32>
  // CHECK-NEXT:     mir.yield %p_1 : tensor<4x48xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %p : tensor<4x48xf32>

  // A value that others use is yielded beside the fused one.
  func.func private @used_twice(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %e = mir.unary exp %y : tensor<4x32xf32>
    func.return %y, %e : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @used_twice(
  // CHECK-NEXT:   %y, %e = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
  // CHECK-NEXT:     %y_1 = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %e_1 = mir.unary exp %y_1 : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %y_1, %e_1 : tensor<4x32xf32>, tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %y, %e : tensor<4x32xf32>, tensor<4x32xf32>

  // Of two matmuls the later one takes the sum; what the earlier gives is a residual.
  func.func private @two_matmuls(%x: tensor<4x32xf32>, %z: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<4x32xf32> {
    %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %b = mir.matmul %z, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.binary add %b, %a : tensor<4x32xf32>
    func.return %s : tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @two_matmuls(
  // CHECK-NEXT:   %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:   %s = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:     %b = mir.matmul %z, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s_1 = mir.binary add %b, %a : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %s_1 : tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %s : tensor<4x32xf32>

  // Refused: %s needs an operation that needs the matmul and that can't be fused.
  func.func private @cycle(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %g: tensor<32xf32>) -> tensor<4x32xf32> {
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %n = mir.rms_norm %y, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
    %s = mir.binary add %y, %n : tensor<4x32xf32>
    func.return %s : tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @cycle(
  // CHECK-NEXT:   %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:   %n = mir.rms_norm %y, %g eps 1.0e-05 : tensor<4x32xf32>, tensor<32xf32>
  // CHECK-NEXT:   %s = mir.binary add %y, %n : tensor<4x32xf32>
  // CHECK-NEXT:   func.return %s : tensor<4x32xf32>

  // Refused: heads that are not whole panels of 16 features.
  func.func private @heads(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %cos: tensor<64x8xf32>, %sin: tensor<64x8xf32>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %r = mir.rope %y, %cos, %sin start "past" head_dim 8 : tensor<4x32xf32>, tensor<64x8xf32>, tensor<64x8xf32>
    %t = mir.rope %y, %cos, %sin start "past" head_dim 16 : tensor<4x32xf32>, tensor<64x8xf32>, tensor<64x8xf32>
    func.return %r, %t : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @heads(
  // CHECK-NEXT:   %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:   %r = mir.rope %y, %cos, %sin start "past" head_dim 8 : tensor<4x32xf32>, tensor<64x8xf32>, tensor<64x8xf32>
  // CHECK-NEXT:   %t = mir.rope %y, %cos, %sin start "past" head_dim 16 : tensor<4x32xf32>, tensor<64x8xf32>, tensor<64x8xf32>
  // CHECK-NEXT:   func.return %r, %t : tensor<4x32xf32>, tensor<4x32xf32>

  // Reads and writes of state keep their order. %t must not pass the attention, nor may %s go down
  // to %t for the same reason; %e is free to move up.
  func.func private @effects(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %view: tensor<?x32xf32, #hir.dims<keys, _>>) -> (tensor<4x32xf32>, tensor<4x32xf32>) {
    %state = mir.load_state @keys : tensor<2560x32xf32>
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %a = mir.attention %y, %view, %view head_dim 16 scale 0.25 : tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
    %e = mir.unary exp %y : tensor<4x32xf32>
    %other = mir.load_state @values : tensor<2560x32xf32>
    %t = mir.append %y to %other values head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    func.return %a, %e : tensor<4x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @effects(
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %y, %e = mir.kernel -> (tensor<4x32xf32>, tensor<4x32xf32>) {
  // CHECK-NEXT:     %y_1 = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s = mir.append %y_1 to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     %e_1 = mir.unary exp %y_1 : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %y_1, %e_1 : tensor<4x32xf32>, tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %a = mir.attention %y, %view, %view head_dim 16 scale 0.25 : tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %other = mir.load_state @values : tensor<2560x32xf32>
  // CHECK-NEXT:   %t = mir.append %y to %other values head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   func.return %a, %e : tensor<4x32xf32>, tensor<4x32xf32>

  // What a kernel appends may be kept in fewer bits.
  func.func @narrow(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<?x32xbf16, #hir.dims<keys, _>> {
    %state = mir.load_state @narrow_keys : tensor<2560x32xbf16>
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xbf16> -> tensor<?x32xbf16, #hir.dims<keys, _>>
    func.return %s : tensor<?x32xbf16, #hir.dims<keys, _>>
  }
  // CHECK-LABEL: func.func @narrow(
  // CHECK-NEXT:   %state = mir.load_state @narrow_keys : tensor<2560x32xbf16>
  // CHECK-NEXT:   %s = mir.kernel -> (tensor<?x32xbf16, #hir.dims<keys, _>>) {
  // CHECK-NEXT:     %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s_1 = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xbf16> -> tensor<?x32xbf16, #hir.dims<keys, _>>
  // CHECK-NEXT:     mir.yield %s_1 : tensor<?x32xbf16, #hir.dims<keys, _>>

  // Refused: a second append to one state, which threads could do in either order.
  func.func private @two_appends(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<?x32xf32, #hir.dims<keys, _>> {
    %state = mir.load_state @keys : tensor<2560x32xf32>
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %e = mir.unary neg %y : tensor<4x32xf32>
    %again = mir.load_state @keys : tensor<2560x32xf32>
    %t = mir.append %e to %again keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    func.return %t : tensor<?x32xf32, #hir.dims<keys, _>>
  }
  // CHECK-LABEL: func.func private @two_appends(
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %e = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:     %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     %e_1 = mir.unary neg %y : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %e_1 : tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %again = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %t = mir.append %e to %again keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   func.return %t : tensor<?x32xf32, #hir.dims<keys, _>>

  // The append may not move up past the attention, but the matmul can come down to it.
  func.func private @sinks(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %view: tensor<?x32xf32, #hir.dims<keys, _>>) -> (tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>) {
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %a = mir.attention %x, %view, %view head_dim 16 scale 0.25 : tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
    %state = mir.load_state @keys : tensor<2560x32xf32>
    %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    func.return %a, %s : tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
  }
  // CHECK-LABEL: func.func private @sinks(
  // CHECK-NEXT:   %a = mir.attention %x, %view, %view head_dim 16 scale 0.25 : tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %s = mir.kernel -> (tensor<?x32xf32, #hir.dims<keys, _>>) {
  // CHECK-NEXT:     %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s_1 = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     mir.yield %s_1 : tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   func.return %a, %s : tensor<4x32xf32>, tensor<?x32xf32, #hir.dims<keys, _>>

  // %u reads the state after the append, so the kernel stands where the matmul stood.
  func.func private @rises(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> (tensor<2560x32xf32>, tensor<4x32xf32>) {
    %state = mir.load_state @keys : tensor<2560x32xf32>
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %u = mir.unary exp %state : tensor<2560x32xf32>
    %e = mir.unary exp %y : tensor<4x32xf32>
    func.return %u, %e : tensor<2560x32xf32>, tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @rises(
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %e = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:     %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     %e_1 = mir.unary exp %y : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %e_1 : tensor<4x32xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %u = mir.unary exp %state : tensor<2560x32xf32>
  // CHECK-NEXT:   func.return %u, %e : tensor<2560x32xf32>, tensor<4x32xf32>

  // Refused: what the append gives is the state and not the kernel's rows.
  func.func private @reads_back(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>) -> tensor<?x32xf32, #hir.dims<keys, _>> {
    %state = mir.load_state @keys : tensor<2560x32xf32>
    %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %s = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
    %e = mir.unary exp %s : tensor<?x32xf32, #hir.dims<keys, _>>
    func.return %e : tensor<?x32xf32, #hir.dims<keys, _>>
  }
  // CHECK-LABEL: func.func private @reads_back(
  // CHECK-NEXT:   %state = mir.load_state @keys : tensor<2560x32xf32>
  // CHECK-NEXT:   %s = mir.kernel -> (tensor<?x32xf32, #hir.dims<keys, _>>) {
  // CHECK-NEXT:     %y = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
  // CHECK-NEXT:     %s_1 = mir.append %y to %state keys head_dim 16 start "past" : tensor<4x32xf32>, tensor<2560x32xf32> -> tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:     mir.yield %s_1 : tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %e = mir.unary exp %s : tensor<?x32xf32, #hir.dims<keys, _>>
  // CHECK-NEXT:   func.return %e : tensor<?x32xf32, #hir.dims<keys, _>>

  // Refused: no matmul gives the rows.
  func.func private @alone(%x: tensor<4x32xf32>) -> tensor<4x32xf32> {
    %e = mir.unary exp %x : tensor<4x32xf32>
    func.return %e : tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func private @alone(
  // CHECK-NEXT:   %e = mir.unary exp %x : tensor<4x32xf32>
  // CHECK-NEXT:   func.return %e : tensor<4x32xf32>

  // What may follow mir.dot: a bias and a number, of which the kernel gets copies, and maps.
  func.func private @dot(%x: tensor<4x32xf32>, %w: tensor<32x16xf32>, %v: tensor<16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) {
    %b = mir.broadcast %v : tensor<16xf32> -> tensor<4x16xf32>
    %c = mir.constant dense<2.0> : tensor<4x16xf32>
    %d = mir.dot %x, %w : tensor<4x32xf32>, tensor<32x16xf32> -> tensor<4x16xf32>
    %s = mir.binary add %d, %b : tensor<4x16xf32>
    %g = mir.unary gelu %s : tensor<4x16xf32>
    %m = mir.binary mul %c, %g : tensor<4x16xf32>
    %o = mir.unary neg %b : tensor<4x16xf32>
    func.return %m, %o : tensor<4x16xf32>, tensor<4x16xf32>
  }
  // CHECK-LABEL: func.func private @dot(
  // CHECK-NEXT:   %b = mir.broadcast %v : tensor<16xf32> -> tensor<4x16xf32>
  // CHECK-NEXT:   %m = mir.kernel -> (tensor<4x16xf32>) {
  // CHECK-NEXT:     %d = mir.dot %x, %w : tensor<4x32xf32>, tensor<32x16xf32> -> tensor<4x16xf32>
  // CHECK-NEXT:     %b_1 = mir.broadcast %v : tensor<16xf32> -> tensor<4x16xf32>
  // CHECK-NEXT:     %s = mir.binary add %d, %b_1 : tensor<4x16xf32>
  // CHECK-NEXT:     %g = mir.unary gelu %s : tensor<4x16xf32>
  // CHECK-NEXT:     %c = mir.constant dense<2.000000e+00> : tensor<4x16xf32>
  // CHECK-NEXT:     %m_1 = mir.binary mul %c, %g : tensor<4x16xf32>
  // CHECK-NEXT:     mir.yield %m_1 : tensor<4x16xf32>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %o = mir.unary neg %b : tensor<4x16xf32>
  // CHECK-NEXT:   func.return %m, %o : tensor<4x16xf32>, tensor<4x16xf32>

  // In a branch and in a loop, not across their edges: %a stays where it is computed once.
  func.func @control(%x: tensor<4x32xf32>, %w: tensor<32x32x!hir.packed<f32>>, %if: tensor<i1>) -> tensor<4x32xf32> {
    %a = mir.matmul %x, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
    %r = mir.if %if -> (tensor<4x32xf32>) {
      %e = mir.unary exp %a : tensor<4x32xf32>
      mir.yield %e : tensor<4x32xf32>
    } else {
      %y = mir.matmul %a, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %s = mir.binary add %a, %y : tensor<4x32xf32>
      mir.yield %s : tensor<4x32xf32>
    } : tensor<i1>
    %l = mir.while (%r) {
    ^bb0(%v: tensor<4x32xf32>):
      mir.yield %if : tensor<i1>
    } do {
    ^bb0(%v: tensor<4x32xf32>):
      %y = mir.matmul %v, %w : tensor<4x32xf32>, tensor<32x32x!hir.packed<f32>> -> tensor<4x32xf32>
      %s = mir.binary add %v, %y : tensor<4x32xf32>
      mir.yield %s : tensor<4x32xf32>
    } : (tensor<4x32xf32>) -> (tensor<4x32xf32>)
    func.return %l : tensor<4x32xf32>
  }
  // CHECK-LABEL: func.func @control(
  // CHECK-NEXT:   %a = mir.matmul %x, %w
  // CHECK-NEXT:   %r = mir.if %if -> (tensor<4x32xf32>) {
  // CHECK-NEXT:     %e = mir.unary exp %a : tensor<4x32xf32>
  // CHECK-NEXT:     mir.yield %e : tensor<4x32xf32>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     %s = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:       %y = mir.matmul %a, %w
  // CHECK-NEXT:       %s_1 = mir.binary add %a, %y : tensor<4x32xf32>
  // CHECK:        } do {
  // CHECK-NEXT:   ^bb0(%v_1: tensor<4x32xf32>):
  // CHECK-NEXT:     %s_2 = mir.kernel -> (tensor<4x32xf32>) {
  // CHECK-NEXT:       %y_1 = mir.matmul %v_1, %w
  // CHECK-NEXT:       %s_3 = mir.binary add %v_1, %y_1 : tensor<4x32xf32>
}
