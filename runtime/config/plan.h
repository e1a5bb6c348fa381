// SPDX-License-Identifier: Apache-2.0
// Where layers run: the route of a step over stages, and the controller's
// config file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/tensor/dtype.h"

namespace baton {

// Unrolled layers [begin, end).
struct UnrolledRange {
  int begin = 0;
  int end = 0;
  friend bool operator==(const UnrolledRange&, const UnrolledRange&) = default;
};

// How a looped decoder's unrolled layers lie on stages. Without loops the two
// are the same.
enum class RouteKind {
  kRing,      // a stage holds physical layers; a step visits it once per loop
  kUnrolled,  // a stage holds a run of unrolled layers; one visit a step
};
[[nodiscard]] std::string_view Name(RouteKind kind);
// "ring" or "unrolled".
[[nodiscard]] StatusOr<RouteKind> ParseRoute(const std::string& text);
// "bf16" or "f32": what decoders compute in.
[[nodiscard]] StatusOr<DType> ParseComputeDType(const std::string& text);
// HOST:PORT, as it is. InvalidArgument: no host, or a port that is no number up
// to 65535.
[[nodiscard]] StatusOr<std::string> ParseAddress(const std::string& text);

struct StagePlacement {
  std::string name;
  std::vector<UnrolledRange> ranges;  // one per pass of the route
  int tp = 1;                         // ranks that share its layers
  friend bool operator==(const StagePlacement&,
                         const StagePlacement&) = default;
};

// A route: `passes` times over the stages in order.
struct Placement {
  RouteKind route = RouteKind::kRing;
  int passes = 1;
  std::vector<StagePlacement> stages;

  [[nodiscard]] int num_stages() const {
    return static_cast<int>(stages.size());
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

// The controller's config file (YAML); deploy/README.md documents each key.
struct StageConfig {
  std::string name;
  // Half-open; physical layers on a ring route, unrolled layers otherwise.
  // Absent on all stages: the planner splits by bytes.
  std::optional<UnrolledRange> layers;
  int tp = 1;  // ranks that share the layers: 1, 2, 4 or 8
};
struct ServeConfig {
  std::string checkpoint;
  RouteKind route = RouteKind::kRing;
  DType dtype = DType::kBF16;
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen;  // empty: none
  std::vector<StageConfig> stages;
  int64_t kv_tokens = 0;      // 0: enough for `max_sequences` x 2k, capped
  int prefill_chunk = 256;    // prompt tokens of a sequence in a step; 0: all
  int max_step_tokens = 512;  // rows of a step
  int max_sequences = 64;     // running at once
  int max_queue = 1024;       // waiting
  int micro_batches = 0;      // 0: as many as stages
  absl::Duration step_deadline = absl::Seconds(60);
  absl::Duration load_deadline = absl::Minutes(30);
  absl::Duration join_deadline = absl::Minutes(2);
  absl::Duration lease = absl::Seconds(3);
};

// What the values of a config must be to each other. InvalidArgument: a step
// cannot hold a token of each sequence.
[[nodiscard]] Status CheckServeConfig(const ServeConfig& config);

// InvalidArgument: "FILE:LINE: what is wrong": unknown or repeated key, wrong
// type, out of range, no stages, repeated stage name, layers on some stages
// only, layers empty, left out or twice (as far as the file alone tells: they
// must start at 0 and be contiguous).
[[nodiscard]] StatusOr<ServeConfig> ParseServeConfig(const std::string& text,
                                                     const std::string& file);

}  // namespace baton
