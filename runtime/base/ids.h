// SPDX-License-Identifier: Apache-2.0
// Strong ids: each is an integer that mixes with no other.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace baton {

template <typename Tag, typename Rep>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

using StageId = Id<struct StageTag, int>;           // place in the pipeline
using LayerIndex = Id<struct LayerTag, int>;        // physical layer
using UnrolledLayer = Id<struct UnrolledTag, int>;  // loop * num_layers + layer
using SequenceId = Id<struct SequenceTag, uint64_t>;
using StepId = Id<struct StepTag, uint64_t>;    // numbered by the controller
using RoundId = Id<struct RoundTag, uint64_t>;  // steps issued together
using Epoch = Id<struct EpochTag, uint64_t>;    // lifetime of a placement
using PageId = int32_t;  // index into every KV pool of its kind

// Tokens of one layer that a KV page holds.
inline constexpr int64_t kPageTokens = 16;
[[nodiscard]] constexpr int64_t PagesFor(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

}  // namespace baton

template <typename Tag, typename Rep>
struct std::hash<baton::Id<Tag, Rep>> {
  size_t operator()(baton::Id<Tag, Rep> id) const {
    return std::hash<Rep>()(id.value());
  }
};
