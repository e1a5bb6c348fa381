// SPDX-License-Identifier: Apache-2.0
// Helpers of the kernel tests: a machine that runs kernels of one instruction
// set, and tensors to feed it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/matmul.h"
#include "kernels/registry.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// Runs kernels of one instruction set on a number of threads.
class Machine {
 public:
  explicit Machine(CpuIsa isa, int threads = 1)
      : device_(NewCpuDevice(threads)), stream_(device_->NewStream().value()) {
    RegisterCpuKernels(registry_, isa);
  }
  template <typename Op>
  Status Run(DType dtype, const typename Op::Args& args) {
    return registry_.Find<Op>(DeviceKind::kCpu, dtype).value()(args, *stream_);
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  KernelRegistry registry_;
};

// A test that runs for each instruction set this machine has.
class IsaTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) {
      GTEST_SKIP() << Name(GetParam()) << " is not supported here";
    }
    machine_ = std::make_unique<Machine>(GetParam());
  }
  Machine& machine() { return *machine_; }

 private:
  std::unique_ptr<Machine> machine_;
};

#define BATON_FOR_EACH_ISA(Suite)                                           \
  INSTANTIATE_TEST_SUITE_P(                                                 \
      Isa, Suite,                                                           \
      ::testing::Values(CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, \
                        CpuIsa::kAmx),                                      \
      [](const auto& info) { return std::string(Name(info.param)); })

inline constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16};

inline float At(ConstView view, int64_t row, int64_t i) {
  if (view.dtype() == DType::kF32) return view.Row<float>(row)[i];
  return static_cast<float>(view.Row<bf16>(row)[i]);
}

inline void Put(View view, int64_t row, int64_t i, float value) {
  if (view.dtype() == DType::kF32) {
    view.Row<float>(row)[i] = value;
  } else {
    view.Row<bf16>(row)[i] = bf16(value);
  }
}

// Filled with NaNs: what a kernel forgets to write, or reads, shows.
inline Tensor Poisoned(DType dtype, Shape shape) {
  Tensor tensor = Tensor::AllocateHost(dtype, shape).value();
  std::memset(tensor.view().data(), 0xff, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

inline Tensor Random(DType dtype, Shape shape, uint32_t seed, float scale = 1) {
  Tensor tensor = Poisoned(dtype, shape);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  for (int64_t row = 0; row < shape[0]; ++row) {
    for (int64_t i = 0; i < tensor.view().RowElements(); ++i) {
      Put(tensor.view(), row, i, normal(generator));
    }
  }
  return tensor;
}

inline Tensor Filled(DType dtype, Shape shape, const std::vector<float>& data) {
  Tensor tensor = Poisoned(dtype, shape);
  const int64_t width = tensor.view().RowElements();
  for (size_t i = 0; i < data.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    Put(tensor.view(), at / width, at % width, data[i]);
  }
  return tensor;
}

// A weight as the checkpoint has it, and packed.
struct Weight {
  Weight(Machine& machine, DType dtype, int64_t n, int64_t k, uint32_t seed)
      : plain(Random(dtype, {n, k}, seed, 0.1f)),
        leaves(MatmulLeaves(k)),
        packed(
            Tensor::AllocateHost(dtype, {PadTo(n, 64) * PackedDepth(k, leaves)})
                .value()) {
    Pack(machine, plain.view());
  }
  // One of `ranks` equal runs of a weight's columns, with its leaves.
  Weight(Machine& machine, const Weight& whole, int rank, int ranks)
      : plain(Tensor::AllocateHost(
                  whole.plain.dtype(),
                  {whole.plain.shape()[0], whole.plain.shape()[1] / ranks})
                  .value()),
        leaves(whole.leaves / ranks),
        packed(Tensor::AllocateHost(whole.plain.dtype(),
                                    {PadTo(plain.shape()[0], 64) *
                                     PackedDepth(plain.shape()[1], leaves)})
                   .value()) {
    const int64_t k = plain.shape()[1];
    for (int64_t i = 0; i < plain.shape()[0] * k; ++i) {
      Put(plain.view(), i / k, i % k,
          At(whole.plain.view(), i / k, rank * k + i % k));
    }
    Pack(machine, plain.view());
  }
  void Pack(Machine& machine, ConstView rows) {
    std::memset(packed.view().data(), 0, static_cast<size_t>(packed.bytes()));
    const DType dtype = rows.dtype();
    EXPECT_TRUE(
        machine
            .Run<PackMatrix>(dtype, {rows, 0, packed.view().data(), dtype,
                                     rows.dim(0), rows.dim(1), leaves})
            .ok());
  }
  [[nodiscard]] PackedMatrix matrix() const {
    return {packed.view().data(), plain.dtype(), plain.shape()[0],
            plain.shape()[1], leaves};
  }

  Tensor plain;
  int leaves;
  Tensor packed;
};

inline Tensor Copy(const Tensor& from) {
  Tensor to = Poisoned(from.dtype(), from.shape());
  std::memcpy(to.view().data(), from.view().data(),
              static_cast<size_t>(from.bytes()));
  return to;
}

inline bool SameBits(ConstView a, ConstView b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const auto row_bytes =
      static_cast<size_t>(a.RowElements() * SizeOf(a.dtype()));
  for (int64_t row = 0; row < a.dim(0); ++row) {
    const auto offset = [row](ConstView v) {
      return v.data() + row * v.row_stride() * SizeOf(v.dtype());
    };
    if (std::memcmp(offset(a), offset(b), row_bytes) != 0) return false;
  }
  return true;
}

// |have - want| <= relative * |want| + absolute everywhere.
inline void ExpectNear(ConstView have, ConstView want, float relative,
                       float absolute) {
  ASSERT_EQ(have.shape(), want.shape());
  for (int64_t row = 0; row < have.dim(0); ++row) {
    for (int64_t i = 0; i < have.RowElements(); ++i) {
      const float h = At(have, row, i);
      const float w = At(want, row, i);
      ASSERT_LE(std::abs(h - w), relative * std::abs(w) + absolute)
          << "row " << row << " element " << i << ": " << h << ", want " << w;
    }
  }
}

// One unit in the last place of a bf16, relative; for f32 a few of its own.
inline float Tolerance(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7f : 4e-6f;
}

}  // namespace baton
