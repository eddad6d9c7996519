#include "cuda/gelu_product.h"

#include "cuda/column_sums.cuh"
#include "cuda/gelu_product.cuh"

namespace snug::cuda {
namespace {

using namespace gelu_kernels;

// Calls f with the type, the form of GELU, and whether the inner dimension runs across the weight's rows.
template <class F>
void with_case(const ProductShape& shape, const F& f) {
  const bool gradient = shape.kind == ProductKind::kInputGradient, out_in = shape.layout == WeightLayout::kOutIn;
  const auto typed = [&]<class T>() {
    const auto formed = [&]<Activation kActivation>() {
      gradient == out_in ? f.template operator()<T, kActivation, 1>() : f.template operator()<T, kActivation, 0>();
    };
    shape.gelu_form == Activation::kGelu ? formed.template operator()<Activation::kGelu>()
                                         : formed.template operator()<Activation::kGeluTanh>();
  };
  shape.dtype == DType::kBF16 ? typed.template operator()<__nv_bfloat16>() : typed.template operator()<__half>();
}

template <class Tile>
int64_t piece_count(int64_t rows) {
  return ceil_div(rows, Tile::kRows) * kGroupWarps;
}

template <class T, Activation kActivation, bool kGradient, int kAcrossRight, class Tile>
void start(const ProductShape& shape, const ProductTensors& tensors, std::span<std::byte> workspace, cudaStream_t stream,
           int group) {
  const int64_t cols = kGradient ? shape.in : shape.out, depth = kGradient ? shape.out : shape.in;
  Arguments a = {};
  a.left = tensor_map({tensors.left, shape.rows, depth, Tile::kRows});
  a.right = kAcrossRight ? tensor_map({tensors.right, depth, cols, kDepth / Tile::kCluster})
                         : tensor_map({tensors.right, cols, depth, Tile::kColumns / Tile::kCluster});
  a.result = tensor_map({tensors.result, shape.rows, cols, 16});
  a.keeps = tensors.argument != nullptr;
  if (a.keeps) a.argument = tensor_map({tensors.argument, shape.rows, cols, 16});
  a.bias = tensors.bias;
  a.sums = tensors.column_sums ? reinterpret_cast<float*>(workspace.data()) : nullptr;
  a.rows = int(shape.rows);
  a.cols = int(cols);
  a.depth_steps = int(ceil_div(depth, kDepth));
  a.row_tiles = int(ceil_div(shape.rows, Tile::kRows * Tile::kCluster));
  a.column_tiles = int(ceil_div(cols, Tile::kColumns));
  a.group = group;
  const int clusters = std::min(a.row_tiles * a.column_tiles, device_limits().multiprocessors / Tile::kCluster);

  auto* const kernel = gelu_product_kernel<T, kActivation, kGradient, kAcrossRight, Tile>;
  SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(Tile::kSharedBytes)));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(clusters * Tile::kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Tile::kCluster, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  SNUG_CUDA(cudaLaunchKernelEx(&config, kernel, a));
  if (tensors.column_sums) {
    add_pieces(a.sums, piece_count<Tile>(shape.rows), 1, cols, {{tensors.column_sums}}, stream);
  }
}

// Plans other than the usual one are there to be measured: for bf16 and the exact form only.
template <int kRows, int kColumns, int kCluster, bool kUsual, class... More>
bool start_if(const ProductShape& shape, const GeluProductPlan& plan, const More&... more) {
  if (plan.tile_rows != kRows || plan.tile_columns != kColumns || plan.cluster != kCluster) return false;
  with_case(shape, [&]<class T, Activation kActivation, int kAcrossRight>() {
    if constexpr (!kUsual && !(kActivation == Activation::kGelu && std::is_same_v<T, __nv_bfloat16>)) {
      SNUG_CHECK(kUsual);
    } else if (shape.kind == ProductKind::kInputGradient) {
      start<T, kActivation, true, kAcrossRight, Tile<kRows, kColumns, kCluster, true>>(shape, more..., plan.group);
    } else {
      start<T, kActivation, false, kAcrossRight, Tile<kRows, kColumns, kCluster, false>>(shape, more..., plan.group);
    }
  });
  return true;
}

bool built_for_this_device() {
  static const bool built =
      has_hopper_body(gelu_product_kernel<__half, Activation::kGelu, false, 0, Tile<128, 128, 2, false>>);
  return built;
}

}  // namespace

bool has_gelu_product(const ProductShape& shape, size_t workspace_bytes) {
  const bool half = shape.dtype == DType::kBF16 || shape.dtype == DType::kF16;
  if (!half || shape.gelu == ProductGelu::kNone || shape.accumulate || shape.out_stride != 0) return false;
  if (shape.rows == 0 || shape.in % 8 != 0 || shape.out % 8 != 0 || !built_for_this_device()) return false;
  const size_t sums_bytes = size_t(ceil_div(shape.rows, 64) * kGroupWarps * shape.in) * sizeof(float);
  return shape.gelu != ProductGelu::kGradient || sums_bytes <= workspace_bytes;
}

void launch_gelu_product(const ProductShape& shape, const ProductTensors& tensors, std::span<std::byte> workspace,
                         cudaStream_t stream, const GeluProductPlan& plan) {
  SNUG_CHECK(has_gelu_product(shape, workspace.size()) && tensors.scale == 1.0f);
  SNUG_CHECK((start_if<128, 128, 2, true>(shape, plan, tensors, workspace, stream) ||
              start_if<128, 128, 1, false>(shape, plan, tensors, workspace, stream) ||
              start_if<64, 256, 1, false>(shape, plan, tensors, workspace, stream) ||
              start_if<64, 256, 2, false>(shape, plan, tensors, workspace, stream) ||
              start_if<128, 192, 1, false>(shape, plan, tensors, workspace, stream) ||
              start_if<128, 192, 2, false>(shape, plan, tensors, workspace, stream)));
}

}  // namespace snug::cuda
