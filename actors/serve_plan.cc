// SPDX-License-Identifier: Apache-2.0
#include "actors/serve_plan.h"

#include <algorithm>

#include "kernels/ops/matmul.h"

namespace baton {
namespace {

constexpr int64_t kDefaultTokensPerSequence = 2048;
constexpr int64_t kDefaultKvBytes = int64_t{8} << 30;

}  // namespace

int64_t KvTokens(const ServeConfig& config, const DecoderInfo& info,
                 const DecoderBytes& bytes) {
  int64_t tokens = config.kv_tokens;
  if (tokens == 0) {
    const int64_t per_sequence =
        std::min(kDefaultTokensPerSequence, info.max_positions);
    const int64_t affordable =
        kDefaultKvBytes /
        std::max<int64_t>(1, bytes.kv_per_token * info.unrolled_layers());
    tokens =
        std::max(kPageTokens, std::min(config.max_sequences * per_sequence,
                                       affordable / kPageTokens * kPageTokens));
  }
  return PadTo(tokens, kPageTokens);
}

StatusOr<ControllerOptions> PlanController(const ServeConfig& config,
                                           const OpenedModel& model) {
  BATON_RETURN_IF_ERROR(CheckServeConfig(config));
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
  options.scheduler.slots = config.micro_batches;
  options.scheduler.prefill_chunk = config.prefill_chunk;
  options.scheduler.max_step_tokens = config.max_step_tokens;
  options.scheduler.max_sequences = config.max_sequences;
  options.scheduler.max_queue = config.max_queue;
  options.scheduler.kv_pages =
      KvTokens(config, model.info, bytes) / kPageTokens;
  options.step_deadline = config.step_deadline;
  options.load_deadline = config.load_deadline;
  return options;
}

}  // namespace baton
