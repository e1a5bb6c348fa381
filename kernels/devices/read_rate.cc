// SPDX-License-Identifier: Apache-2.0
#include "kernels/devices/read_rate.h"

#include <utility>

#include "absl/time/clock.h"

#ifdef BATON_WITH_CUDA
#include "kernels/cuda/read_probe.h"
#include "runtime/tensor/cuda_device.h"
#endif

namespace baton {
namespace {

class CpuReadRate : public ReadRate {
 public:
  explicit CpuReadRate(int threads) : pool_(threads) {}
  StatusOr<double> Measure() override {
    return static_cast<double>(probe_.bytes()) / probe_.Run(pool_);
  }

 private:
  ThreadPool pool_;
  ReadProbe probe_{int64_t{3} << 29};
};

#ifdef BATON_WITH_CUDA
class CudaReadRate : public ReadRate {
 public:
  CudaReadRate(std::unique_ptr<Stream> stream, Buffer block)
      : stream_(std::move(stream)), block_(std::move(block)) {}
  StatusOr<double> Measure() override {
    // Several passes, so that starting and waiting weigh nothing, behind one
    // that is not counted: the first in a process loads the kernel.
    constexpr int kPasses = 4;
    BATON_RETURN_IF_ERROR(Read());
    BATON_RETURN_IF_ERROR(stream_->Synchronize());
    const absl::Time start = absl::Now();
    for (int i = 0; i < kPasses; ++i) BATON_RETURN_IF_ERROR(Read());
    BATON_RETURN_IF_ERROR(stream_->Synchronize());
    return static_cast<double>(block_.bytes()) * kPasses /
           absl::ToDoubleSeconds(absl::Now() - start);
  }

 private:
  Status Read() {
    return CudaStatus(cuda::ReadOnce(block_.data(), block_.bytes(),
                                     block_.data(), CudaStreamOf(*stream_)),
                      "read probe");
  }

  std::unique_ptr<Stream> stream_;
  Buffer block_;
};
#endif

}  // namespace

StatusOr<std::unique_ptr<ReadRate>> ReadRate::Of(Device& device, int threads) {
  if (device.kind() == DeviceKind::kCpu) {
    return std::unique_ptr<ReadRate>(new CpuReadRate(threads));
  }
#ifdef BATON_WITH_CUDA
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.NewStream());
  BATON_ASSIGN_OR_RETURN(Buffer block, device.Allocate(int64_t{4} << 30));
  BATON_RETURN_IF_ERROR(device.Clear(block.data(), block.bytes(), *stream));
  return std::unique_ptr<ReadRate>(
      new CudaReadRate(std::move(stream), std::move(block)));
#else
  return Unimplemented("this build has no CUDA");
#endif
}

}  // namespace baton
