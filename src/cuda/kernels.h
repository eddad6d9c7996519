// CUDA kernels of the operators in src/ops/: one launch() per operator, same tensors, same meaning.
// Activations may be fp32, bf16 or fp16 (all of a node's the same); statistics, log-sum-exps,
// losses and parameters' gradients are fp32 or fp64 as the graph says; tables of embeddings and
// parameters of norms are fp32.
#pragma once

#include "cuda/launch.h"
#include "ops/linear.h"

namespace snug {
class Attention;
class AttentionGradient;
class AwaitActivation;
class BinaryCrossEntropy;
class CachedAttention;
class Convert;
class CrossEntropy;
class Dequantize;
class Dropout;
class Embedding;
class EmbeddingGradient;
class FetchActivation;
class FetchGradient;
class EndAttention;
class EndAttentionGradient;
class EndToken;
class EndTokenGradient;
class LayerNorm;
class MeanPool;
class NormAgain;
class NormGradient;
class QuantizedLinear;
class QuantizedLinearInputGradient;
class ResidualNorm;
class Sample;
class SpanLoss;
class SquaredError;
class StoreGradient;
class StowActivation;
class TargetRows;
class TargetRowsGradient;
class VocabularyLoss;
class VocabularyLossGradient;
}  // namespace snug

namespace snug::cuda {

void launch(const ActivationAgain& op, const Launch& call);
void launch(const AdapterGradient& op, const Launch& call);
void launch(const Attention& op, const Launch& call);
void launch(const AttentionGradient& op, const Launch& call);
void launch(const AwaitActivation& op, const Launch& call);
void launch(const BinaryCrossEntropy& op, const Launch& call);
void launch(const CachedAttention& op, const Launch& call);
void launch(const Convert& op, const Launch& call);
void launch(const CrossEntropy& op, const Launch& call);
void launch(const Dequantize& op, const Launch& call);
void launch(const Dropout& op, const Launch& call);
void launch(const Embedding& op, const Launch& call);
void launch(const EmbeddingGradient& op, const Launch& call);
void launch(const FetchActivation& op, const Launch& call);
void launch(const FetchGradient& op, const Launch& call);
void launch(const EndAttention& op, const Launch& call);
void launch(const EndAttentionGradient& op, const Launch& call);
void launch(const EndToken& op, const Launch& call);
void launch(const EndTokenGradient& op, const Launch& call);
void launch(const LayerNorm& op, const Launch& call);
void launch(const Linear& op, const Launch& call);
void launch(const LinearEpilogueGradient& op, const Launch& call);
void launch(const LinearInputGradient& op, const Launch& call);
void launch(const LinearWeightGradient& op, const Launch& call);
void launch(const MeanPool& op, const Launch& call);
void launch(const NormAgain& op, const Launch& call);
void launch(const NormGradient& op, const Launch& call);
void launch(const QuantizedLinear& op, const Launch& call);
void launch(const QuantizedLinearInputGradient& op, const Launch& call);
void launch(const ResidualNorm& op, const Launch& call);
void launch(const Sample& op, const Launch& call);
void launch(const SpanLoss& op, const Launch& call);
void launch(const SquaredError& op, const Launch& call);
void launch(const StoreGradient& op, const Launch& call);
void launch(const StowActivation& op, const Launch& call);
void launch(const TargetRows& op, const Launch& call);
void launch(const TargetRowsGradient& op, const Launch& call);
void launch(const VocabularyLoss& op, const Launch& call);
void launch(const VocabularyLossGradient& op, const Launch& call);

// The launch() of an operator seen through its base.
using LaunchFunction = void (*)(const Op& op, const Launch& call);
LaunchFunction launcher_of(const Op& op);

// ops/linear.h's, on the device.
void add_adapters(const Adapters& adapters, std::span<const Tensor> pairs, const Tensor& y,
                  const Launch& call);

// The activation of a linear layer behind its product: y = activation(pre), elementwise over [rows,
// cols].
void launch_activation(Activation activation, const Tensor& pre, const Tensor& y,
                       const Launch& call);
// y = a form of GELU at y, and slopes = its derivative there.
void launch_gelu_and_slope(Activation form, const Tensor& y, const Tensor& slopes,
                           const Launch& call);

}  // namespace snug::cuda
