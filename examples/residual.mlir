// One layer in miniature, called twice: y = x + W norm(x).
builtin.module @residual attributes {rlx.dims = #hir.dim_table<rows = 1 to 64>} {
  hir.weight @norm "layer.{layer}.norm" : tensor<64xf32>
  hir.weight @w "layer.{layer}.w" : tensor<64x64x!hir.q<q8_0>>
  func.func private @layer(%x: tensor<?x64xf32, #hir.dims<rows, _>>) -> tensor<?x64xf32, #hir.dims<rows, _>> {
    %gain = hir.load_weight @norm : tensor<64xf32>
    %h = hir.rms_norm %x, %gain eps 1.0e-5 : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64xf32>
    %w = hir.load_weight @w : tensor<64x64x!hir.q<q8_0>>
    %y = hir.linear %h, %w : tensor<?x64xf32, #hir.dims<rows, _>>, tensor<64x64x!hir.q<q8_0>> -> tensor<?x64xf32, #hir.dims<rows, _>>
    %sum = mir.binary add %x, %y : tensor<?x64xf32, #hir.dims<rows, _>>
    func.return %sum : tensor<?x64xf32, #hir.dims<rows, _>>
  }
  func.func @main(%x: tensor<?x64xf32, #hir.dims<rows, _>> {rlx.name = "x"}) -> (tensor<?x64xf32, #hir.dims<rows, _>> {rlx.name = "y"}) {
    %silu = mir.unary silu %x : tensor<?x64xf32, #hir.dims<rows, _>>
    %y = hir.repeat @layer(%silu) layers 0 to 2 : (tensor<?x64xf32, #hir.dims<rows, _>>) -> tensor<?x64xf32, #hir.dims<rows, _>>
    func.return %y : tensor<?x64xf32, #hir.dims<rows, _>>
  }
}
