// SPDX-License-Identifier: Apache-2.0
#include "actors/cli/parity_plan.h"

#include <algorithm>
#include <sstream>

namespace baton {
namespace {

std::string StageName(size_t i) { return fmt::format("s{}", i); }

std::vector<StageConfig> Stages(size_t count) {
  std::vector<StageConfig> stages(count);
  for (size_t i = 0; i < count; ++i) stages[i].name = StageName(i);
  return stages;
}

}  // namespace

StatusOr<std::vector<Placement>> ParityPlacements(const OpenedModel& model,
                                                  const DecoderBytes& bytes,
                                                  RouteKind route,
                                                  const std::string& pp) {
  const int layers = route == RouteKind::kRing ? model.info.num_layers
                                               : model.info.unrolled_layers();
  std::vector<std::vector<StageConfig>> wanted;
  if (pp == "all") {
    wanted.push_back(Stages(1));
    for (int cut = 1; cut < layers; ++cut) {
      std::vector<StageConfig> two = Stages(2);
      two[0].layers = UnrolledRange{0, cut};
      two[1].layers = UnrolledRange{cut, layers};
      wanted.push_back(std::move(two));
    }
    for (int count = 3; count <= layers; ++count) {
      wanted.push_back(Stages(static_cast<size_t>(count)));
    }
  } else {
    std::stringstream list(pp);
    for (std::string item; std::getline(list, item, ',');) {
      char* end = nullptr;
      const long count = std::strtol(item.c_str(), &end, 10);
      if (item.empty() || *end != '\0' || count < 1 || count > 4096) {
        return InvalidArgument("--pp {}: expected stage counts or all", pp);
      }
      wanted.push_back(Stages(static_cast<size_t>(count)));
    }
  }
  std::vector<Placement> placements;
  for (const std::vector<StageConfig>& stages : wanted) {
    BATON_ASSIGN_OR_RETURN(Placement placement,
                           PlaceStages(model.info, bytes, route, stages));
    placements.push_back(std::move(placement));
  }
  return placements;
}

std::vector<Placement> WithRanks(const std::vector<Placement>& placements,
                                 const std::vector<int>& ranks) {
  std::vector<Placement> all;
  for (int tp : ranks) {
    for (Placement placement : placements) {
      for (StagePlacement& stage : placement.stages) stage.tp = tp;
      all.push_back(std::move(placement));
    }
  }
  return all;
}

Status CheckHops(const std::vector<Placement>& placements) {
  for (const Placement& placement : placements) {
    if (placement.num_stages() > 1) return OkStatus();
  }
  return InvalidArgument(
      "--canary: a single stage has no hop where a bit could flip, expected "
      "--pp with 2 or more");
}

std::string CutName(const Placement& placement) {
  std::string name = fmt::format("pp={}", placement.num_stages());
  if (placement.num_stages() > 1) name += " cut=";
  for (int i = 1; i < placement.num_stages(); ++i) {
    name += fmt::format(
        "{}{}", i > 1 ? "," : "",
        placement.stages[static_cast<size_t>(i)].ranges.front().begin);
  }
  const int tp = placement.stages[0].tp;
  if (tp > 1) name += fmt::format(" tp={}", tp);
  return name;
}

std::vector<Request> ParityRequests(const OpenedModel& model,
                                    const std::vector<GoldenCase>& golden,
                                    int max_tokens) {
  std::vector<Request> requests;
  auto add = [&](std::vector<int32_t> prompt, int64_t tokens) {
    Request r;
    r.id = fmt::format("case-{}", requests.size());
    r.prompt = std::move(prompt);
    r.max_tokens = max_tokens > 0 ? max_tokens : tokens;
    r.sampling.top_logprobs = golden.empty() ? 8 : kGoldenTop;
    r.sampling.prompt_logprobs = r.sampling.top_logprobs;
    r.sampling.digest = true;
    requests.push_back(std::move(r));
  };
  for (const GoldenCase& c : golden) {
    add(c.prompt, static_cast<int64_t>(c.greedy.size()));
  }
  uint64_t state = 1;
  for (int length : {5, 17, 70}) {
    if (!golden.empty()) break;
    std::vector<int32_t> prompt;
    for (int i = 0; i < length; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      prompt.push_back(static_cast<int32_t>(
          (state >> 33) % static_cast<uint64_t>(model.info.vocab)));
    }
    add(std::move(prompt), 32);
  }
  return requests;
}

std::vector<Request> BatchMates(const std::vector<Request>& cases, size_t i,
                                int count) {
  std::vector<Request> mates;
  for (int k = 0; k < count; ++k) {
    Request mate = cases[(i + 1 + static_cast<size_t>(k)) % cases.size()];
    mate.id = fmt::format("mate-{}", k);
    std::rotate(
        mate.prompt.begin(),
        mate.prompt.begin() + (k % static_cast<int>(mate.prompt.size())),
        mate.prompt.end());
    mate.max_tokens = std::max<int64_t>(1, mate.max_tokens - 5 * k);
    mate.sampling = {};
    mate.sampling.temperature = 0.8F;
    mate.sampling.seed = static_cast<uint64_t>(k);
    mates.push_back(std::move(mate));
  }
  return mates;
}

ControllerOptions ParityController(const OpenedModel& model,
                                   const Placement& placement, DType dtype,
                                   int chunk, int64_t kv_tokens) {
  ControllerOptions options;
  options.placement = placement;
  options.decoder = model.info;
  options.checkpoint = model.directory;
  options.config = model.config_text;
  options.dtype = dtype;
  options.scheduler.slots = 0;
  options.scheduler.prefill_chunk = chunk;
  options.scheduler.kv_pages = (kv_tokens + kPageTokens - 1) / kPageTokens;
  return options;
}

int64_t KvTokensFor(const std::vector<Request>& cases, int batch) {
  int64_t longest = 0;
  for (const Request& r : cases) {
    longest =
        std::max(longest, static_cast<int64_t>(r.prompt.size()) + r.max_tokens);
  }
  return (longest + kPageTokens) * batch;
}

StatusOr<std::vector<Completion>> RunAlone(const OpenedModel& model,
                                           DType dtype,
                                           LocalStagesOptions where,
                                           const std::vector<Request>& cases) {
  const std::vector<StageConfig> one = Stages(1);
  BATON_ASSIGN_OR_RETURN(
      Placement placement,
      PlaceStages(model.info, CountBytes(model.info, model.tensors, dtype),
                  RouteKind::kRing, one));
  where.names = {one[0].name};
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<LocalStages> stages,
                         LocalStages::Start(where));
  ControllerHost controller(
      ParityController(model, placement, dtype, 0, KvTokensFor(cases, 1)),
      stages.get());
  BATON_RETURN_IF_ERROR(controller.WaitUntilServing(absl::Minutes(10)));
  std::vector<Completion> completions;
  for (const Request& request : cases) {
    std::vector<StatusOr<Completion>> runs =
        RunRequests(controller.ref(), {request});
    BATON_RETURN_IF_ERROR(runs[0].status());
    completions.push_back(*std::move(runs[0]));
  }
  return completions;
}

}  // namespace baton
