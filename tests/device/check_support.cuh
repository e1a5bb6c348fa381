// SPDX-License-Identifier: Apache-2.0
// What the device checks share: guarded device memory, random bf16, comparison
// with a reference, and a count of failures.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace baton::check {

using Bf16 = uint16_t;
// How far the nearest bf16 may be, relative: just above a power of two half a
// unit in the last place is 2^-8. A little more for fp32 before it.
constexpr double kHalfUlp = 1.02 / 256;

inline void CheckCuda(cudaError_t error, const char* what, int line) {
  if (error == cudaSuccess) return;
  std::printf("FATAL line %d: %s: %s\n", line, what, cudaGetErrorString(error));
  std::fflush(stdout);
  std::exit(2);
}
#define CUDA_OK(call) ::baton::check::CheckCuda((call), #call, __LINE__)

inline float ToFloat(Bf16 bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof(x));
  return x;
}
inline Bf16 ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if (std::isnan(x)) return 0x7fff;
  return static_cast<Bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float Round(float x) { return ToFloat(ToBf16(x)); }

// Counts checks and prints those that fail, a few per name.
struct Results {
  int checks = 0;
  int failures = 0;
  int printed = 0;

  void Expect(bool ok, const std::string& what) {
    ++checks;
    if (ok) return;
    ++failures;
    if (++printed <= 60) std::printf("FAIL %s\n", what.c_str());
  }
};
inline Results& TheResults() {
  static Results results;
  return results;
}
inline void Expect(bool ok, const std::string& what) {
  TheResults().Expect(ok, what);
}
inline void Section(const char* name) {
  static int before = 0;
  std::printf("== %s (failures so far %d, new %d)\n", name,
              TheResults().failures, TheResults().failures - before);
  before = TheResults().failures;
  TheResults().printed = 0;
  std::fflush(stdout);
}

// Device memory of poison (0xff bytes: NaN, -1) between guards of the same.
template <typename T>
class Device {
 public:
  explicit Device(int64_t count) : count_(count) {
    CUDA_OK(cudaMalloc(&memory_, Bytes() + 2 * kGuard));
    Poison();
  }
  explicit Device(const std::vector<T>& values)
      : Device(static_cast<int64_t>(values.size())) {
    Upload(values);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { (void)cudaFree(memory_); }

  void Poison() { CUDA_OK(cudaMemset(memory_, 0xff, Bytes() + 2 * kGuard)); }
  void Zero() { CUDA_OK(cudaMemset(data(), 0, Bytes())); }
  void Upload(const std::vector<T>& values) {
    CUDA_OK(cudaMemcpy(data(), values.data(), values.size() * sizeof(T),
                       cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::vector<T> Download() const {
    std::vector<T> values(static_cast<size_t>(count_));
    CUDA_OK(cudaMemcpy(values.data(), data(), Bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  [[nodiscard]] bool GuardsHold() const {
    std::vector<unsigned char> guards(2 * kGuard);
    CUDA_OK(cudaMemcpy(guards.data(), memory_, kGuard, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(guards.data() + kGuard,
                       static_cast<char*>(memory_) + kGuard + Bytes(), kGuard,
                       cudaMemcpyDeviceToHost));
    return std::all_of(guards.begin(), guards.end(),
                       [](unsigned char byte) { return byte == 0xff; });
  }
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_) + kGuard);
  }
  [[nodiscard]] int64_t count() const { return count_; }

 private:
  static constexpr size_t kGuard = 1024;
  [[nodiscard]] size_t Bytes() const {
    return static_cast<size_t>(count_) * sizeof(T);
  }
  void* memory_ = nullptr;
  int64_t count_;
};

inline std::vector<Bf16> RandomBf16(int64_t count, uint32_t seed,
                                    float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) value = ToBf16(normal(random));
  return values;
}

// Calls f(i) for [0, count) on all cores.
template <typename Function>
void Parallel(int64_t count, const Function& f) {
  std::atomic<int64_t> next{0};
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::min<unsigned>(cores, 32); ++t) {
    threads.emplace_back([&] {
      for (int64_t i = next++; i < count; i = next++) f(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// got[i] within tolerance[i] of want[i]; reports the worst.
inline void ExpectClose(const std::string& what, const std::vector<Bf16>& got,
                        const std::vector<double>& want,
                        const std::vector<double>& tolerance) {
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(ToFloat(got[i]) - want[i]);
    const double share = error / tolerance[i];
    if (!(share <= worst)) {
      worst = std::isnan(share) ? 1e30 : share;
      at = i;
    }
  }
  char text[200];
  std::snprintf(text, sizeof(text),
                ": element %zu of %zu is %g, not %g (%.3g of the tolerance)",
                at, want.size(), want.empty() ? 0.0 : ToFloat(got[at]),
                want.empty() ? 0.0 : want[at], worst);
  Expect(worst <= 1, what + text);
}

template <typename T>
bool SameBits(const std::vector<T>& a, int64_t a_at, const std::vector<T>& b,
              int64_t b_at, int64_t count) {
  return std::memcmp(a.data() + a_at, b.data() + b_at,
                     static_cast<size_t>(count) * sizeof(T)) == 0;
}
template <typename T>
bool IsPoison(const std::vector<T>& a, int64_t at, int64_t count) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(a.data() + at);
  return std::all_of(bytes, bytes + static_cast<size_t>(count) * sizeof(T),
                     [](unsigned char byte) { return byte == 0xff; });
}

template <typename... Parts>
std::string Name(const char* format, Parts... parts) {
  char text[256];
  std::snprintf(text, sizeof(text), format, parts...);
  return text;
}

}  // namespace baton::check
