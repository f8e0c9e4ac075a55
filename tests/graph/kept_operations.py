"""Operations with a gradient that the table has no gradient of: what they read is kept, and why that is meant so."""

from __future__ import annotations

# (names, reason)
KEPT: tuple[tuple[str, str], ...] = (
    (
        "BandedTriangularSolve Cholesky Digamma Eig LogMatrixDeterminant MatrixDeterminant MatrixInverse "
        "MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Ndtri Polygamma Qr "
        "SelfAdjointEigV2 Svd TridiagonalMatMul TridiagonalSolve Zeta",
        "inverses, decompositions, poles: an error of any size may come of a small one",
    ),
    (
        "Acos Acosh Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 "
        "BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc Cosh Dawsn Expint FresnelCos "
        "FresnelSin Igamma Igammac Lgamma NextAfter Sinh Spence TruncateDiv Xlog1py Xlogy",
        "functions of statistics and physics: no layer of Keras holds a large tensor for one of them",
    ),
    (
        "EluGrad FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 InvGrad LeakyReluGrad "
        "AvgPool3DGrad AvgPoolGrad MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad "
        "MirrorPadGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad "
        "SqrtGrad StridedSliceGrad TanhGrad QuantizeAndDequantizeV4Grad",
        "gradients: a gradient of a gradient reads what plain training holds",
    ),
    (
        "AccumulateNV2 BatchNormWithGlobalNormalization BatchToSpace BiasAddV1 Concat FusedBatchNorm "
        "FusedBatchNormV2 Gather MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagV2 MatrixSetDiag "
        "MatrixSetDiagV2 MaxPoolGradV2 MaxPoolV2 Reverse SpaceToBatch TopK XlaEinsum",
        "older or other forms of operations, which TensorFlow's own functions and Keras do not make",
    ),
    (
        "Case CompositeTensorVariantFromComponents EagerPyFunc Enter Exit If Merge NextIteration "
        "OptionalFromValue RefEnter RefExit RefIdentity RefMerge RefNextIteration RefSwitch "
        "StatelessCase StatelessIf StatelessWhile Switch TensorArrayConcat TensorArrayConcatV2 "
        "TensorArrayConcatV3 TensorArrayGather TensorArrayGatherV2 TensorArrayGatherV3 TensorArrayRead "
        "TensorArrayReadV2 TensorArrayReadV3 TensorArrayScatter TensorArrayScatterV2 "
        "TensorArrayScatterV3 TensorArraySplit TensorArraySplitV2 TensorArraySplitV3 TensorArrayWrite "
        "TensorArrayWriteV2 TensorArrayWriteV3 TensorListFromTensor TensorListPushBack TensorListScatter "
        "TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit While",
        "loops, branches and lists keep what they hold in lists of their own (graph/control_flow.py)",
    ),
    (
        "BlockLSTM BlockLSTMV2 CTCLoss CTCLossV2 CudnnRNN CudnnRNNV2 CudnnRNNV3 IsotonicRegression",
        "one operation of many steps, with held tensors of its own",
    ),
    (
        "DenseToCSRSparseMatrix RaggedFillEmptyRows RaggedGather RaggedTensorToSparse "
        "RaggedTensorToTensor RaggedTensorToVariant SparseAdd SparseDenseCwiseAdd SparseDenseCwiseDiv "
        "SparseDenseCwiseMul SparseFillEmptyRows SparseMatMul SparseMatrixAdd SparseMatrixMatMul "
        "SparseMatrixMul SparseReduceSum SparseReorder SparseSegmentMean "
        "SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments "
        "SparseSegmentSum SparseSegmentSumWithNumSegments SparseSlice SparseSoftmax SparseSparseMaximum "
        "SparseSparseMinimum SparseTensorDenseAdd SparseTensorDenseMatMul SparseTensorToCSRSparseMatrix "
        "SparseToDense",
        "sparse and ragged tensors are small already, and of other forms than a stream's",
    ),
    (
        "CropAndResize Dilation2D ExtractImagePatches ExtractVolumePatches FractionalAvgPool "
        "FractionalMaxPool ImageProjectiveTransformV2 ImageProjectiveTransformV3 LRN RGBToHSV "
        "ScaleAndTranslate",
        "of images: made while a batch is prepared, where there is no gradient, or of a few old networks",
    ),
    (
        "ApproxTopK Cross Cumprod CumulativeLogsumexp Diag DiagPart DynamicPartition DynamicStitch "
        "EuclideanNorm MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 NthElement ParallelDynamicStitch "
        "Prod ReverseSequence ScatterNd ScatterNdNonAliasingAdd SegmentMax SegmentMean SegmentMin "
        "SegmentProd SegmentSum TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub "
        "TensorScatterUpdate TensorStridedSliceUpdate TopKV2 UnsortedSegmentMax UnsortedSegmentMin "
        "UnsortedSegmentProd UnsortedSegmentSum",
        "places are integers, which are kept, or chosen values are compared with all others; products meet a zero",
    ),
    (
        "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel "
        "QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 "
        "ClipByValue",
        "their gradient compares the input with limits that are tensors: the table's bits have constant ones",
    ),
    (
        "RandomGamma StatelessParameterizedTruncatedNormal StatelessRandomGammaV2 StatelessRandomGammaV3",
        "the gradient of a sample reads the sample, which is not drawn again",
    ),
    (
        "Complex ConjugateTranspose RFFT RFFT2D",
        "no codec takes complex numbers",
    ),
    (
        "AllToAll CheckNumerics CheckNumericsV2 CollectivePermute CopyToMesh CopyToMeshGrad "
        "CrossReplicaSum DebugGradientIdentity DebugGradientRefIdentity DebugIdentityV2 "
        "NcclAllReduce NcclBroadcast NcclReduce PlaceholderWithDefault PreventGradient Print Relayout "
        "RelayoutLike TPUEmbeddingActivations XlaClusterOutput XlaSharding XlaSpmdFullToShardShape "
        "XlaSpmdShardToFullShape _EagerConst",
        "checks, communication and marks of compilers: they hand values on, and must run once",
    ),
)
