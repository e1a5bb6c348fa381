// SPDX-License-Identifier: Apache-2.0
// `baton plan`: which stage would get which layers and bytes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "actors/cli/cli.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "actors/serve_plan.h"
#include "kernels/devices/devices.h"

namespace baton {
namespace {

struct Flags {
  std::string checkpoint;
  std::string config;
  int stages = 1;
  int tp = 1;
  std::string route;
  std::string dtype;
  std::string device = "cpu";
  int64_t kv_tokens = 0;
};

StatusOr<ServeConfig> ConfigOf(const Flags& flags) {
  ServeConfig config;
  if (flags.config.empty()) {
    config.stages = NumberedStages(flags.stages, flags.tp);
  } else {
    BATON_ASSIGN_OR_RETURN(config, ReadServeConfig(flags.config));
  }
  if (!flags.checkpoint.empty()) config.checkpoint = flags.checkpoint;
  if (!flags.route.empty()) {
    BATON_ASSIGN_OR_RETURN(config.route, ParseRoute(flags.route));
  }
  if (!flags.dtype.empty()) {
    BATON_ASSIGN_OR_RETURN(config.dtype, ParseComputeDType(flags.dtype));
  }
  if (flags.kv_tokens > 0) config.kv_tokens = flags.kv_tokens;
  if (config.checkpoint.empty()) {
    return InvalidArgument("no checkpoint is given");
  }
  return config;
}

std::string RangesText(const StagePlacement& stage) {
  std::string text;
  for (const UnrolledRange& range : stage.ranges) {
    text += fmt::format("{}[{}, {})", text.empty() ? "" : " ", range.begin,
                        range.end);
  }
  return text;
}

Status Plan(const Flags& flags) {
  BATON_ASSIGN_OR_RETURN(const ServeConfig config, ConfigOf(flags));
  BATON_ASSIGN_OR_RETURN(
      const OpenedModel model,
      OpenModel(config.checkpoint, config.dtype, WeightsCheck::kConfigOnly));
  BATON_ASSIGN_OR_RETURN(const DeviceKind device,
                         ParseDeviceKind(flags.device));
  const DecoderBytes bytes =
      CountBytes(model.info, model.tensors, config.dtype, device);
  BATON_ASSIGN_OR_RETURN(
      const Placement placement,
      PlaceStages(model.info, bytes, config.route, config.stages));
  BATON_ASSIGN_OR_RETURN(const ControllerOptions controller,
                         PlanController(config, model));
  const SchedulerOptions scheduler = SchedulerOf(controller);
  const KvSizes sizes = {.pages = scheduler.kv_pages,
                         .window_pages = scheduler.window_pages,
                         .state_slots = scheduler.state_slots};

  std::printf("%s: %s parameters, %d layers x %d loops, %s\n",
              model.info.architecture.c_str(),
              Grouped(bytes.parameters).c_str(), model.info.num_layers,
              model.info.num_loops, std::string(Name(config.dtype)).c_str());
  std::printf("route %s, %d passes, KV for %s tokens",
              std::string(Name(config.route)).c_str(), placement.passes,
              Grouped(scheduler.kv_pages * kPageTokens).c_str());
  if (scheduler.window > 0) {
    std::printf(", of layers with a window for %s",
                Grouped(scheduler.window_pages * kPageTokens).c_str());
  }
  std::printf("\n\n");
  std::printf("%-16s %2s %12s %12s %12s  %s\n", "stage", "tp", "weights", "kv",
              "total", "unrolled layers, pass by pass");
  StageBytes all;
  for (const StagePlacement& stage : placement.stages) {
    const StageBytes held = PredictStageBytes(
        model.info,
        CountBytes(model.info, model.tensors, config.dtype, device, stage.tp),
        stage, sizes);
    std::printf("%-16s %2d %12s %12s %12s  %s\n", stage.name.c_str(), stage.tp,
                HumanBytes(held.weights).c_str(), HumanBytes(held.kv).c_str(),
                HumanBytes(held.weights + held.kv).c_str(),
                RangesText(stage).c_str());
    all.weights += held.weights;
    all.kv += held.kv;
  }
  std::printf("%-19s %12s %12s %12s\n", "all", HumanBytes(all.weights).c_str(),
              HumanBytes(all.kv).c_str(),
              HumanBytes(all.weights + all.kv).c_str());
  return OkStatus();
}

}  // namespace

void AddPlan(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "plan", "Print which stage would get which layers; change nothing");
  sub->add_option("checkpoint", flags->checkpoint,
                  "Hugging Face directory; its config.json is enough");
  CLI::Option* config =
      sub->add_option("--config", flags->config, "the controller's YAML file");
  sub->add_option("--stages", flags->stages, "number of stages")
      ->check(CLI::Range(1, 1024))
      ->excludes(config);
  sub->add_option("--tp", flags->tp, "ranks that share a stage's layers")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->excludes(config);
  sub->add_option("--route", flags->route, "ring or unrolled")
      ->check(CLI::IsMember({"ring", "unrolled"}));
  sub->add_option("--dtype", flags->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  sub->add_option("--device", flags->device,
                  "what the stages run on, cpu or cuda: it packs weights");
  sub->add_option("--kv-tokens", flags->kv_tokens,
                  "tokens the KV cache holds; default: as serve")
      ->check(CLI::PositiveNumber);
  sub->callback([flags, exit_code] {
    if (Status status = Plan(*flags); !status.ok()) *exit_code = Fail(status);
  });
}

}  // namespace baton
