// SPDX-License-Identifier: Apache-2.0
// `baton inspect`: what a checkpoint is, and whether its tensors are those of
// its decoder.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "actors/cli/cli.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "runtime/weights/file.h"

namespace baton {
namespace {

struct Flags {
  std::string checkpoint;
  std::string dtype = "bf16";
  bool tensors = false;
  int tp = 1;
};

bool HasWeights(const std::string& directory) {
  return PathExists(directory + "/model.safetensors") ||
         PathExists(directory + "/model.safetensors.index.json");
}

// What layers keep of a token: those of one kind together.
void PrintStates(const DecoderInfo& info) {
  const LayerState& first = info.states.front();
  if (first.kv_heads > 0) {
    std::printf("KV heads x dim     %lld x %lld\n",
                static_cast<long long>(first.kv_heads),
                static_cast<long long>(first.head_dim));
  }
  std::map<int64_t, std::pair<int, int64_t>> kinds;  // window to layers, bytes
  std::pair<int, int64_t> slots;                     // layers, bytes
  for (const LayerState& state : info.states) {
    if (state.slot_bytes > 0) {
      ++slots.first;
      slots.second += state.slot_bytes;
      continue;
    }
    auto& [layers, bytes] = kinds[state.window];
    ++layers;
    bytes += state.TokenBytes();
  }
  for (const auto& [window, kind] : kinds) {
    std::printf("KV bytes per token %s (%s)", Grouped(kind.second).c_str(),
                std::string(Name(first.dtype)).c_str());
    if (kind.first < info.unrolled_layers()) {
      std::printf(" in %d layers", kind.first);
    }
    if (window > 0) {
      std::printf(" with a window of %s", Grouped(window).c_str());
    }
    std::printf("\n");
  }
  if (slots.first > 0) {
    std::printf("bytes per sequence %s in %d layers\n",
                Grouped(slots.second).c_str(), slots.first);
  }
}

int64_t WeightBytes(const DecoderBytes& bytes) {
  int64_t weights = bytes.embedding + bytes.final;
  for (int64_t layer : bytes.layers) weights += layer;
  return weights;
}

// What each of `ranks` ranks, or which of them, holds of a tensor.
std::string ShareText(const TensorDecl& decl, int ranks) {
  const TensorSplit& split = decl.split;
  const int64_t all = decl.shape[0];
  const auto copies = [ranks](int64_t units) {
    return units >= ranks ? std::string()
                          : fmt::format(", each on {} ranks", ranks / units);
  };
  const std::vector<TensorSplit::Run> runs = split.Rows(all, 0, ranks);
  switch (split.kind) {
    case TensorSplit::Kind::kWhole:
      return "all on every rank";
    case TensorSplit::Kind::kRows:
      return fmt::format("{} rows", runs[0].size());
    case TensorSplit::Kind::kSomeRows:
      return fmt::format("{} rows{}", runs[0].size(), copies(split.units));
    case TensorSplit::Kind::kQueryKeyValue:
      return fmt::format("{} rows of queries; of keys and of values {} rows{}",
                         runs[0].size(), runs[1].size(),
                         copies(split.kv_units));
    case TensorSplit::Kind::kOneOf:
      return fmt::format("all on rank {}", split.unit * ranks / split.units);
    case TensorSplit::Kind::kColumns: {
      const int64_t columns = decl.shape.NumElements() / all;
      return fmt::format("{} columns", split.Columns(columns, 0, ranks).size());
    }
  }
  return "";
}

// Every tensor once; of several ranks with what each holds.
void PrintTensors(std::span<const TensorDecl> tensors, int ranks) {
  std::set<std::string> listed;
  for (const TensorDecl& decl : tensors) {
    // Of an embedding a rank has columns, of the tied head rows.
    const std::string share =
        ranks == 1 ? "" : fmt::format(": {}", ShareText(decl, ranks));
    if (!listed.insert(decl.name + share).second) continue;
    std::printf("%s %s%s\n", decl.name.c_str(), ToString(decl.shape).c_str(),
                share.c_str());
  }
}

void PrintFacts(const OpenedModel& model, const DecoderBytes& bytes) {
  const DecoderInfo& info = model.info;
  std::printf("decoder            %s\n", info.architecture.c_str());
  std::printf("parameters         %s\n", Grouped(bytes.parameters).c_str());
  std::printf("layers             %d", info.num_layers);
  if (info.num_loops > 1) {
    std::printf(" x %d loops = %d unrolled", info.num_loops,
                info.unrolled_layers());
  }
  std::printf("\nhidden             %lld\n",
              static_cast<long long>(info.hidden));
  std::printf("vocabulary         %lld\n", static_cast<long long>(info.vocab));
  std::printf("context            %lld\n",
              static_cast<long long>(info.max_positions));
  PrintStates(info);
  std::printf("weights in memory  %s\n",
              HumanBytes(WeightBytes(bytes)).c_str());
  std::string eos;
  for (int32_t id : model.eos_ids) eos += fmt::format(" {}", id);
  std::printf("end tokens        %s\n", eos.empty() ? " none" : eos.c_str());
}

Status Inspect(const Flags& flags) {
  BATON_ASSIGN_OR_RETURN(const DType dtype, ParseComputeDType(flags.dtype));
  BATON_ASSIGN_OR_RETURN(
      const OpenedModel model,
      OpenModel(flags.checkpoint, dtype, WeightsCheck::kConfigOnly));
  BATON_RETURN_IF_ERROR(CheckRanks(model.tensors, flags.tp));
  PrintFacts(model, CountBytes(model.info, model.tensors, dtype));
  if (flags.tp > 1) {
    const int64_t all = WeightBytes(CountBytes(model.info, model.tensors, dtype,
                                               DeviceKind::kCpu, flags.tp));
    std::printf("weights a rank     %s bytes on each of %d\n",
                Grouped(all / flags.tp).c_str(), flags.tp);
  }
  if (flags.tensors || flags.tp > 1) PrintTensors(model.tensors, flags.tp);
  if (!HasWeights(flags.checkpoint)) {
    std::printf("tensors            no weights here, config.json only\n");
    return OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(flags.checkpoint));
  if (Status status = checkpoint->Check(model.tensors); !status.ok()) {
    std::printf("tensors            %zu, not those of the decoder\n",
                checkpoint->tensors().size());
    return status;
  }
  std::printf("tensors            %zu, as the decoder declares\n",
              checkpoint->tensors().size());
  return OkStatus();
}

}  // namespace

void AddInspect(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "inspect", "Describe a checkpoint and check its tensors");
  sub->add_option("checkpoint", flags->checkpoint,
                  "Hugging Face directory; a config.json alone will do")
      ->required();
  sub->add_option("--dtype", flags->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  sub->add_flag("--tensors", flags->tensors, "list the declared tensors");
  sub->add_option("--tp", flags->tp,
                  "ranks: list what each holds of every tensor");
  sub->callback([flags, exit_code] {
    if (Status status = Inspect(*flags); !status.ok()) {
      *exit_code = Fail(status);
    }
  });
}

}  // namespace baton
