// SPDX-License-Identifier: Apache-2.0
// The one implementation of StageSlice: runs any DecoderModel's layers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/ops/sample.h"
#include "models/decoder.h"
#include "models/decoder_layer.h"
#include "models/layers/embedding.h"
#include "models/layers/lm_head.h"
#include "models/layers/norm.h"
#include "models/loop_plan.h"
#include "models/ranked_slice.h"
#include "models/residual/boundary.h"
#include "models/slice_parts.h"
#include "models/step.h"
#include "models/visit_check.h"
#include "runtime/kv/kv_cache.h"

namespace baton {

// A stage's weights: each physical layer once, however many loops visit it;
// the ends only where the stage has them.
template <DecoderModel M>
struct SliceWeights {
  std::optional<TokenEmbedding> embedding;
  std::map<LayerIndex, typename M::Layer> layers;
  std::optional<Norm> final_norm;
  std::optional<LmHead> head;

  SliceWeights(const typename M::Config& c, const SliceParts& parts,
               WeightLoader& loader) {
    const WeightScope first(loader, {.kind = TensorOwner::Kind::kEmbedding},
                            "");
    const WeightScope last(loader, {.kind = TensorOwner::Kind::kFinal}, "");
    if (parts.embedding) {
      embedding.emplace(first, M::kNames.embedding, c.vocab, c.hidden());
    }
    for (LayerIndex layer : parts.layers) {
      const WeightScope scope(
          loader, {.kind = TensorOwner::Kind::kLayer, .layer = layer.value()},
          fmt::format("model.layers.{}.", layer.value()));
      layers.try_emplace(layer, c, scope);
    }
    if (parts.final_norm) {
      final_norm.emplace(last, M::kNames.final_norm, c.hidden(), c.eps);
    }
    if (parts.head) head.emplace(last, HeadRows(M::kNames, c), c.hidden());
  }

  // What it would load.
  static WeightLoader Declare(const typename M::Config& c,
                              const SliceParts& parts) {
    WeightLoader loader;
    [[maybe_unused]] const SliceWeights none(c, parts, loader);
    return loader;
  }
};

template <DecoderModel M>
DecoderInfo Describe(const typename M::Config& c, DType dtype) {
  DecoderInfo info = c.Info(std::string(M::kArchitecture));
  info.stream_dtype = c.StreamType(dtype);
  for (int u = 0; u < info.unrolled_layers(); ++u) {
    info.states.push_back(c.State(LayerIndex(u % info.num_layers), dtype));
  }
  return info;
}

// Owner thread: the stage's.
template <DecoderModel M>
class DecoderSlice final : public StageSlice {
 public:
  using Config = typename M::Config;
  using Between = typename M::Layer::Between;
  // Between layers: Written after the entry, a capture or a loop's end.
  using Form =
      std::conditional_t<std::is_same_v<Between, Written>,
                         std::variant<Written>, std::variant<Written, Between>>;

  static StatusOr<std::unique_ptr<StageSlice>> Build(
      const ModelConfig& model_config, const SliceOptions& options) {
    BATON_ASSIGN_OR_RETURN(Config config, M::Read(model_config));
    const DecoderInfo info = Describe<M>(config, options.dtype);
    BATON_RETURN_IF_ERROR(CheckRanges(info, options.ranges));
    const SliceParts parts = PartsOf(info, options.ranges);
    const WeightLoader declared = SliceWeights<M>::Declare(config, parts);
    const int ranks = options.tp == nullptr ? 1 : options.tp->size();
    BATON_RETURN_IF_ERROR(
        CheckRanks(declared.declared(), ranks, options.device->kind()));
    WeightLoader loader(options, declared.elements());
    SliceWeights<M> weights(config, parts, loader);
    BATON_RETURN_IF_ERROR(loader.status());
    BATON_ASSIGN_OR_RETURN(SliceRuntime runtime,
                           SliceRuntime::Create(info, options));
    return std::unique_ptr<StageSlice>(new DecoderSlice(
        std::move(config), info, options.ranges, std::move(weights),
        loader.bytes(), std::move(runtime)));
  }

  StatusOr<VisitResult> Run(const VisitArgs& args) override {
    BATON_RETURN_IF_ERROR(
        CheckVisit(info_, ranges_, runtime_.sizes, TokenSlots(), args));
    if (runtime_.visits != nullptr) {
      return runtime_.visits->Run(
          args, info_,
          [this](const VisitArgs& there, const Step::Parts& parts,
                 VisitResult& result) { return Visit(there, parts, result); });
    }
    VisitResult result;
    BATON_RETURN_IF_ERROR(Visit(args, runtime_.StepParts(args.batch), result));
    return result;
  }

  int64_t WeightBytes() const override { return weight_bytes_; }
  int64_t KvBytes() const override { return runtime_.kv.bytes(); }
  int32_t TokenSlots() const override {
    return runtime_.visits == nullptr ? 0 : DeviceVisits::kTokenSlots;
  }

 private:
  DecoderSlice(Config config, const DecoderInfo& info,
               std::vector<UnrolledRange> ranges, SliceWeights<M> weights,
               int64_t weight_bytes, SliceRuntime runtime)
      : config_(std::move(config)),
        info_(info),
        loops_(info.num_layers, info.num_loops),
        ranges_(std::move(ranges)),
        weights_(std::move(weights)),
        weight_bytes_(weight_bytes),
        runtime_(std::move(runtime)) {}

  // Submits a visit whose arrays are in the memory of the device.
  Status Visit(const VisitArgs& args, const Step::Parts& parts,
               VisitResult& result) const {
    Step step(parts, args.step);
    BATON_ASSIGN_OR_RETURN(Form stream, Enter(args, step));
    for (int u = args.range.begin; u < args.range.end; ++u) {
      const UnrolledLayer layer(u);
      stream =
          Captured(std::move(stream), {layer, Edge::kBefore}, args, result);
      step.EnterLayer(layer, runtime_.Memory(layer));
      step.Keep(runtime_.StartSequences(layer, *args.batch));
      stream = Forward(std::move(stream), layer, step);
      stream = Captured(std::move(stream), {layer, Edge::kAfter}, args, result);
    }
    if (args.range.end == loops_.unrolled_layers()) {
      Finish(std::move(stream), args, step, result);
    } else {
      result.stream =
          std::visit([](auto s) { return boundary::ToWire(std::move(s)); },
                     std::move(stream));
    }
    return step.status();
  }

  StatusOr<Form> Enter(const VisitArgs& args, Step& step) const {
    if (args.range.begin == 0) {
      return Form(
          boundary::Start((*weights_.embedding)(args.ids, args.drawn, step)));
    }
    const UnrolledLayer next(args.range.begin);
    BATON_ASSIGN_OR_RETURN(
        Written stream,
        boundary::FromWire(
            {.rows = args.stream, .next = next},
            {.rows = static_cast<int64_t>(args.batch->positions.size()),
             .hidden = info_.hidden,
             .dtype = info_.stream_dtype,
             .next = next},
            step));
    return Form(std::move(stream));
  }

  // One layer and, where it ends a loop that another follows, the loop's end:
  // so that it happens before a hand-over and before the capture after it.
  Form Forward(Form stream, UnrolledLayer layer, Step& step) const {
    const typename M::Layer& weights =
        weights_.layers.at(loops_.Physical(layer));
    Between next =
        std::visit([&](auto s) { return weights.Forward(std::move(s), step); },
                   std::move(stream));
    if constexpr (LoopedModel<M>) {
      if (loops_.EndsLoop(layer) && !loops_.EndsDecoder(layer)) {
        return M::EndLoop(std::move(next), config_, *weights_.final_norm);
      }
    }
    return next;
  }

  Form Captured(Form stream, const CapturePoint& point, const VisitArgs& args,
                VisitResult& result) const {
    for (const CapturePoint& wanted : args.captures) {
      if (wanted != point) continue;
      boundary::Captured captured =
          std::visit([](auto s) { return boundary::Snapshot(std::move(s)); },
                     std::move(stream));
      result.captures.push_back({point, std::move(captured.copy)});
      stream = std::move(captured.stream);
    }
    return stream;
  }

  void Finish(Form stream, const VisitArgs& args, Step& step,
              VisitResult& result) const {
    Normed normed = std::visit(
        [&](auto s) {
          return boundary::FinalNorm(std::move(s), *weights_.final_norm);
        },
        std::move(stream));
    Logits logits = (*weights_.head)(std::move(normed), args.logit_rows, step);
    if (step.tp().rank() > 0) return;  // the first rank has the logits
    SampledRows here;                  // where the host samples
    if (args.results == nullptr) {
      here.count = static_cast<int64_t>(args.logit_rows.size());
      result.sampled =
          step.NewBuffer(here.count * static_cast<int64_t>(sizeof(SampledRow)));
      here.rows = reinterpret_cast<SampledRow*>(result.sampled.data());
    }
    step.Run<Sample>(runtime_.sample,
                     {.logits = logits.view(),
                      .rows = args.sampling,
                      .results = args.results == nullptr ? &here : args.results,
                      .drawn = args.drawn});
    result.logits = std::move(logits).Take();
  }

  Config config_;
  DecoderInfo info_;
  LoopPlan loops_;
  std::vector<UnrolledRange> ranges_;
  SliceWeights<M> weights_;
  int64_t weight_bytes_;
  SliceRuntime runtime_;
};

// The registry's entry of a model.
template <DecoderModel M>
Decoder DecoderOf() {
  return {
      .architecture = M::kArchitecture,
      .describe = [](const ModelConfig& model_config,
                     DType dtype) -> StatusOr<DecoderInfo> {
        BATON_ASSIGN_OR_RETURN(const typename M::Config config,
                               M::Read(model_config));
        return Describe<M>(config, dtype);
      },
      .tensors = [](const ModelConfig& model_config)
          -> StatusOr<std::vector<TensorDecl>> {
        BATON_ASSIGN_OR_RETURN(const typename M::Config config,
                               M::Read(model_config));
        return SliceWeights<M>::Declare(config, AllParts(config.num_layers))
            .declared();
      },
      .build =
          [](const ModelConfig& model_config, const SliceOptions& options) {
            return RankedSlice::Build(options, [&](const SliceOptions& one) {
              return DecoderSlice<M>::Build(model_config, one);
            });
          },
  };
}

}  // namespace baton
