// SPDX-License-Identifier: Apache-2.0
// Pieces of transport_check: ends of a data plane on GPUs, and the table of
// what was found.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/transport/cuda_plane.h"
#include "runtime/transport/cuda_put.h"

namespace baton::check {

// --- The table (transport_check.cc). Thread: any.
void Report(const std::string& name, const std::string& result);
void Fail(const std::string& name, const std::string& why);
// Whether the arguments ask for it; from now on it is what is running.
[[nodiscard]] bool Begin(const std::string& name);

// --- Ends (transport_check_pair.cc)

enum class Path { kHost, kDirect, kNccl };
[[nodiscard]] const char* Name(Path path);
[[nodiscard]] CudaPlaneOptions OptionsFor(Path path);

constexpr uint64_t kEpoch = 1;
constexpr int kColumns = 4096;
[[nodiscard]] SessionInfo CheckSession();

// One stage's end, with its GPU and stream.
class End {
 public:
  // `network`: null for UCX.
  [[nodiscard]] static StatusOr<std::unique_ptr<End>> Make(
      int stage, int gpu, const CudaPlaneOptions& options,
      std::shared_ptr<InprocNetwork> network);
  ~End();

  [[nodiscard]] DataPlane& plane() { return *plane_; }
  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] StageId self() const { return StageId(stage_); }
  [[nodiscard]] StageId peer() const { return StageId(1 - stage_); }
  Status Connect(const std::string& peer_address);
  // Progresses, or sleeps for at most a millisecond.
  void Step();
  // Until a packet is there. DeadlineExceeded; Unavailable: the peer is lost.
  [[nodiscard]] StatusOr<Packet> Next(absl::Duration limit);
  // A stream packet, filled by `seed`, or where `fill` says so left as it is.
  enum class Contents { kSeeded, kNone };
  Status SendRows(uint64_t step, int rows, Contents contents);
  Status SendTokens(uint64_t step);

  std::deque<Packet> packets;
  Status lost;

 private:
  End() = default;
  int stage_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DataPlane> plane_;
};

// What SendRows(step, …) sends, from stage `from`.
void Pattern(uint64_t step, int from, std::byte* data, int64_t bytes);

// Sends and checks packets of all sizes both ways at once.
Status Exchange(End& end, Path path);
// Hops of `rows` there and back; the mean in microseconds, at stage 0.
StatusOr<double> PingPong(End& end, int rows, int hops);

// Another process with stage 1, running `role`.
class Child {
 public:
  [[nodiscard]] static StatusOr<std::unique_ptr<Child>> Start(
      const std::string& role, Path path, int gpu);
  ~Child();
  Status Connect(End& end);
  void Signal(int signal) const;
  // Its exit status, or 256 with the signal that ended it.
  int Wait();
  // Whether it has said a word.
  [[nodiscard]] bool Hear();

 private:
  Child() = default;
  pid_t pid_ = -1;
  int fd_ = -1;
};
// The child's main.
int RunChild(const std::string& role, const std::string& path, int gpu, int fd);

// --- Parts
void CheckPairs(int gpus);   // transport_check_pair.cc
void CheckLosses(int gpus);  // transport_check_loss.cc
void MeasureHops(int gpus);  // transport_check_speed.cc

}  // namespace baton::check
