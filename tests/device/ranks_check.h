// SPDX-License-Identifier: Apache-2.0
// What the parts of ranks_check share: two ranks, random numbers, a count of
// failures.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/rank_group.h"
#include "runtime/base/check.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/tensor/tensor.h"

namespace baton::check {

inline std::atomic<int>& TheFailures() {
  static std::atomic<int> failures = 0;
  return failures;
}
inline void Expect(bool holds, const std::string& what) {
  if (holds) return;
  ++TheFailures();
  std::printf("FAIL %s\n", what.c_str());
}

// A rank's device and stream.
struct End {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;

  [[nodiscard]] Tensor Upload(DType dtype, Shape shape, const void* from) {
    Tensor tensor = Tensor::Allocate(*device, dtype, shape).value();
    BATON_CHECK(device
                    ->Copy(tensor.view().data(),
                           static_cast<const std::byte*>(from), tensor.bytes(),
                           *stream)
                    .ok());
    BATON_CHECK(stream->Synchronize().ok());
    return tensor;
  }
  [[nodiscard]] std::vector<std::byte> Download(const Tensor& tensor) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    BATON_CHECK(
        device
            ->Copy(bytes.data(), tensor.view().data(), tensor.bytes(), *stream)
            .ok());
    BATON_CHECK(stream->Synchronize().ok());
    return bytes;
  }
};

struct Pair {
  Pair() {
    for (int i = 0; i < 2; ++i) {
      End& end = ends[static_cast<size_t>(i)];
      end.device = NewCudaDevice(i % CudaDeviceCount()).value();
      end.stream = end.device->NewStream().value();
    }
    Device* const devices[] = {ends[0].device.get(), ends[1].device.get()};
    group = NewCudaRanks(devices, absl::Seconds(20)).value();
  }
  // Runs `body` for both ranks at once.
  void Run(const std::function<void(int, End&, Collective&)>& body) {
    std::thread other([&] { body(1, ends[1], group->rank(1)); });
    body(0, ends[0], group->rank(0));
    other.join();
  }

  std::array<End, 2> ends;
  std::unique_ptr<RankGroup> group;
};

template <typename T>
[[nodiscard]] std::vector<T> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(normal(random)));
  }
  return values;
}

template <typename T>
[[nodiscard]] bool Equal(const std::vector<std::byte>& bytes,
                         const std::vector<T>& wanted) {
  return bytes.size() == wanted.size() * sizeof(T) &&
         std::memcmp(bytes.data(), wanted.data(), bytes.size()) == 0;
}

// Products of two ranks that share k against those of one alone.
void CheckProducts(Pair& pair);

}  // namespace baton::check
