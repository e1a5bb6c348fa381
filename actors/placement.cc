// SPDX-License-Identifier: Apache-2.0
#include "actors/placement.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <unordered_set>

#include "kernels/ops/matmul.h"
#include "runtime/base/check.h"

namespace baton {
namespace {

// Where the bytes of `owner` are counted.
int64_t& PartOf(DecoderBytes& bytes, const TensorOwner& owner) {
  switch (owner.kind) {
    case TensorOwner::Kind::kEmbedding:
      return bytes.embedding;
    case TensorOwner::Kind::kFinal:
      return bytes.final;
    case TensorOwner::Kind::kLayer:
      break;
  }
  BATON_CHECK(owner.layer >= 0 &&
              owner.layer < static_cast<int>(bytes.layers.size()));
  return bytes.layers[static_cast<size_t>(owner.layer)];
}

// What cuts are made of: `units` things in a row, and what a run of them
// weighs. On a ring a unit is a physical layer, otherwise an unrolled one.
class Weigher {
 public:
  Weigher(const DecoderInfo& info, const DecoderBytes& bytes, RouteKind route)
      : layers_(info.num_layers),
        units_(route == RouteKind::kRing ? info.num_layers
                                         : info.unrolled_layers()),
        bytes_(bytes),
        before_(1, 0) {
    for (int i = 0; i < units_; ++i) {
      before_.push_back(before_.back() +
                        bytes.layers[static_cast<size_t>(i % layers_)]);
    }
  }

  [[nodiscard]] int units() const { return units_; }

  // Bytes of a stage that holds units [begin, end).
  [[nodiscard]] int64_t operator()(int begin, int end) const {
    const int distinct_end = std::min(end, begin + layers_);
    int64_t sum = before_[static_cast<size_t>(distinct_end)] -
                  before_[static_cast<size_t>(begin)];
    if (begin == 0) sum += bytes_.embedding;
    if (end == units_) sum += bytes_.final;
    return sum;
  }

 private:
  int layers_;
  int units_;
  const DecoderBytes& bytes_;
  std::vector<int64_t> before_;  // of the first i units
};

// Cuts of `stages` runs: the least cost by dynamic programming, where a run
// costs `cost(begin, end)` (infinity: not allowed) and costs are joined by
// `join`. Of equal ones the earliest cuts are taken.
template <typename Cost, typename Join>
std::vector<int> BestCuts(int units, int stages, Cost cost, Join join) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto n = static_cast<size_t>(units) + 1;
  const auto k = static_cast<size_t>(stages) + 1;
  std::vector<std::vector<double>> best(k, std::vector<double>(n, kNever));
  std::vector<std::vector<int>> from(k, std::vector<int>(n, 0));
  best[0][0] = 0;
  for (int s = 1; s < static_cast<int>(k); ++s) {
    for (int end = s; end <= units; ++end) {
      for (int begin = s - 1; begin < end; ++begin) {
        const double so_far =
            join(best[static_cast<size_t>(s) - 1][static_cast<size_t>(begin)],
                 cost(begin, end));
        double& least = best[static_cast<size_t>(s)][static_cast<size_t>(end)];
        if (so_far < least) {
          least = so_far;
          from[static_cast<size_t>(s)][static_cast<size_t>(end)] = begin;
        }
      }
    }
  }
  std::vector<int> cuts(k, units);
  for (int s = stages; s > 0; --s) {
    cuts[static_cast<size_t>(s) - 1] =
        from[static_cast<size_t>(s)]
            [static_cast<size_t>(cuts[static_cast<size_t>(s)])];
  }
  return cuts;
}

// Minimises the largest stage; among those cuts, the sum of squares.
std::vector<int> ChooseCuts(const Weigher& weigh, int stages) {
  const auto bytes = [&weigh](int begin, int end) {
    return static_cast<double>(weigh(begin, end));
  };
  const auto larger = [](double a, double b) { return std::max(a, b); };
  const std::vector<int> cuts = BestCuts(weigh.units(), stages, bytes, larger);
  double limit = 0;
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    limit = std::max(limit, bytes(cuts[s], cuts[s + 1]));
  }
  const auto squares = [&bytes, limit](int begin, int end) {
    const double size = bytes(begin, end);
    return size > limit ? std::numeric_limits<double>::infinity() : size * size;
  };
  return BestCuts(weigh.units(), stages, squares,
                  [](double a, double b) { return a + b; });
}

// The cuts that the stages' own layers say.
StatusOr<std::vector<int>> GivenCuts(std::span<const StageConfig> stages,
                                     int units, RouteKind route) {
  std::vector<int> cuts = {0};
  for (const StageConfig& stage : stages) {
    if (!stage.layers.has_value()) {
      return InvalidArgument("stage {}: layers are given for some stages only",
                             stage.name);
    }
    if (stage.layers->begin != cuts.back() ||
        stage.layers->end <= stage.layers->begin) {
      return InvalidArgument(
          "stage {}: layers [{}, {}), expected to begin at {} and hold one",
          stage.name, stage.layers->begin, stage.layers->end, cuts.back());
    }
    cuts.push_back(stage.layers->end);
  }
  if (cuts.back() != units) {
    return InvalidArgument("stages end at layer {}, the {} route has {}",
                           cuts.back(), Name(route), units);
  }
  return cuts;
}

std::set<int> PhysicalIn(const DecoderInfo& info, const StagePlacement& stage) {
  std::set<int> layers;
  for (const UnrolledRange& range : stage.ranges) {
    for (int i = range.begin; i < range.end; ++i) {
      layers.insert(i % info.num_layers);
    }
  }
  return layers;
}

// Adds what one rank holds.
void AddRank(DecoderBytes& bytes, std::span<const TensorDecl> tensors,
             DType dtype, int rank) {
  const auto packed = [&](int64_t n, int64_t k, int leaves) {
    return PackedBytesOn(bytes.device, n, k, leaves, dtype);
  };
  int64_t fused_rows = 0;  // of the packed matrix that may go on
  for (const TensorDecl& decl : tensors) {
    const int64_t rows = decl.split.NumRows(decl.shape[0], rank, bytes.ranks);
    const int64_t all = decl.shape.NumElements() / decl.shape[0];
    const int64_t columns = decl.split.Columns(all, rank, bytes.ranks).size();
    int64_t held = 0;
    switch (decl.form) {
      case TensorForm::kPlain:
        held = rows * columns * SizeOf(dtype);
        break;
      case TensorForm::kFloats:
        held = rows * columns * SizeOf(DType::kF32);
        break;
      case TensorForm::kTransposed:
        held = packed(columns, rows, MatmulLeaves(rows));
        break;
      case TensorForm::kPacked:
        fused_rows = 0;
        [[fallthrough]];
      case TensorForm::kPackedNext:
        held = packed(fused_rows + rows, columns, LeavesHeld(all, columns)) -
               packed(fused_rows, columns, LeavesHeld(all, columns));
        fused_rows += rows;
        break;
    }
    PartOf(bytes, decl.owner) += held;
    if (decl.owner.routed) bytes.routed += held;
  }
}

}  // namespace

DecoderBytes CountBytes(const DecoderInfo& info,
                        std::span<const TensorDecl> tensors, DType dtype,
                        DeviceKind device, int ranks) {
  DecoderBytes bytes;
  bytes.device = device;
  bytes.ranks = ranks;
  bytes.layers.assign(static_cast<size_t>(info.num_layers), 0);
  std::unordered_set<std::string> counted;
  for (const TensorDecl& decl : tensors) {
    if (counted.insert(decl.name).second) {
      bytes.parameters += decl.shape.NumElements();
    }
  }
  for (int rank = 0; rank < ranks; ++rank) AddRank(bytes, tensors, dtype, rank);
  return bytes;
}

StatusOr<Placement> PlaceStages(const DecoderInfo& info,
                                const DecoderBytes& bytes, RouteKind route,
                                std::span<const StageConfig> stages) {
  if (stages.empty()) return InvalidArgument("there are no stages");
  const Weigher weigh(info, bytes, route);
  const int count = static_cast<int>(stages.size());
  if (count > weigh.units()) {
    return InvalidArgument("{} stages for {} layers on the {} route", count,
                           weigh.units(), Name(route));
  }
  const bool given =
      std::any_of(stages.begin(), stages.end(),
                  [](const StageConfig& s) { return s.layers.has_value(); });
  std::vector<int> cuts;
  if (given) {
    BATON_ASSIGN_OR_RETURN(cuts, GivenCuts(stages, weigh.units(), route));
  } else {
    cuts = ChooseCuts(weigh, count);
  }

  Placement placement;
  placement.route = route;
  const bool one_pass = count == 1 || route == RouteKind::kUnrolled;
  placement.passes = one_pass ? 1 : info.num_loops;
  for (int s = 0; s < count; ++s) {
    StagePlacement stage;
    stage.name = stages[static_cast<size_t>(s)].name;
    stage.tp = stages[static_cast<size_t>(s)].tp;
    for (int pass = 0; pass < placement.passes; ++pass) {
      const int shift = pass * info.num_layers;
      stage.ranges.push_back({shift + cuts[static_cast<size_t>(s)],
                              shift + cuts[static_cast<size_t>(s) + 1]});
    }
    placement.stages.push_back(std::move(stage));
  }
  if (count == 1) {
    placement.stages[0].ranges = {{0, info.unrolled_layers()}};
  }
  return placement;
}

StageBytes PredictStageBytes(const DecoderInfo& info, const DecoderBytes& bytes,
                             const StagePlacement& stage,
                             const KvSizes& sizes) {
  BATON_CHECK(bytes.ranks == stage.tp);
  // A GPU keeps pages for rows of nobody (models/device_visits.h).
  KvSizes pools = sizes;
  if (bytes.device == DeviceKind::kCuda) {
    ++pools.pages;
    if (info.Window() > 0) ++pools.window_pages;
  }
  StageBytes held;
  for (int layer : PhysicalIn(info, stage)) {
    held.weights += bytes.layers[static_cast<size_t>(layer)];
  }
  if (stage.ranges.front().begin == 0) held.weights += bytes.embedding;
  if (stage.ranges.back().end == info.unrolled_layers()) {
    held.weights += bytes.final;
  }
  for (const UnrolledRange& range : stage.ranges) {
    for (int u = range.begin; u < range.end; ++u) {
      const LayerState& state = info.states[static_cast<size_t>(u)];
      held.kv += stage.tp * state.OfRank(stage.tp).Bytes(pools);
    }
  }
  return held;
}

std::vector<StageBytes> PredictBytes(const DecoderInfo& info,
                                     const DecoderBytes& bytes,
                                     const Placement& placement,
                                     const KvSizes& sizes) {
  std::vector<StageBytes> result;
  for (const StagePlacement& stage : placement.stages) {
    result.push_back(PredictStageBytes(info, bytes, stage, sizes));
  }
  return result;
}

}  // namespace baton
