"""
The operation kinds of the contract: the vocabulary in which its cost and phase rules speak.

A value is the original's own name. A member is that name in upper case, with underscores between
words (what the field writes as one word, such as matmul or swiglu, stays one word). Every op of
the IR carries its kind, so that the rules still answer after the op was lowered.
"""

from enum import StrEnum


class OpKind(StrEnum):
    """What an operation computes, whatever its dialect."""

    # Leaves.
    INPUT = "Input"
    PARAM = "Param"
    CONSTANT = "Constant"

    # Element-wise.
    ACTIVATION = "Activation"
    CAST = "Cast"
    BINARY = "Binary"
    COMPARE = "Compare"
    WHERE = "Where"
    ELEMENTWISE_REGION = "ElementwiseRegion"

    # Linear algebra.
    MATMUL = "MatMul"
    DOT_GENERAL = "DotGeneral"
    DENSE_SOLVE = "DenseSolve"
    BATCHED_DENSE_SOLVE = "BatchedDenseSolve"
    LORA_MATMUL = "LoraMatMul"
    GROUPED_MATMUL = "GroupedMatMul"

    # Norms.
    LAYER_NORM = "LayerNorm"
    RMS_NORM = "RmsNorm"
    GROUP_NORM = "GroupNorm"
    LAYER_NORM2D = "LayerNorm2d"

    # Attention.
    ATTENTION = "Attention"
    ROPE = "Rope"
    AXIAL_ROPE2D = "AxialRope2d"

    # Shape.
    RESHAPE = "Reshape"
    TRANSPOSE = "Transpose"
    NARROW = "Narrow"
    CONCAT = "Concat"
    EXPAND = "Expand"
    GATHER = "Gather"
    RESIZE_NEAREST2X = "ResizeNearest2x"

    # Reductions and indices.
    REDUCE = "Reduce"
    SOFTMAX = "Softmax"
    CUMSUM = "Cumsum"
    TOP_K = "TopK"
    SCATTER_ADD = "ScatterAdd"
    SAMPLE = "Sample"

    # Convolution.
    CONV = "Conv"
    CONV_TRANSPOSE2D = "ConvTranspose2d"
    POOL = "Pool"

    # State space.
    SELECTIVE_SCAN = "SelectiveScan"
    GATED_DELTA_NET = "GatedDeltaNet"

    # Quantised.
    QUANTIZE = "Quantize"
    DEQUANTIZE = "Dequantize"
    FAKE_QUANTIZE = "FakeQuantize"
    FAKE_QUANTIZE_LSQ = "FakeQuantizeLSQ"
    DEQUANT_MATMUL = "DequantMatMul"
    DEQUANT_GROUPED_MATMUL = "DequantGroupedMatMul"
    DEQUANT_MOE_WEIGHTS = "DequantMoEWeights"
    QMATMUL = "QMatMul"
    QCONV2D = "QConv2d"

    # Fused.
    FUSED_MATMUL_BIAS_ACT = "FusedMatMulBiasAct"
    FUSED_SWIGLU = "FusedSwiGLU"
    FUSED_RESIDUAL_LN = "FusedResidualLN"
    FUSED_RESIDUAL_RMS_NORM = "FusedResidualRmsNorm"
    FUSED_ATTENTION_BLOCK = "FusedAttentionBlock"
    FUSED_TRANSFORMER_LAYER = "FusedTransformerLayer"

    # Control.
    IF = "If"
    WHILE = "While"
    SCAN = "Scan"
    SCAN_BACKWARD = "ScanBackward"
    SCAN_BACKWARD_XS = "ScanBackwardXs"
    CUSTOM_FN = "CustomFn"
    CUSTOM = "Custom"

    # Signal and splats.
    FFT = "Fft"
    COMPLEX_NORM_SQ = "ComplexNormSq"
    CONJUGATE = "Conjugate"
    GAUSSIAN_SPLAT_RENDER = "GaussianSplatRender"
    GAUSSIAN_SPLAT_PREPARE = "GaussianSplatPrepare"
    GAUSSIAN_SPLAT_RASTERIZE = "GaussianSplatRasterize"

    # Backward.
    RELU_BACKWARD = "ReluBackward"
    ACTIVATION_BACKWARD = "ActivationBackward"
    FAKE_QUANTIZE_BACKWARD = "FakeQuantizeBackward"
    FAKE_QUANTIZE_LSQ_BACKWARD_X = "FakeQuantizeLSQBackwardX"
    FAKE_QUANTIZE_LSQ_BACKWARD_SCALE = "FakeQuantizeLSQBackwardScale"
    MAX_POOL2D_BACKWARD = "MaxPool2dBackward"
    CONV2D_BACKWARD_INPUT = "Conv2dBackwardInput"
    CONV2D_BACKWARD_WEIGHT = "Conv2dBackwardWeight"
    SOFTMAX_CROSS_ENTROPY_WITH_LOGITS = "SoftmaxCrossEntropyWithLogits"
    SOFTMAX_CROSS_ENTROPY_WITH_LOGITS_BACKWARD = "SoftmaxCrossEntropyWithLogitsBackward"
    ATTENTION_BACKWARD = "AttentionBackward"
    LAYER_NORM_BACKWARD_INPUT = "LayerNormBackwardInput"
    LAYER_NORM_BACKWARD_GAMMA = "LayerNormBackwardGamma"
    RMS_NORM_BACKWARD_INPUT = "RmsNormBackwardInput"
    RMS_NORM_BACKWARD_GAMMA = "RmsNormBackwardGamma"
    RMS_NORM_BACKWARD_BETA = "RmsNormBackwardBeta"
    ROPE_BACKWARD = "RopeBackward"
    GROUP_NORM_BACKWARD_INPUT = "GroupNormBackwardInput"
    GROUP_NORM_BACKWARD_GAMMA = "GroupNormBackwardGamma"
    GROUP_NORM_BACKWARD_BETA = "GroupNormBackwardBeta"
    CUMSUM_BACKWARD = "CumsumBackward"
    GATHER_BACKWARD = "GatherBackward"
    COMPLEX_NORM_SQ_BACKWARD = "ComplexNormSqBackward"
    GAUSSIAN_SPLAT_RENDER_BACKWARD = "GaussianSplatRenderBackward"

    # Later versions: element-wise, shape and index.
    STOP_GRADIENT = "StopGradient"
    FMA = "Fma"
    TRANSFORM_REGION = "TransformRegion"
    BATCH_ELEMENTWISE_REGION = "BatchElementwiseRegion"
    REVERSE = "Reverse"
    PAD = "Pad"
    SLICE = "Slice"
    CLAMP = "Clamp"
    TILE = "Tile"
    TRILU = "Trilu"
    SORT = "Sort"
    ARG_SORT = "ArgSort"
    ARG_MAX = "ArgMax"
    ARG_MIN = "ArgMin"
    CUM_PROD = "CumProd"
    CUM_MAX = "CumMax"
    SCATTER_ND = "ScatterNd"
    SCATTER_ELEMENTS = "ScatterElements"
    GATHER_ND = "GatherNd"
    GATHER_ELEMENTS = "GatherElements"
    RNG_NORMAL = "RngNormal"
    RNG_UNIFORM = "RngUniform"

    # Later versions: linear algebra.
    CHOLESKY = "Cholesky"
    TRIANGULAR_SOLVE = "TriangularSolve"
    DET = "Det"
    LOG_DET = "LogDet"
    SVD = "Svd"
    QR = "Qr"
    EIGH = "Eigh"
    BATCHED_EIGH = "BatchedEigh"
    EIGH_BACKWARD = "EighBackward"
    SYNTH_MATMUL = "SynthMatMul"

    # Later versions: vision and convolution.
    BATCH_NORM_INFERENCE = "BatchNormInference"
    INTERPOLATE3D = "Interpolate3d"
    IM2_COL = "Im2Col"
    CONV3D = "Conv3d"
    CONV_TRANSPOSE3D = "ConvTranspose3d"
    PARTITIONED_CONV = "PartitionedConv"

    # Later versions: scaled quantisation.
    SCALED_MATMUL = "ScaledMatMul"
    SCALED_QUANTIZE = "ScaledQuantize"
    SCALED_QUANT_SCALE = "ScaledQuantScale"
    SCALED_DEQUANTIZE = "ScaledDequantize"
    SCALED_GROUPED_MATMUL = "ScaledGroupedMatMul"

    # Later versions: sequence models, losses and fusions.
    LSTM = "Lstm"
    GRU = "Gru"
    RNN = "Rnn"
    MAMBA2 = "Mamba2"
    SOFTMAX_CROSS_ENTROPY = "SoftmaxCrossEntropy"
    FUSED_CONV_BIAS_ACT = "FusedConvBiasAct"
    FUSED_MATMUL_RESIDUAL = "FusedMatMulResidual"
    ATTENTION_BACKWARD_ALL = "AttentionBackwardAll"
    ADA_LAYER_NORM = "AdaLayerNorm"
    ADA_LAYER_NORM_BACKWARD = "AdaLayerNormBackward"
    GATED_RESIDUAL = "GatedResidual"
    GATED_RESIDUAL_BACKWARD = "GatedResidualBackward"

    # Later versions: signal.
    FFT_BUTTERFLY_STAGE = "FftButterflyStage"
    LOG_MEL = "LogMel"
    LOG_MEL_BACKWARD = "LogMelBackward"
    WELCH_PEAKS = "WelchPeaks"

    # HIR blocks that have no single MIR kind.
    LINEAR = "Linear"
    LINEAR_FUSED = "LinearFused"
    SHARED_LINEAR_PAIR = "SharedLinearPair"
    SWIGLU = "SwiGLU"
    RESIDUAL_RMS_NORM = "ResidualRmsNorm"
    DEPTHWISE_CONV1D_CAUSAL = "DepthwiseConv1dCausal"
    LLAMA_DECODER_BLOCK = "LlamaDecoderBlock"
    QWEN35_MTP_HEAD = "Qwen35MtpHead"
