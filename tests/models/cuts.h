// SPDX-License-Identifier: Apache-2.0
// Placements of a decoder's unrolled layers on stages.
#pragma once

#include <vector>

#include "tests/models/pipeline.h"

namespace baton::testing {

// Stages that hold physical layers [cuts[i], cuts[i+1]) and are visited once
// per loop.
inline Stages Ring(const DecoderInfo& info, const std::vector<int>& cuts) {
  Stages stages;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<UnrolledRange>& ranges = stages.emplace_back();
    for (int loop = 0; loop < info.num_loops; ++loop) {
      const int first = loop * info.num_layers;
      ranges.push_back({first + cuts[i], first + cuts[i + 1]});
    }
  }
  return stages;
}

// Stages that hold unrolled layers [cuts[i], cuts[i+1]).
inline Stages Unrolled(const std::vector<int>& cuts) {
  Stages stages;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    stages.push_back({{cuts[i], cuts[i + 1]}});
  }
  return stages;
}

// Every way to cut `layers` into stages: all stage counts, all cuts.
inline std::vector<std::vector<int>> AllCuts(int layers) {
  std::vector<std::vector<int>> all;
  for (int mask = 0; mask < 1 << (layers - 1); ++mask) {
    std::vector<int>& cuts = all.emplace_back(1, 0);
    for (int cut = 1; cut < layers; ++cut) {
      if (mask >> (cut - 1) & 1) cuts.push_back(cut);
    }
    cuts.push_back(layers);
  }
  return all;
}

// Every placement of the decoder: all ring cuts, and for a looped one all
// unrolled cuts too.
inline std::vector<Stages> AllPlacements(const DecoderInfo& info) {
  std::vector<Stages> all;
  for (const std::vector<int>& cuts : AllCuts(info.num_layers)) {
    all.push_back(Ring(info, cuts));
  }
  if (info.num_loops > 1) {
    for (const std::vector<int>& cuts : AllCuts(info.unrolled_layers())) {
      all.push_back(Unrolled(cuts));
    }
  }
  return all;
}

inline std::string ToString(const Stages& stages) {
  std::string text;
  for (const std::vector<UnrolledRange>& ranges : stages) {
    text += "|";
    for (UnrolledRange r : ranges) {
      text += fmt::format(" [{},{})", r.begin, r.end);
    }
  }
  return text;
}

}  // namespace baton::testing
