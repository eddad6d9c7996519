#include "cuda/kernels.h"

#include <typeindex>
#include <unordered_map>

#include "core/error.h"
#include "ops/activation_traffic.h"
#include "ops/attention.h"
#include "ops/binary_cross_entropy.h"
#include "ops/cached_attention.h"
#include "ops/convert.h"
#include "ops/cross_entropy.h"
#include "ops/dequantize.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/end_attention.h"
#include "ops/end_token.h"
#include "ops/gradient_traffic.h"
#include "ops/linear.h"
#include "ops/mean_pool.h"
#include "ops/quantized_linear.h"
#include "ops/residual_norm.h"
#include "ops/sample.h"
#include "ops/span_loss.h"
#include "ops/squared_error.h"
#include "ops/target_rows.h"
#include "ops/vocabulary_loss.h"

namespace snug::cuda {
namespace {

template <class T>
std::pair<const std::type_index, LaunchFunction> entry() {
  return {typeid(T),
          [](const Op& op, const Launch& call) { launch(static_cast<const T&>(op), call); }};
}

}  // namespace

LaunchFunction launcher_of(const Op& op) {
  static const std::unordered_map<std::type_index, LaunchFunction> table = {
      entry<ActivationAgain>(),
      entry<AdapterGradient>(),
      entry<Attention>(),
      entry<AttentionGradient>(),
      entry<AwaitActivation>(),
      entry<BinaryCrossEntropy>(),
      entry<CachedAttention>(),
      entry<Convert>(),
      entry<CrossEntropy>(),
      entry<Dequantize>(),
      entry<Dropout>(),
      entry<Embedding>(),
      entry<EmbeddingGradient>(),
      entry<EndAttention>(),
      entry<EndAttentionGradient>(),
      entry<EndToken>(),
      entry<EndTokenGradient>(),
      entry<FetchActivation>(),
      entry<FetchGradient>(),
      entry<LayerNorm>(),
      entry<Linear>(),
      entry<LinearEpilogueGradient>(),
      entry<LinearInputGradient>(),
      entry<LinearWeightGradient>(),
      entry<MeanPool>(),
      entry<NormAgain>(),
      entry<NormGradient>(),
      entry<QuantizedLinear>(),
      entry<QuantizedLinearInputGradient>(),
      entry<ResidualNorm>(),
      entry<Sample>(),
      entry<SpanLoss>(),
      entry<SquaredError>(),
      entry<StoreGradient>(),
      entry<StowActivation>(),
      entry<TargetRows>(),
      entry<TargetRowsGradient>(),
      entry<VocabularyLoss>(),
      entry<VocabularyLossGradient>(),
  };
  const auto found = table.find(typeid(op));
  SNUG_CHECK(found != table.end());
  return found->second;
}

}  // namespace snug::cuda
