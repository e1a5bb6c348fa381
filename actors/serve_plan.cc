// SPDX-License-Identifier: Apache-2.0
#include "actors/serve_plan.h"

#include <algorithm>

#include "kernels/ops/matmul.h"

namespace baton {
namespace {

constexpr int64_t kDefaultTokensPerSequence = 2048;
constexpr int64_t kDefaultKvBytes = int64_t{8} << 30;

SchedulerOptions SchedulerFor(const ServeConfig& config) {
  SchedulerOptions options;
  options.slots = config.micro_batches;
  options.prefill_chunk = config.prefill_chunk;
  options.max_step_tokens = config.max_step_tokens;
  options.max_sequences = config.max_sequences;
  options.max_queue = config.max_queue;
  return options;
}

// Of all layers' pools, as the stage with the most ranks would keep them.
int64_t KvBytes(const ServeConfig& config, const DecoderInfo& info,
                int64_t pages) {
  SchedulerOptions options = SchedulerFor(config);
  options.kv_pages = pages;
  options.window = info.Window();
  const KvSizes sizes = {.pages = pages,
                         .window_pages = EnoughWindowPages(options),
                         .state_slots = config.max_sequences};
  int ranks = 1;
  for (const StageConfig& stage : config.stages) {
    ranks = std::max(ranks, stage.tp);
  }
  int64_t bytes = 0;
  for (const LayerState& layer : info.states) {
    bytes += ranks * layer.OfRank(ranks).Bytes(sizes);
  }
  return bytes;
}

}  // namespace

int64_t KvTokens(const ServeConfig& config, const DecoderInfo& info) {
  if (config.kv_tokens > 0) return PadTo(config.kv_tokens, kPageTokens);
  int64_t least = 1;
  int64_t most =
      PagesFor(config.max_sequences *
               std::min(kDefaultTokensPerSequence, info.max_positions));
  while (least < most) {
    const int64_t pages = (least + most + 1) / 2;
    if (KvBytes(config, info, pages) <= kDefaultKvBytes) {
      least = pages;
    } else {
      most = pages - 1;
    }
  }
  return least * kPageTokens;
}

StatusOr<ControllerOptions> PlanController(const ServeConfig& config,
                                           const OpenedModel& model) {
  BATON_RETURN_IF_ERROR(CheckServeConfig(config));
  for (const StageConfig& stage : config.stages) {
    if (Status shared = CheckRanks(model.tensors, stage.tp); !shared.ok()) {
      return Annotate(shared, fmt::format("stage {}", stage.name));
    }
  }
  const DecoderBytes bytes =
      CountBytes(model.info, model.tensors, config.dtype);
  ControllerOptions options;
  BATON_ASSIGN_OR_RETURN(
      options.placement,
      PlaceStages(model.info, bytes, config.route, config.stages));
  options.decoder = model.info;
  options.checkpoint = model.directory;
  options.config = model.config_text;
  options.dtype = config.dtype;
  options.scheduler = SchedulerFor(config);
  options.scheduler.kv_pages = KvTokens(config, model.info) / kPageTokens;
  options.step_deadline = config.step_deadline;
  options.load_deadline = config.load_deadline;
  return options;
}

}  // namespace baton
