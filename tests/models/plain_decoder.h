// SPDX-License-Identifier: Apache-2.0
// The decoders a second time, in double precision, token by token, with
// nothing shared but names and numbers; and each known mistake as a switch.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "runtime/weights/weight_source.h"

namespace baton::testing {

using Vec = std::vector<double>;

enum class Trap {
  kNone,
  kRawAlphas,
  kBetaOnBothSides,
  kNormsLeftAtOne,
  kQkNormOverProjection,
  kQkNormAfterRope,
  kNoRopeScaling,
  kNoAmplitude,
  kAmplitudeOnQueriesOnly,
  kFactorFromPositions,
  kReluNotSquared,
  kSquareBeforeClamp,
  kSharedKvSlots,
  kLoopNormOnlyAtEnd,
  kLoopNormTwiceAtEnd,
  kDefaultTheta,
  kStagesRunAllTheirLoops,
  kSwappedGateAndUp,
  kNoRenormalization,
  kRoundedRouterLogits,
  kNormsBeforeSublayers,
  kRopeOnFullLayers,
  kNoRopeOnFullLayers,
  kNoWindow,
  kWindowWithoutItself,
  kRotatesWholeHeads,
  kExponentsOfWholeHeads,
  kOneTheta,
  kTanhGelu,
  kNoHeadGate,
  kGateOfTheStream,
};

struct PlainDecoder {
  enum class Ffn { kXielu, kRelu2, kGatedSilu, kGatedGelu, kExperts };

  DecoderInfo info;
  int64_t heads = 0;
  double eps = 0;
  Ffn ffn = Ffn::kGatedSilu;
  size_t top = 0;  // experts of a row
  bool qk_norm = false;
  bool loop_norm = false;
  bool post_norm = false;
  bool head_gate = false;  // and q, k, v in one tensor
  std::string embedding = "model.embed_tokens.weight";
  std::vector<Vec> inv_freq;  // per layer; empty: it does not rotate
  double amplitude = 1;
  Trap trap = Trap::kNone;
  std::map<std::string, Vec> weights;

  void Load(const WeightSource& source, const std::vector<TensorDecl>& decls) {
    for (const TensorDecl& decl : decls) {
      if (decl.optional && !source.Has(decl.name)) continue;
      if (weights.count(decl.name) > 0) continue;  // a tied head
      const HostRows rows = source.Rows(decl, 0, decl.shape[0]).value();
      Vec& w = weights[decl.name];
      for (int64_t i = 0; i < decl.shape.NumElements(); ++i) {
        const std::byte* data = rows.view.data();
        w.push_back(
            rows.view.dtype() == DType::kF32
                ? reinterpret_cast<const float*>(data)[i]
                : static_cast<float>(reinterpret_cast<const bf16*>(data)[i]));
      }
    }
  }

  // Logits of every position.
  std::vector<Vec> Logits(const std::vector<int32_t>& ids) {
    caches_.clear();
    std::vector<Vec> all;
    for (size_t p = 0; p < ids.size(); ++p) {
      const Vec& table = weights.at(embedding);
      const auto row = table.begin() + ids[p] * info.hidden;
      Vec h(row, row + info.hidden);
      for (const auto& [loop, layer] : Order()) {
        Layer(h, loop, layer, static_cast<double>(p));
        const bool ends = layer == info.num_layers - 1;
        const bool last = loop == info.num_loops - 1;
        if (ends && !last && loop_norm && trap != Trap::kLoopNormOnlyAtEnd) {
          h = Normed(h, "model.norm.weight");
        }
      }
      h = Normed(h, "model.norm.weight");
      if (trap == Trap::kLoopNormTwiceAtEnd) {
        h = Normed(h, "model.norm.weight");
      }
      const bool tied = weights.count("lm_head.weight") == 0;
      all.push_back(Times(tied ? embedding : "lm_head.weight", h));
    }
    return all;
  }

 private:
  struct Cache {
    std::vector<Vec> k, v;
  };

  std::vector<std::pair<int, int>> Order() const {
    std::vector<std::pair<int, int>> order;
    const bool by_stage = trap == Trap::kStagesRunAllTheirLoops;
    const int cut = by_stage ? info.num_layers / 2 : info.num_layers;
    for (const auto& [first, end] :
         {std::pair(0, cut), std::pair(cut, info.num_layers)}) {
      for (int loop = 0; loop < info.num_loops; ++loop) {
        for (int i = first; i < end; ++i) order.emplace_back(loop, i);
      }
    }
    return order;
  }

  Vec Times(const std::string& name, const Vec& x) const {
    const Vec& w = weights.at(name);
    Vec y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }

  // RMS over runs of `size` elements; a weight [size] or [x.size()].
  Vec Normed(const Vec& x, const std::string& name, size_t size = 0) const {
    const Vec& w = weights.at(name);
    if (size == 0) size = x.size();
    const bool ones = trap == Trap::kNormsLeftAtOne &&
                      name.find("layernorm") != std::string::npos;
    Vec y(x.size());
    for (size_t begin = 0; begin < x.size(); begin += size) {
      double sum = 0;
      for (size_t i = 0; i < size; ++i) sum += x[begin + i] * x[begin + i];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(size) + eps);
      for (size_t i = 0; i < size; ++i) {
        const double weight = ones ? 1 : w[(begin + i) % w.size()];
        y[begin + i] = x[begin + i] * scale * weight;
      }
    }
    return y;
  }

  void Rotate(Vec& x, int layer, double position, double scale) const {
    const Vec& frequencies = inv_freq[static_cast<size_t>(layer)];
    const size_t half = frequencies.size();
    const auto dim = static_cast<size_t>(info.states[0].head_dim);
    for (size_t head = 0; head < x.size(); head += dim) {
      for (size_t i = 0; i < half; ++i) {
        const double a = position * frequencies[i];
        const double first = x[head + i], second = x[head + half + i];
        x[head + i] = (first * std::cos(a) - second * std::sin(a)) * scale;
        x[head + half + i] =
            (second * std::cos(a) + first * std::sin(a)) * scale;
      }
    }
  }

  void QkNorm(Vec& x, const std::string& name) const {
    const bool whole = trap == Trap::kQkNormOverProjection;
    x = Normed(x, name, whole ? x.size() : size_t(info.states[0].head_dim));
  }

  Vec Attention(const Vec& x, int layer, int slot, double p) {
    const std::string at = fmt::format("model.layers.{}.self_attn.", layer);
    auto [q, k, v] = Projected(x, at);
    const bool late = trap == Trap::kQkNormAfterRope;
    const bool none = trap == Trap::kNoAmplitude;
    const double q_scale = none ? 1 : amplitude;
    const double k_scale =
        none || trap == Trap::kAmplitudeOnQueriesOnly ? 1 : amplitude;
    if (qk_norm && !late) {
      QkNorm(q, at + "q_norm.weight");
      QkNorm(k, at + "k_norm.weight");
    }
    Rotate(q, layer, p, q_scale);
    Rotate(k, layer, p, k_scale);
    if (qk_norm && late) {
      QkNorm(q, at + "q_norm.weight");
      QkNorm(k, at + "k_norm.weight");
    }
    Cache& cache = caches_[slot];
    cache.k.resize(static_cast<size_t>(p) + 1);
    cache.v.resize(static_cast<size_t>(p) + 1);
    cache.k.back() = k;
    cache.v.back() = v;
    Vec out = Attend(q, cache, FirstKey(layer, p));
    if (!head_gate) return Times(at + "o_proj.weight", out);
    const bool raw = trap == Trap::kGateOfTheStream;
    const Vec gate = Times(at + "g_proj.weight", raw ? stream_ : x);
    const size_t dim = out.size() / gate.size();
    for (size_t i = 0; i < out.size(); ++i) {
      if (trap != Trap::kNoHeadGate) out[i] /= 1 + std::exp(-gate[i / dim]);
    }
    return Times(at + "out_proj.weight", out);
  }

  struct Qkv {
    Vec q, k, v;
  };
  Qkv Projected(const Vec& x, const std::string& at) const {
    if (!head_gate) {
      return {Times(at + "q_proj.weight", x), Times(at + "k_proj.weight", x),
              Times(at + "v_proj.weight", x)};
    }
    const Vec all = Times(at + "q_k_v_proj.weight", x);
    const auto k = all.begin() + heads * info.states[0].head_dim;
    const auto v = k + (all.end() - k) / 2;
    return {Vec(all.begin(), k), Vec(k, v), Vec(v, all.end())};
  }

  size_t FirstKey(int layer, double position) const {
    const int64_t window = info.states[static_cast<size_t>(layer)].window;
    if (window == 0 || trap == Trap::kNoWindow) return 0;
    const int64_t others =
        trap == Trap::kWindowWithoutItself ? window : window - 1;
    return static_cast<size_t>(
        std::max<int64_t>(0, static_cast<int64_t>(position) - others));
  }

  Vec Attend(const Vec& q, const Cache& cache, size_t first) const {
    const auto dim = static_cast<size_t>(info.states[0].head_dim);
    const auto group = static_cast<size_t>(heads / info.states[0].kv_heads);
    Vec out(q.size());
    for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
      const size_t kv = h / group * dim;
      Vec score;
      double total = 0;
      for (size_t t = first; t < cache.k.size(); ++t) {
        const Vec& k = cache.k[t];
        double dot = 0;
        for (size_t i = 0; i < dim; ++i) dot += q[h * dim + i] * k[kv + i];
        score.push_back(std::exp(dot / std::sqrt(double(dim))));
        total += score.back();
      }
      for (size_t t = 0; t < score.size(); ++t) {
        for (size_t i = 0; i < dim; ++i) {
          out[h * dim + i] += score[t] / total * cache.v[first + t][kv + i];
        }
      }
    }
    return out;
  }

  double Activate(double x, const std::string& at) const {
    if (ffn == Ffn::kRelu2) {
      if (trap == Trap::kSquareBeforeClamp) return std::max(x * x, 0.0);
      const double r = std::max(x, 0.0);
      return trap == Trap::kReluNotSquared ? r : r * r;
    }
    const auto scalar = [&](const char* name, double fallback) {
      const auto found = weights.find(at + "act_fn." + name);
      return found == weights.end() ? fallback : found->second[0];
    };
    const auto positive = [&](double z) {
      return trap == Trap::kRawAlphas ? z : std::log1p(std::exp(z));
    };
    const double beta = scalar("beta", 0.5), least = scalar("eps", -1e-6);
    double alpha_p = positive(scalar("alpha_p", 0));
    const double alpha_n = beta + positive(scalar("alpha_n", 0));
    if (trap == Trap::kBetaOnBothSides) alpha_p += beta;
    if (x > 0) return alpha_p * x * x + beta * x;
    return (std::expm1(std::min(x, least)) - x) * alpha_n + beta * x;
  }

  double Gate(double x) const {
    if (ffn != Ffn::kGatedGelu) return x / (1 + std::exp(-x));
    if (trap != Trap::kTanhGelu) return x / 2 * std::erfc(-x / std::sqrt(2.0));
    const double z = std::sqrt(8 / std::acos(-1)) * (x + 0.044715 * x * x * x);
    return x / (1 + std::exp(-z));
  }

  Vec Gated(const Vec& x, const std::string& gate_name,
            const std::string& up_name, const std::string& down_name) const {
    Vec up = Times(up_name, x);
    const Vec gate = Times(gate_name, x);
    for (size_t i = 0; i < up.size(); ++i) up[i] *= Gate(gate[i]);
    return Times(down_name, up);
  }

  Vec FeedForward(const Vec& x, const std::string& layer) const {
    if (ffn == Ffn::kExperts) return Mixture(x, layer + "block_sparse_moe.");
    const std::string at = layer + "mlp.";
    if (ffn == Ffn::kGatedSilu || ffn == Ffn::kGatedGelu) {
      return Gated(x, at + "gate_proj.weight", at + "up_proj.weight",
                   at + "down_proj.weight");
    }
    Vec up = Times(at + "up_proj.weight", x);
    for (double& u : up) u = Activate(u, at);
    return Times(at + "down_proj.weight", up);
  }

  Vec Mixture(const Vec& x, const std::string& at) const {
    Vec p = Times(at + "gate.weight", x);
    for (double& z : p) {
      const auto rounded = static_cast<float>(bf16(static_cast<float>(z)));
      z = std::exp(trap == Trap::kRoundedRouterLogits ? rounded : z);
    }
    const double all = std::accumulate(p.begin(), p.end(), 0.0);
    std::vector<size_t> chosen(p.size());
    std::iota(chosen.begin(), chosen.end(), 0);
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](size_t a, size_t b) { return p[a] > p[b]; });
    chosen.resize(top);
    double sum = 0;
    for (const size_t e : chosen) sum += p[e];
    if (trap == Trap::kNoRenormalization) sum = all;
    Vec out(x.size());
    for (const size_t e : chosen) {
      const std::string expert = fmt::format("{}experts.{}.", at, e);
      const bool swapped = trap == Trap::kSwappedGateAndUp;
      const Vec y = Gated(x, expert + (swapped ? "w3.weight" : "w1.weight"),
                          expert + (swapped ? "w1.weight" : "w3.weight"),
                          expert + "w2.weight");
      for (size_t i = 0; i < out.size(); ++i) out[i] += p[e] / sum * y[i];
    }
    return out;
  }

  void Layer(Vec& h, int loop, int layer, double position) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    const int slot =
        trap == Trap::kSharedKvSlots ? layer : loop * info.num_layers + layer;
    const auto add = [&](const char* norm, const auto& sublayer) {
      stream_ = h;
      const bool late = post_norm && trap != Trap::kNormsBeforeSublayers;
      Vec y = sublayer(late ? h : Normed(h, at + norm));
      if (late) y = Normed(y, at + norm);
      for (size_t i = 0; i < h.size(); ++i) h[i] += y[i];
    };
    const bool own_names = ffn == Ffn::kXielu;
    add(own_names   ? "attention_layernorm.weight"
        : post_norm ? "post_attention_layernorm.weight"
                    : "input_layernorm.weight",
        [&](const Vec& x) { return Attention(x, layer, slot, position); });
    add(own_names   ? "feedforward_layernorm.weight"
        : post_norm ? "post_feedforward_layernorm.weight"
                    : "post_attention_layernorm.weight",
        [&](const Vec& x) { return FeedForward(x, at); });
  }

  std::map<int, Cache> caches_;
  Vec stream_;  // that the layer's sublayer reads
};

}  // namespace baton::testing
