// SPDX-License-Identifier: Apache-2.0
// Ends of the data plane for tests: each records what it was told. Waits are
// bounded by a deadline that only a failing test reaches.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/transport/channel.h"

namespace baton::testing {

// A way to make planes that can reach each other.
struct Backend {
  std::string name;
  std::string transports;  // of UCX; "" with the name "inproc" is in-process
};

class Fabric {
 public:
  explicit Fabric(Backend backend)
      : backend_(std::move(backend)), network_(NewInprocNetwork()) {}
  [[nodiscard]] std::unique_ptr<DataPlane> NewPlane(DataPlaneEvents events) {
    if (backend_.name == "inproc") {
      return NewInprocDataPlane(network_, std::move(events));
    }
    auto plane =
        NewUcxDataPlane({.transports = backend_.transports}, std::move(events));
    EXPECT_TRUE(plane.ok()) << plane.status();
    return plane.ok() ? std::move(plane).value() : nullptr;
  }

 private:
  Backend backend_;
  std::shared_ptr<InprocNetwork> network_;
};

// One plane and what it delivered.
class End {
 public:
  End(Fabric& fabric, int stage) : stage_(stage) {
    plane_ = fabric.NewPlane({
        .on_packet = [this](Packet p) { packets.push_back(std::move(p)); },
        .on_peer_lost =
            [this](StageId peer, const Status& why) {
              lost.emplace_back(peer, why);
            },
    });
  }
  [[nodiscard]] DataPlane& operator*() { return *plane_; }
  [[nodiscard]] DataPlane* operator->() { return plane_.get(); }
  [[nodiscard]] StageId stage() const { return stage_; }
  void Destroy() { plane_ = nullptr; }

  Status Connect(const SessionInfo& session, std::initializer_list<End*> ends) {
    std::vector<std::pair<StageId, std::string>> peers;
    for (End* end : ends) peers.emplace_back(end->stage(), (*end)->Address());
    return plane_->Connect(session, stage_, peers);
  }

  std::vector<Packet> packets;
  std::vector<std::pair<StageId, Status>> lost;

 private:
  StageId stage_;
  std::unique_ptr<DataPlane> plane_;
};

inline constexpr absl::Duration kTestDeadline = absl::Seconds(30);

// Progresses `ends` in turn until `done()`; false: the deadline passed.
template <typename Done>
[[nodiscard]] bool Pump(std::initializer_list<End*> ends, const Done& done) {
  const absl::Time deadline = absl::Now() + kTestDeadline;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    for (End* end : ends) (void)(*end)->Progress();
  }
  return true;
}

// Progresses until nothing has happened for many rounds.
inline void Settle(std::initializer_list<End*> ends) {
  for (int quiet = 0; quiet < 200; ++quiet) {
    for (End* end : ends) {
      if ((*end)->Progress()) quiet = 0;
    }
  }
}

inline SessionInfo TestSession(uint64_t epoch = 1) {
  return {.epoch = Epoch(epoch),
          .key = 1000 + epoch,
          .max_packet_bytes = int64_t{128} << 20,
          .credits = 8};
}

// [rows, columns] with a pattern that depends on `seed` at every byte.
inline Tensor TestTensor(DType dtype, int64_t rows, int64_t columns,
                         uint32_t seed) {
  StatusOr<Tensor> tensor = Tensor::AllocateHost(dtype, {rows, columns});
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  uint32_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < tensor->bytes(); ++i) {
    state = state * 1664525u + 1013904223u;
    tensor->view().data()[i] = static_cast<std::byte>(state >> 24);
  }
  return std::move(tensor).value();
}

inline bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.view().data(), b.view().data(),
                                        static_cast<size_t>(a.bytes())) == 0);
}

// A stream header whose shape is that of TestTensor(dtype, rows, columns).
inline PacketHeader StreamHeader(uint64_t epoch, uint64_t step, int rows,
                                 int columns, DType dtype = DType::kBF16) {
  return {.epoch = Epoch(epoch),
          .step = StepId(step),
          .kind = PacketKind::kStream,
          .dtype = dtype,
          .rows = rows,
          .columns = columns};
}

// Sends the stream packet of `step`.
inline Status SendStep(End& from, StageId to, uint64_t epoch, uint64_t step,
                       int rows = 1, int columns = 16) {
  return from->Send(
      to, StreamHeader(epoch, step, rows, columns),
      TestTensor(DType::kBF16, rows, columns, static_cast<uint32_t>(step)));
}

}  // namespace baton::testing
