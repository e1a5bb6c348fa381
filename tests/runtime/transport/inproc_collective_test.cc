// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/inproc_collective.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace baton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

Tensor Filled(DType dtype, Shape shape,
              const std::function<float(int64_t)>& value) {
  Tensor tensor = Tensor::AllocateHost(dtype, shape).value();
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    if (dtype == DType::kF32) {
      tensor.view().Row<float>(0)[i] = value(i);
    } else {
      tensor.view().Row<bf16>(0)[i] = bf16(value(i));
    }
  }
  return tensor;
}

float At(const Tensor& tensor, int64_t i) {
  return tensor.dtype() == DType::kF32
             ? tensor.view().Row<float>(0)[i]
             : static_cast<float>(tensor.view().Row<bf16>(0)[i]);
}

// Each rank on a thread of its own, with a stream of its own.
void ForRanks(InprocRanks& group,
              const std::function<void(Collective&, Stream&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Device> device = NewCpuDevice(1);
      const std::unique_ptr<Stream> stream = device->NewStream().value();
      body(group.rank(rank), *stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of values whose f32 sum depends on the order.
float Summand(int rank, int64_t i) {
  constexpr float kValues[] = {1e8f, 1, -1e8f, 3, 0.5f, -7, 1e-3f, 2.5f};
  return kValues[(rank + i) % 8] * static_cast<float>(1 + i % 5);
}

class InprocRanksTest : public ::testing::TestWithParam<int> {
 protected:
  InprocRanks group_{GetParam(), kPatience};
};
INSTANTIATE_TEST_SUITE_P(Sizes, InprocRanksTest, ::testing::Values(1, 2, 4, 8));

float Tree(int first, int count, int64_t i) {
  if (count == 1) return Summand(first, i);
  return Tree(first, count / 2, i) + Tree(first + count / 2, count / 2, i);
}

TEST_P(InprocRanksTest, SumsAsABalancedTreeAndRoundsOnce) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape shape : {Shape{1, 3}, Shape{3, 7}, Shape{5, 2000}}) {
      ForRanks(group_, [&](Collective& rank, Stream& stream) {
        const Tensor partial = Filled(DType::kF32, shape, [&](int64_t i) {
          return Summand(rank.rank(), i);
        });
        const Tensor sum = Filled(dtype, shape, [](int64_t) { return -1; });
        ASSERT_TRUE(rank.AllReduce(partial.view(), sum.view(), stream).ok());
        for (int64_t i = 0; i < shape.NumElements(); ++i) {
          const float tree = Tree(0, GetParam(), i);
          const float want =
              dtype == DType::kF32 ? tree : static_cast<float>(bf16(tree));
          ASSERT_EQ(At(sum, i), want) << "rank " << rank.rank() << " at " << i;
        }
      });
    }
  }
}

TEST_P(InprocRanksTest, PutsColumnsBesideEachOtherInRankOrder) {
  const int64_t ranks = GetParam();
  ForRanks(group_, [&](Collective& rank, Stream& stream) {
    const Tensor x = Filled(DType::kBF16, {4, 3}, [&](int64_t i) {
      return static_cast<float>(20 * rank.rank() + i);
    });
    const Tensor all =
        Filled(DType::kBF16, {4, 3 * ranks}, [](int64_t) { return -1; });
    ASSERT_TRUE(rank.AllGather(x.view(), all.view(), stream).ok());
    for (int64_t i = 0; i < all.shape().NumElements(); ++i) {
      const int64_t row = i / (3 * ranks), column = i % (3 * ranks);
      ASSERT_EQ(At(all, i),
                static_cast<float>(20 * (column / 3) + 3 * row + column % 3));
    }
  });
}

TEST_P(InprocRanksTest, GathersForThoseWhoWantIt) {
  const int64_t ranks = GetParam();
  ForRanks(group_, [&](Collective& rank, Stream& stream) {
    const Tensor x = Filled(DType::kF32, {1, 2}, [](int64_t) { return 3; });
    Tensor all;
    if (rank.rank() == 0) {
      all = Filled(DType::kF32, {1, 2 * ranks}, [](int64_t) { return -1; });
    }
    ASSERT_TRUE(rank.AllGather(x.view(), all.view(), stream).ok());
    for (int64_t i = 0; i < 2 * ranks && rank.rank() == 0; ++i) {
      ASSERT_EQ(At(all, i), 3);
    }
  });
}

TEST_P(InprocRanksTest, MeetsWithZeroRowsAndManyTimes) {
  ForRanks(group_, [&](Collective& rank, Stream& stream) {
    const Tensor none = Filled(DType::kF32, {0, 5}, nullptr);
    const Tensor one = Filled(DType::kF32, {1, 1}, [](int64_t) { return 1; });
    const Tensor sum = Filled(DType::kF32, {1, 1}, [](int64_t) { return 0; });
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(rank.AllReduce(none.view(), none.view(), stream).ok());
      ASSERT_TRUE(rank.AllGather(none.view(), {}, stream).ok());
      ASSERT_TRUE(rank.AllReduce(one.view(), sum.view(), stream).ok());
      ASSERT_EQ(At(sum, 0), static_cast<float>(rank.size()));
    }
  });
}

// One rank fails elsewhere; the others wait for it, or come later.
TEST(InprocRanksFailureTest, AbortReachesRanksThatWaitAndThatCome) {
  InprocRanks group(4, absl::InfiniteDuration());
  ForRanks(group, [&](Collective& rank, Stream& stream) {
    const Tensor x = Filled(DType::kF32, {1, 1}, [](int64_t) { return 1; });
    if (rank.rank() == 2) return group.Abort(Internal("rank 2 burnt down"));
    const Status status = rank.AllReduce(x.view(), x.view(), stream);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(status.message(), "rank 2 burnt down");
  });
  EXPECT_EQ(group.Renew().code(), StatusCode::kInternal);
}

TEST(InprocRanksFailureTest, TheFirstReasonStays) {
  InprocRanks group(2, kPatience);
  group.Abort(Internal("first"));
  group.Abort(InvalidArgument("second"));
  EXPECT_EQ(group.Renew().message(), "first");
  EXPECT_TRUE(group.Renew().ok());
}

TEST(InprocRanksFailureTest, ARankLosesPatienceAndTheGroupEnds) {
  InprocRanks group(2, absl::ZeroDuration());
  const std::unique_ptr<Device> device = NewCpuDevice(1);
  const std::unique_ptr<Stream> stream = device->NewStream().value();
  const Tensor x = Filled(DType::kF32, {1, 1}, [](int64_t) { return 1; });
  for (int rank : {0, 1}) {
    EXPECT_EQ(group.rank(rank).AllReduce(x.view(), x.view(), *stream).code(),
              StatusCode::kDeadlineExceeded);
  }
}

TEST(InprocRanksFailureTest, AGroupThatEndedMeetsAgainOnceRenewed) {
  InprocRanks group(2, kPatience);
  group.Abort(Internal("once"));
  EXPECT_FALSE(group.Renew().ok());
  ForRanks(group, [&](Collective& rank, Stream& stream) {
    const Tensor x = Filled(DType::kF32, {1, 1}, [](int64_t) { return 1; });
    const Tensor sum = Filled(DType::kF32, {1, 1}, [](int64_t) { return 0; });
    ASSERT_TRUE(rank.AllReduce(x.view(), sum.view(), stream).ok());
    EXPECT_EQ(At(sum, 0), 2);
  });
}

}  // namespace
}  // namespace baton
