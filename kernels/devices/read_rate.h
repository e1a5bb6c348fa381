// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "runtime/base/read_probe.h"
#include "runtime/base/status.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/device.h"

namespace baton {

// How fast a device reads its own memory: what decode speed is measured
// against. Owner thread: the one that made it.
class ReadRate {
 public:
  virtual ~ReadRate() = default;
  // Reads a block that no cache holds, once; bytes per second.
  [[nodiscard]] virtual StatusOr<double> Measure() = 0;

  // `threads`: of a CPU. ResourceExhausted: no memory for the block.
  [[nodiscard]] static StatusOr<std::unique_ptr<ReadRate>> Of(Device& device,
                                                              int threads);
};

}  // namespace baton
