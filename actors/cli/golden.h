// SPDX-License-Identifier: Apache-2.0
// golden.json: what an independent fp32 implementation gave for a few prompts,
// and the comparison with what a run gave.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/local_pipeline.h"
#include "runtime/base/status.h"
#include "runtime/tensor/dtype.h"

namespace baton {

struct GoldenCase {
  std::vector<int32_t> prompt;
  // At every prompt position, the likeliest next tokens.
  std::vector<std::vector<TokenLogprob>> top;
  std::vector<TokenLogprob> greedy;
  std::vector<double> margin;  // first minus second logprob, per greedy token
};

// NotFound, InvalidArgument: names the file and what is wrong with it.
[[nodiscard]] StatusOr<std::vector<GoldenCase>> ReadGolden(
    const std::string& path);

// Tolerances: f32 max |dlogprob| <= 1e-3 and every greedy token equal, but
// where the margin is under 2e-3; bf16 mean |dlogprob| <= 0.05 and greedy equal
// up to the first margin under 0.15 (bf16 keeps 8 bits: steps of 0.03 at a
// logit of 8).
struct GoldenScore {
  double max_error = 0;
  double sum_error = 0;
  int64_t compared = 0;      // logprobs
  int64_t greedy_equal = 0;  // tokens
  int64_t greedy_total = 0;  // tokens that had to be equal
  std::vector<std::string> complaints;

  [[nodiscard]] double mean_error() const {
    return compared > 0 ? sum_error / static_cast<double>(compared) : 0;
  }
  [[nodiscard]] bool Holds(DType dtype) const;
};

// Adds one case. `run` has logprobs of the prompt and of its tokens with
// kGoldenTop alternatives each.
inline constexpr int kGoldenTop = 64;
void ScoreCase(const GoldenCase& golden, const Completion& run, DType dtype,
               GoldenScore& score);

// A copy of a checkpoint directory (links to its files) whose config asks for
// rotary frequencies rounded to bf16. Removed with the object. Move-only.
class Bf16RopeCopy {
 public:
  // Internal: no temporary directory. NotFound, InvalidArgument: no config.
  [[nodiscard]] static StatusOr<Bf16RopeCopy> Make(
      const std::string& checkpoint);
  Bf16RopeCopy(Bf16RopeCopy&& other) noexcept
      : directory_(std::exchange(other.directory_, "")) {}
  Bf16RopeCopy& operator=(Bf16RopeCopy&&) = delete;
  ~Bf16RopeCopy();
  [[nodiscard]] const std::string& directory() const { return directory_; }

 private:
  explicit Bf16RopeCopy(std::string directory)
      : directory_(std::move(directory)) {}
  std::string directory_;
};

}  // namespace baton
