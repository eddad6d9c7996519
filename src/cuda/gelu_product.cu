#include "cuda/column_sums.cuh"
#include "cuda/gelu_product.cuh"
#include "cuda/gelu_product.h"

namespace snug::cuda {
namespace {

using namespace gelu_kernels;

int64_t columns_of(const ProductShape& shape) {
  return shape.kind == ProductKind::kInputGradient ? shape.in : shape.out;
}

// Of a tile: three where rounds of blocks over the multiprocessors then have fewer rows to go
// through, or hardly more and there are many rounds: the last tile's GELU hides behind nothing.
int row_blocks_of(const ProductShape& shape) {
  constexpr int64_t kManyRounds = 8;
  const int64_t columns = ceil_div(columns_of(shape), int64_t{kColumns});
  const auto rounds = [&](int64_t blocks) {
    return ceil_div(ceil_div(shape.rows, blocks * kRowBlock) * columns,
                    int64_t{device_limits().multiprocessors});
  };
  const int64_t small = 2 * rounds(2), large = 3 * rounds(3);
  const bool hardly_more = rounds(3) >= kManyRounds && 20 * large <= 21 * small;
  return large < small || hardly_more ? 3 : 2;
}

// Calls f with the type, what the kernel does with which form of GELU, whether the inner dimension
// runs across the weight's rows, and the tiles' blocks of rows.
template <class F>
void with_case(const ProductShape& shape, const F& f) {
  const bool gradient = shape.kind == ProductKind::kInputGradient,
             out_in = shape.layout == WeightLayout::kOutIn;
  const auto typed = [&]<class T>() {
    const auto formed = [&]<Activation kActivation, Role kRole>() {
      with_bool(row_blocks_of(shape) == 3, [&]<bool kLarge>() {
        constexpr int kBlocks = kLarge ? 3 : 2;
        gradient == out_in ? f.template operator()<T, kActivation, kRole, 1, kBlocks>()
                           : f.template operator()<T, kActivation, kRole, 0, kBlocks>();
      });
    };
    if (gradient && shape.gelu_form == Activation::kKeptSlope) {
      return formed.template operator()<Activation::kKeptSlope, Role::kGradient>();
    }
    with_gelu(shape.gelu_form, [&]<Activation kForm>() {
      if (gradient) return formed.template operator()<kForm, Role::kGradient>();
      if (shape.gelu == ProductGelu::kKeepsSlope) {
        return formed.template operator()<kForm, Role::kForwardWithSlope>();
      }
      formed.template operator()<kForm, Role::kForward>();
    });
  };
  shape.dtype == DType::kBF16 ? typed.template operator()<__nv_bfloat16>()
                              : typed.template operator()<__half>();
}

int64_t sum_pieces(const ProductShape& shape) {
  return ceil_div(shape.rows, int64_t{row_blocks_of(shape) * kRowBlock}) * kGroupWarps;
}

template <class T, Activation kActivation, Role kRole, int kAcrossRight, int kBlocksOfRows>
void start(const ProductShape& shape, const ProductTensors& tensors, std::span<std::byte> workspace,
           cudaStream_t stream) {
  using Tile = gelu_kernels::Tile<kRole, kBlocksOfRows>;
  const int64_t cols = columns_of(shape), depth = Tile::kGradient ? shape.out : shape.in;
  Arguments a = {};
  a.left = tensor_map({tensors.left, shape.rows, depth, Tile::kRows});
  a.right = kAcrossRight ? tensor_map({tensors.right, depth, cols, kDepth})
                         : tensor_map({tensors.right, cols, depth, kColumns});
  a.result = tensor_map({tensors.result, shape.rows, cols, 16});
  a.keeps = tensors.argument != nullptr;
  if (a.keeps) {
    const int64_t kept = has_slope_bytes(shape) ? cols / 2 : cols;  // in words of two bytes
    a.argument = tensor_map({tensors.argument, shape.rows, kept, 16});
  }
  SNUG_CHECK(a.keeps || kRole == Role::kForward);
  a.bias = tensors.bias;
  const int64_t pieces = sum_pieces(shape);
  if (tensors.column_sums) {
    a.sums = room_for_pieces(tensors.pending, piece_bytes(pieces, 1, cols), workspace, stream);
  }
  a.rows = int(shape.rows);
  a.cols = int(cols);
  a.depth_steps = int(ceil_div(depth, kDepth));
  a.row_tiles = int(ceil_div(shape.rows, Tile::kRows));
  a.column_tiles = int(ceil_div(cols, kColumns));
  const int blocks = std::min(a.row_tiles * a.column_tiles, device_limits().multiprocessors);

  auto* const kernel = gelu_product_kernel<T, kActivation, kRole, kAcrossRight, kBlocksOfRows>;
  SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 int(Tile::kSharedBytes)));
  kernel<<<unsigned(blocks), kThreads, Tile::kSharedBytes, stream>>>(a);
  SNUG_CUDA_LAUNCHED("gelu_product");
  if (tensors.column_sums) {
    add_pieces(tensors.pending, {a.sums, pieces, 1, cols, {{tensors.column_sums}}}, stream);
  }
}

bool built_for_this_device() {
  static const bool built =
      has_hopper_body(gelu_product_kernel<__half, Activation::kGelu, Role::kForward, 0, 2>);
  return built;
}

}  // namespace

bool has_gelu_product(const ProductShape& shape, size_t workspace_bytes) {
  const bool half = shape.dtype == DType::kBF16 || shape.dtype == DType::kF16;
  if (!half || shape.gelu == ProductGelu::kNone || shape.accumulate || shape.out_stride != 0) {
    return false;
  }
  if (shape.rows == 0 || shape.in % 8 != 0 || shape.out % 8 != 0 || !built_for_this_device()) {
    return false;
  }
  if (has_slope_bytes(shape) && columns_of(shape) % SlopeBytes::kGroup != 0) return false;
  return shape.gelu != ProductGelu::kGradient ||
         piece_bytes(sum_pieces(shape), 1, shape.in) <= workspace_bytes;
}

void launch_gelu_product(const ProductShape& shape, const ProductTensors& tensors,
                         std::span<std::byte> workspace, cudaStream_t stream) {
  SNUG_CHECK(has_gelu_product(shape, workspace.size()) && tensors.scale == 1.0f);
  with_case(
      shape, [&]<class T, Activation kActivation, Role kRole, int kAcrossRight, int kBlocks>() {
        start<T, kActivation, kRole, kAcrossRight, kBlocks>(shape, tensors, workspace, stream);
      });
}

}  // namespace snug::cuda
