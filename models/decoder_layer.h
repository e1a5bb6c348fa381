// SPDX-License-Identifier: Apache-2.0
// What a decoder's source file provides.
#pragma once

#include <concepts>
#include <string_view>
#include <utility>

#include "models/dense_config.h"
#include "models/layers/norm.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"
#include "runtime/config/model_config.h"

namespace baton {

// A layer hands on `Between` and is entered with it, or with the Written that
// a stage starts with. Contract: residual.between.
template <typename L>
concept DecoderLayer =
    StreamForm<typename L::Between> &&
    !std::same_as<typename L::Between, Pending<Sum::kPartial>> &&
    requires(const L layer, Written written, typename L::Between between,
             Step& step) {
  {
    layer.Forward(std::move(written), step)
    } -> std::same_as<typename L::Between>;
  {
    layer.Forward(std::move(between), step)
    } -> std::same_as<typename L::Between>;
};

// One architecture. `Read` refuses every config whose maths it does not do.
template <typename M>
concept DecoderModel = DecoderLayer<typename M::Layer> &&
    std::derived_from<typename M::Config, DenseConfig> &&
    std::constructible_from<typename M::Layer, const typename M::Config&,
                            const WeightScope&> &&
    requires(const ModelConfig& config, const typename M::Config& read) {
  { read.StreamType(DType()) } -> std::same_as<DType>;
  { read.State(LayerIndex(), DType()) } -> std::same_as<LayerState>;
  { M::kArchitecture } -> std::convertible_to<std::string_view>;
  { M::kNames } -> std::convertible_to<EndNames>;
  { M::Read(config) } -> std::same_as<StatusOr<typename M::Config>>;
};

// A model whose stack runs more than once says what happens between loops.
template <typename M>
concept LoopedModel = DecoderModel<M> &&
    requires(typename M::Layer::Between between,
             const typename M::Config& config, const Norm& final_norm) {
  {
    M::EndLoop(std::move(between), config, final_norm)
    } -> std::same_as<Written>;
};

}  // namespace baton
