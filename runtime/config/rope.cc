// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/check.h"
#include "runtime/config/model_config.h"
#include "runtime/tensor/dtype.h"

namespace baton {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Long wavelengths are stretched by `factor`, short ones kept, those between
// the two bounds mixed.
double Llama3(const RopeConfig& c, double frequency) {
  const double wavelength = kTwoPi / frequency;
  const double turns = c.original_max_positions / wavelength;
  if (turns > c.high_freq_factor) return frequency;
  if (turns < c.low_freq_factor) return frequency / c.factor;
  const double kept =
      (turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - kept) * frequency / c.factor + kept * frequency;
}

// The pairs over which YaRN goes from kept to stretched.
struct Ramp {
  double low = 0;
  double high = 0;
  [[nodiscard]] double At(double pair) const {
    return std::clamp((pair - low) / (high - low), 0.0, 1.0);
  }
};

Ramp YarnRamp(const RopeConfig& c, double rotary_dim) {
  // The (fractional) pair that turns `turns` times over the original length.
  const auto pair_at = [&](double turns) {
    return rotary_dim * std::log(c.original_max_positions / (kTwoPi * turns)) /
           (2 * std::log(c.theta));
  };
  Ramp ramp{pair_at(c.beta_fast), pair_at(c.beta_slow)};
  if (c.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp.low = std::max(ramp.low, 0.0);
  ramp.high = std::min(ramp.high, rotary_dim - 1);
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

double YarnAmplitude(const RopeConfig& c) {
  if (c.attention_factor.has_value()) return *c.attention_factor;
  const auto growth = [&](double mscale) {
    return c.factor > 1 ? 0.1 * mscale * std::log(c.factor) + 1 : 1.0;
  };
  if (c.mscale != 0 && c.mscale_all_dim != 0) {
    return growth(c.mscale) / growth(c.mscale_all_dim);
  }
  return growth(1);
}

}  // namespace

RopeFrequencies ComputeRope(const RopeConfig& config, int64_t rotary_dim) {
  BATON_CHECK(rotary_dim > 0 && rotary_dim % 2 == 0);
  const auto dim = static_cast<double>(rotary_dim);
  const bool yarn = config.kind == RopeConfig::Kind::kYarn;
  const Ramp ramp = yarn ? YarnRamp(config, dim) : Ramp{};
  RopeFrequencies out;
  out.inv_freq.reserve(rotary_dim / 2);
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const auto pair = static_cast<double>(i);
    double frequency = std::pow(config.theta, -2 * pair / dim);
    switch (config.kind) {
      case RopeConfig::Kind::kPlain:
        break;
      case RopeConfig::Kind::kLlama3:
        frequency = Llama3(config, frequency);
        break;
      case RopeConfig::Kind::kYarn: {
        const double stretched = ramp.At(pair);
        frequency =
            frequency / config.factor * stretched + frequency * (1 - stretched);
        break;
      }
    }
    const auto exact = static_cast<float>(frequency);
    out.inv_freq.push_back(
        config.bf16_frequencies ? static_cast<float>(bf16(exact)) : exact);
  }
  if (yarn) out.amplitude = static_cast<float>(YarnAmplitude(config));
  return out;
}

}  // namespace baton
