// SPDX-License-Identifier: Apache-2.0
// Which stage gets which layers: a pure function of byte counts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "runtime/base/status.h"
#include "runtime/config/plan.h"

namespace baton {

// Bytes of a checkpoint's parts in the compute dtype, packed as a kind of
// device holds them.
struct DecoderBytes {
  DeviceKind device = DeviceKind::kCpu;
  int ranks = 1;  // that share every part; their copies are counted
  int64_t embedding = 0;
  int64_t final = 0;            // last norm and head
  std::vector<int64_t> layers;  // physical
  int64_t routed = 0;           // of all layers, what experts have
  int64_t parameters = 0;       // elements, whole checkpoint; each tensor once
};
[[nodiscard]] DecoderBytes CountBytes(const DecoderInfo& info,
                                      std::span<const TensorDecl> tensors,
                                      DType dtype,
                                      DeviceKind device = DeviceKind::kCpu,
                                      int ranks = 1);

// Splits a decoder over named stages. Where `layers` is given for every stage
// it is taken (physical layers on a ring, unrolled layers otherwise); where for
// none, cuts minimise the largest stage's weight bytes. One stage always gets
// one pass. InvalidArgument: more stages than layers, layers left out or twice,
// layers of some stages only.
[[nodiscard]] StatusOr<Placement> PlaceStages(
    const DecoderInfo& info, const DecoderBytes& bytes, RouteKind route,
    std::span<const StageConfig> stages);

// What a stage will hold, all its ranks together; the same arithmetic as
// loading. CHECKs that `bytes` were counted for as many ranks.
struct StageBytes {
  int64_t weights = 0;
  int64_t kv = 0;
};
[[nodiscard]] StageBytes PredictStageBytes(const DecoderInfo& info,
                                           const DecoderBytes& bytes,
                                           const StagePlacement& stage,
                                           const KvSizes& sizes);
// Of stages that all have as many.
[[nodiscard]] std::vector<StageBytes> PredictBytes(const DecoderInfo& info,
                                                   const DecoderBytes& bytes,
                                                   const Placement& placement,
                                                   const KvSizes& sizes);

}  // namespace baton
