#include "cuda/pending_sums.h"

#include <random>

#include "cuda/cuda_test_util.h"

namespace snug::cuda {
namespace {

// Kernels that leave pieces of these shapes, one after the other, and the targets they are for.
class Kernels {
 public:
  struct Shape {
    int64_t count, sums, cols;
  };

  explicit Kernels(const std::vector<Shape>& shapes) : shapes_(shapes) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto numbers = [&](int64_t size) {
      std::vector<float> values(static_cast<size_t>(size));
      for (float& value : values) value = normal(random);
      return values;
    };
    for (const Shape& shape : shapes_) {
      pieces_.push_back(numbers(shape.count * shape.sums * shape.cols));
      before_.push_back(numbers(shape.sums * shape.cols));
    }
  }

  // What the targets hold in the end. absent: a sum that no shape wants; none: -1.
  std::vector<std::vector<float>> run(PendingSums* pending, int absent = -1) const {
    std::vector<DeviceBytes> targets;
    for (const auto& before : before_) targets.emplace_back(bytes_of(before));
    const DeviceBytes workspace(size_t{4} << 20);
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const auto& [count, sums, cols] = shapes_[i];
      SumTargets wanted;
      for (int64_t n = 0; n < sums; ++n) {
        wanted.at[n] = n == absent ? nullptr : targets[i].data<float>() + n * cols;
      }
      const size_t bytes = piece_bytes(count, sums, cols);
      float* const room =
          room_for_pieces(pending, bytes, {workspace.data<std::byte>(), workspace.size()}, nullptr);
      SNUG_CUDA(cudaMemcpyAsync(room, pieces_[i].data(), bytes, cudaMemcpyHostToDevice, nullptr));
      add_pieces(pending, {room, count, sums, cols, wanted}, nullptr);
    }
    if (pending) pending->finish(nullptr);
    SNUG_CUDA(cudaDeviceSynchronize());
    std::vector<std::vector<float>> results;
    for (const DeviceBytes& target : targets) {
      EXPECT_TRUE(target.guards_intact());
      results.push_back(values_of<float>(target.download()));
    }
    return results;
  }

  double expected(size_t shape, size_t at) const {
    double sum = before_[shape][at];
    for (size_t i = at; i < pieces_[shape].size(); i += before_[shape].size()) {
      sum += pieces_[shape][i];
    }
    return sum;
  }
  float before(size_t shape, size_t at) const { return before_[shape][at]; }

 private:
  std::vector<Shape> shapes_;
  std::vector<std::vector<float>> pieces_, before_;
};

const std::vector<Kernels::Shape> kShapes = {{1, 1, 1},     {132, 3, 768}, {7, 2, 33},
                                             {512, 1, 100}, {16, 1, 3072}, {144, 3, 31},
                                             {145, 1, 32},  {300, 2, 65},  {64, 3, 1024}};

TEST(CudaPendingSums, AddsPieces) {
  SNUG_NEEDS_GPU();
  const Kernels kernels(kShapes);
  const auto sums = kernels.run(nullptr);
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t at = 0; at < sums[i].size(); ++at) {
      // A rounding for each piece, of a few units.
      const double bound = 1e-6 * double(kShapes[i].count + 1);
      ASSERT_NEAR(sums[i][at], kernels.expected(i, at), bound)
          << "shape " << i << ", element " << at;
    }
  }
}

TEST(CudaPendingSums, WaitingChangesNoBit) {
  SNUG_NEEDS_GPU();
  const Kernels kernels(kShapes);
  const auto at_once = kernels.run(nullptr);
  for (const size_t bytes :
       {size_t{0}, size_t{256}, size_t{100} << 10, size_t{2} << 20, size_t{64} << 20}) {
    const DeviceBytes room(bytes);
    PendingSums pending({room.data<std::byte>(), bytes});
    EXPECT_EQ(kernels.run(&pending), at_once) << "room for " << bytes << " bytes";
    EXPECT_EQ(kernels.run(&pending), at_once) << "once more with the same room";
    EXPECT_TRUE(room.guards_intact());
  }
}

TEST(CudaPendingSums, ManyWait) {
  SNUG_NEEDS_GPU();
  const Kernels kernels(std::vector<Kernels::Shape>(3 * PendingSums::kMost + 5, {3, 2, 40}));
  const DeviceBytes room(size_t{16} << 20);
  PendingSums pending({room.data<std::byte>(), room.size()});
  EXPECT_EQ(kernels.run(&pending), kernels.run(nullptr));
}

TEST(CudaPendingSums, AbsentTargetsAreLeftAlone) {
  SNUG_NEEDS_GPU();
  const Kernels kernels({{20, 3, 50}});
  const DeviceBytes room(size_t{1} << 20);
  PendingSums pending({room.data<std::byte>(), room.size()});
  const auto sums = kernels.run(&pending, 1);
  for (size_t at = 0; at < 150; ++at) {
    const bool absent = at / 50 == 1;
    ASSERT_NEAR(sums[0][at], absent ? kernels.before(0, at) : kernels.expected(0, at),
                absent ? 0.0 : 1e-4);
  }
}

TEST(CudaPendingSums, ATargetIsAddedToTwice) {
  SNUG_NEEDS_GPU();
  constexpr int64_t kCols = 64;
  const DeviceBytes room(size_t{1} << 20), target(bytes_of(std::vector<float>(kCols, 1.0f)));
  PendingSums pending({room.data<std::byte>(), room.size()});
  for (int kernel = 0; kernel < 3; ++kernel) {
    const std::vector<float> twos(5 * kCols, 2.0f);
    float* const at = pending.take(piece_bytes(5, 1, kCols), nullptr);
    ASSERT_NE(at, nullptr);
    SNUG_CUDA(cudaMemcpyAsync(at, twos.data(), twos.size() * sizeof(float), cudaMemcpyHostToDevice,
                              nullptr));
    pending.add({at, 5, 1, kCols, {{target.data<float>()}}}, nullptr);
  }
  pending.finish(nullptr);
  EXPECT_EQ(values_of<float>(target.download()), std::vector<float>(kCols, 31.0f));
}

TEST(CudaPendingSums, RoomThatIsTooSmall) {
  PendingSums none({});
  EXPECT_EQ(none.take(4, nullptr), nullptr);
  EXPECT_FALSE(none.has(nullptr));
  std::vector<std::byte> room(1024);
  PendingSums pending(room);
  EXPECT_EQ(pending.take(1028, nullptr), nullptr);
  EXPECT_EQ(pending.take(1024, nullptr), reinterpret_cast<float*>(room.data()));
}

}  // namespace
}  // namespace snug::cuda
