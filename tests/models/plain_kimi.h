// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear a second time, in double precision, token by token, from the
// files alone; and each known mistake as a switch.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/weights/weight_source.h"
#include "tests/models/kimi_trap.h"

namespace baton::testing {

class PlainKimi {
 public:
  using Vec = std::vector<double>;

  PlainKimi(nlohmann::json config, const Checkpoint& files)
      : c_(std::move(config)) {
    for (const TensorEntry& entry : files.tensors()) {
      TensorDecl decl{.name = entry.name, .shape = entry.shape};
      const HostRows rows = files.Rows(decl, 0, entry.shape[0]).value();
      Vec& w = weights_[entry.name];
      for (int64_t i = 0; i < entry.shape.NumElements(); ++i) {
        const std::byte* data = rows.view.data();
        w.push_back(
            entry.dtype == DType::kF32
                ? reinterpret_cast<const float*>(data)[i]
                : static_cast<float>(reinterpret_cast<const bf16*>(data)[i]));
      }
    }
    eps_ = c_.at("rms_norm_eps");
    const bool published = c_.contains("linear_attn_config");
    const nlohmann::json& l = published ? c_["linear_attn_config"] : c_;
    dim_ = l.at(published ? "head_dim" : "linear_head_dim");
    heads_ = l.at(published ? "num_heads" : "linear_num_heads");
    taps_ =
        l.at(published ? "short_conv_kernel_size" : "linear_conv_kernel_dim");
  }

  KimiTrap trap = KimiTrap::kNone;

  // Logits of every position.
  std::vector<Vec> Logits(const std::vector<int32_t>& ids) {
    state_.clear();
    rows_.clear();
    cache_.clear();
    std::vector<Vec> all;
    const size_t hidden = c_.at("hidden_size");
    for (const int32_t id : ids) {
      const auto row = W("model.embed_tokens.weight").begin() +
                       static_cast<ptrdiff_t>(hidden) * id;
      Vec h(row, row + static_cast<ptrdiff_t>(hidden));
      for (int i = 0; i < c_.at("num_hidden_layers"); ++i) Layer(h, i);
      all.push_back(Times("lm_head.weight", Normed(h, "model.norm.weight")));
    }
    return all;
  }

 private:
  const Vec& W(const std::string& name) const { return weights_.at(name); }

  Vec Times(const std::string& name, const Vec& x) const {
    const Vec& w = W(name);
    Vec y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }
  static double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static void AddTo(Vec& to, const Vec& x, double scale = 1) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += scale * x[i];
  }
  static Vec Part(const Vec& x, size_t begin, size_t size) {
    const auto first = x.begin() + static_cast<ptrdiff_t>(begin);
    return {first, first + static_cast<ptrdiff_t>(size)};
  }

  Vec Rms(Vec x, double eps) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double scale =
        1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
    for (double& v : x) v *= scale;
    return x;
  }
  Vec Normed(const Vec& x, const std::string& name) const {
    return Normed(x, name, eps_);
  }
  Vec Normed(const Vec& x, const std::string& name, double eps) const {
    Vec y = Rms(x, eps);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= W(name)[i % W(name).size()];
    return y;
  }
  Vec L2(Vec x) const {
    double sum = trap == KimiTrap::kL2NormWithNormEps ? eps_ : 1e-6;
    for (const double v : x) sum += v * v;
    for (double& v : x) v /= std::sqrt(sum);
    return x;
  }

  // A column of q, k or v: projection, convolution, SiLU.
  Vec Convolved(const std::string& at, char which, const Vec& x) {
    const std::string name = at + which;
    Vec u = Times(name + "_proj.weight", x);
    if (trap == KimiTrap::kNormBeforeConvolution && which != 'v') {
      u = HeadsOf(u, [&](const Vec& head) { return L2(head); });
    }
    std::vector<Vec>& rows = rows_[name];
    rows.push_back(u);
    const Vec& w = W(name + "_conv1d.weight");
    Vec y(u.size());
    for (size_t ch = 0; ch < y.size(); ++ch) {
      for (size_t back = 0; back < std::min(taps_, rows.size()); ++back) {
        const size_t tap =
            trap == KimiTrap::kNewestTapFirst ? back : taps_ - 1 - back;
        y[ch] += w[ch * taps_ + tap] * rows[rows.size() - 1 - back][ch];
      }
      y[ch] *= Sigmoid(y[ch]);
    }
    return y;
  }
  template <typename F>
  Vec HeadsOf(const Vec& x, const F& f) const {
    Vec all;
    for (size_t h = 0; h < heads_; ++h) {
      const Vec y = f(Part(x, h * dim_, dim_));
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

  Vec DeltaAttention(const std::string& at, const Vec& x) {
    const Vec q = Convolved(at, 'q', x), k = Convolved(at, 'k', x),
              v = Convolved(at, 'v', x);
    const Vec f =
        Times(at + "f_b_proj.weight", Times(at + "f_a_proj.weight", x));
    const Vec gate =
        Times(at + "g_b_proj.weight", Times(at + "g_a_proj.weight", x));
    const Vec beta = Times(at + "b_proj.weight", x);
    Vec out;
    for (size_t h = 0; h < heads_; ++h) {
      Vec& s = state_[at + std::to_string(h)];
      s.resize(dim_ * dim_);
      const bool early = trap == KimiTrap::kNormBeforeConvolution;
      Vec qh = Part(q, h * dim_, dim_), kh = Part(k, h * dim_, dim_);
      if (!early) qh = L2(qh), kh = L2(kh);
      for (double& e : qh) e /= std::sqrt(static_cast<double>(dim_));
      const Vec o =
          Recur(s, qh, kh, Part(v, h * dim_, dim_),
                Decay(at, Part(f, h * dim_, dim_), h), Sigmoid(beta[h]));
      out.insert(out.end(), o.begin(), o.end());
      if (trap == KimiTrap::kPaddingRuns) {
        const Vec a = Decay(at, Vec(dim_), h);
        for (size_t i = 0; i < s.size(); ++i) s[i] *= a[i / dim_];
      }
    }
    const auto normed = [&](const Vec& o) {
      return Normed(o, at + "o_norm.weight");
    };
    Vec y = trap == KimiTrap::kOutputNormOverAllHeads ? normed(out)
                                                      : HeadsOf(out, normed);
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] *=
          Sigmoid(gate[i]) * (trap == KimiTrap::kSiluOutputGate ? gate[i] : 1);
    }
    return Times(at + "o_proj.weight", y);
  }

  Vec Decay(const std::string& at, const Vec& f, size_t head) const {
    const double log = W(at + "A_log")[head];
    const double rate =
        trap == KimiTrap::kDecayFromRawLog ? std::abs(log) : std::exp(log);
    Vec a;
    for (size_t d = 0; d < dim_; ++d) {
      const double bias = trap == KimiTrap::kNoDecayBias
                              ? 0
                              : W(at + "dt_bias")[head * dim_ + d];
      a.push_back(std::exp(-rate * std::log1p(std::exp(f[d] + bias))));
    }
    return a;
  }

  Vec Recur(Vec& s, const Vec& q, const Vec& k, const Vec& v, const Vec& a,
            double beta) const {
    const Vec before = s;
    for (size_t i = 0; i < s.size(); ++i) s[i] *= a[i / dim_];
    const Vec decayed = s;
    const Vec& seen = trap == KimiTrap::kPredictBeforeDecay ? before : decayed;
    Vec out(dim_);
    for (size_t j = 0; j < dim_; ++j) {
      double predicted = 0;
      for (size_t d = 0; d < dim_; ++d) predicted += seen[d * dim_ + j] * k[d];
      for (size_t d = 0; d < dim_; ++d) {
        s[d * dim_ + j] += k[d] * beta * (v[j] - predicted);
      }
    }
    const Vec& read = trap == KimiTrap::kReadBeforeUpdate ? decayed : s;
    const bool transposed = trap == KimiTrap::kTransposedRead;
    for (size_t j = 0; j < dim_; ++j) {
      for (size_t d = 0; d < dim_; ++d) {
        out[j] += read[transposed ? j * dim_ + d : d * dim_ + j] * q[d];
      }
    }
    return out;
  }

  static void Rotate(Vec& x, size_t first, size_t size, double position) {
    for (size_t i = 0; i < size / 2; ++i) {
      const double a = position * std::pow(1e4, -2.0 * static_cast<double>(i) /
                                                    static_cast<double>(size));
      double& one = x[first + i];
      double& two = x[first + size / 2 + i];
      const double left = one * std::cos(a) - two * std::sin(a);
      two = two * std::cos(a) + one * std::sin(a);
      one = left;
    }
  }

  struct Cache {
    std::vector<Vec> k, v;  // of each token: all heads
  };

  Vec LatentAttention(const std::string& at, const Vec& x) {
    const size_t heads = c_.at("num_attention_heads");
    const size_t latent = c_.at("kv_lora_rank");
    const size_t own = c_.at("qk_nope_head_dim");
    const size_t shared = c_.at("qk_rope_head_dim");
    const size_t value = c_.at("v_head_dim");
    const size_t width = own + shared;
    Cache& cache = cache_[at];
    const auto position = static_cast<double>(cache.k.size());
    Vec q = Times(at + "q_proj.weight", x);
    const Vec all = Times(at + "kv_a_proj_with_mqa.weight", x);
    Vec key = Part(all, latent, shared);
    const double eps = trap == KimiTrap::kLatentEpsOfConfig ? eps_ : 1e-6;
    const bool wide = trap == KimiTrap::kLatentNormOverSharedDims;
    const Vec kv = Times(at + "kv_b_proj.weight",
                         Part(Normed(wide ? all : Part(all, 0, latent),
                                     at + "kv_a_layernorm.weight", eps),
                              0, latent));
    if (trap == KimiTrap::kRotatedSharedDims) {
      Rotate(key, 0, shared, position);
      for (size_t h = 0; h < heads; ++h) {
        Rotate(q, h * width + own, shared, position);
      }
    }
    const size_t k_at = trap == KimiTrap::kValuesBeforeKeys ? value : 0;
    const size_t v_at = trap == KimiTrap::kValuesBeforeKeys ? 0 : own;
    Vec k, v;
    for (size_t h = 0; h < heads; ++h) {
      const size_t base = h * (own + value);
      for (size_t i = 0; i < own; ++i) k.push_back(kv[base + k_at + i]);
      k.insert(k.end(), key.begin(), key.end());
      for (size_t i = 0; i < value; ++i) v.push_back(kv[base + v_at + i]);
    }
    cache.k.push_back(k);
    cache.v.push_back(v);
    return Times(at + "o_proj.weight", Attend(q, cache, heads, own));
  }

  Vec Attend(const Vec& q, const Cache& cache, size_t heads, size_t own) const {
    const size_t width = q.size() / heads;
    const size_t value = cache.v[0].size() / heads;
    const size_t used = trap == KimiTrap::kNoSharedDims ? own : width;
    const size_t scaled = trap == KimiTrap::kScaleOfOwnDims ? own : width;
    Vec out(heads * value);
    for (size_t h = 0; h < heads; ++h) {
      Vec p;
      double total = 0;
      for (const Vec& key_of : cache.k) {
        double dot = 0;
        for (size_t i = 0; i < used; ++i) {
          dot += q[h * width + i] * key_of[h * width + i];
        }
        p.push_back(std::exp(dot / std::sqrt(static_cast<double>(scaled))));
        total += p.back();
      }
      for (size_t t = 0; t < p.size(); ++t) {
        for (size_t i = 0; i < value; ++i) {
          out[h * value + i] += p[t] / total * cache.v[t][h * value + i];
        }
      }
    }
    return out;
  }

  Vec Gated(const Vec& x, const std::string& gate, const std::string& up,
            const std::string& down) const {
    Vec inner = Times(up, x);
    const Vec g = Times(gate, x);
    for (size_t i = 0; i < inner.size(); ++i) inner[i] *= g[i] * Sigmoid(g[i]);
    return Times(down, inner);
  }
  Vec Dense(const Vec& x, const std::string& at) const {
    return Gated(x, at + "gate_proj.weight", at + "up_proj.weight",
                 at + "down_proj.weight");
  }

  // Experts of the best groups.
  std::vector<size_t> Allowed(const Vec& choice) const {
    std::vector<size_t> all(choice.size());
    std::iota(all.begin(), all.end(), 0);
    const size_t groups = c_.at("num_expert_group");
    if (groups == 1 || trap == KimiTrap::kNoGroups) return all;
    const size_t size = choice.size() / groups;
    std::vector<size_t> order(groups);
    std::iota(order.begin(), order.end(), 0);
    Vec score;
    for (size_t g = 0; g < groups; ++g) {
      Vec of = Part(choice, g * size, size);
      std::sort(of.rbegin(), of.rend());
      score.push_back(of[0] +
                      (trap == KimiTrap::kGroupsByTheirBest ? 0 : of[1]));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return score[a] > score[b]; });
    order.resize(c_.at("topk_group"));
    std::vector<size_t> allowed;
    for (const size_t e : all) {
      if (std::count(order.begin(), order.end(), e / size) > 0) {
        allowed.push_back(e);
      }
    }
    return allowed;
  }

  Vec Mixture(const Vec& x, const std::string& at) const {
    Vec s = Times(at + "gate.weight", x);
    for (double& e : s) e = Sigmoid(e);
    Vec biased = s;
    AddTo(biased, W(at + "gate.e_score_correction_bias"));
    const Vec& choice = trap == KimiTrap::kChoiceWithoutBias ? s : biased;
    std::vector<size_t> chosen = Allowed(choice);
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](size_t a, size_t b) { return choice[a] > choice[b]; });
    chosen.resize(c_.at("num_experts_per_token"));
    const Vec& weights = trap == KimiTrap::kBiasedWeights ? biased : s;
    const double scale = c_.at("routed_scaling_factor");
    double sum = 0;
    for (const size_t e : chosen) sum += weights[e];
    if (trap == KimiTrap::kScaleBeforeNormalizing) sum *= scale;
    Vec out(x.size());
    for (const size_t e : chosen) {
      const std::string expert = at + "experts." + std::to_string(e) + ".";
      AddTo(out,
            Gated(x, expert + "w1.weight", expert + "w3.weight",
                  expert + "w2.weight"),
            weights[e] / sum * scale);
    }
    if (trap == KimiTrap::kNoSharedExperts) return out;
    AddTo(out, Dense(x, at + "shared_experts."),
          trap == KimiTrap::kScaledSharedExperts ? scale : 1);
    return out;
  }

  void Layer(Vec& h, int layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const Vec a = Normed(h, at + "input_layernorm.weight");
    const bool linear = weights_.count(at + "self_attn.A_log") > 0;
    AddTo(h, linear ? DeltaAttention(at + "self_attn.", a)
                    : LatentAttention(at + "self_attn.", a));
    const Vec m = Normed(h, at + "post_attention_layernorm.weight");
    const std::string mixture = at + "block_sparse_moe.";
    if (weights_.count(mixture + "gate.weight") > 0) {
      AddTo(h, Mixture(m, mixture));
    } else {
      const bool saved = weights_.count(mixture + "up_proj.weight") > 0;
      AddTo(h, Dense(m, saved ? mixture : at + "mlp."));
    }
  }

  nlohmann::json c_;
  double eps_ = 0;
  size_t dim_ = 0, heads_ = 0, taps_ = 0;
  std::map<std::string, Vec> weights_;
  std::map<std::string, Vec> state_;              // of each head
  std::map<std::string, std::vector<Vec>> rows_;  // before convolutions
  std::map<std::string, Cache> cache_;
};

}  // namespace baton::testing
