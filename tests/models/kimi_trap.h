// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace baton::testing {

// Mistakes that Kimi-Linear invites.
enum class KimiTrap {
  kNone,
  // KDA
  kNoDecayBias,
  kDecayFromRawLog,
  kNormBeforeConvolution,
  kNewestTapFirst,
  kReadBeforeUpdate,
  kPredictBeforeDecay,
  kTransposedRead,
  kSiluOutputGate,
  kOutputNormOverAllHeads,
  kL2NormWithNormEps,
  kPaddingRuns,
  // MLA
  kNoSharedDims,
  kRotatedSharedDims,
  kScaleOfOwnDims,
  kLatentNormOverSharedDims,
  kLatentEpsOfConfig,
  kValuesBeforeKeys,
  // Mixture
  kBiasedWeights,
  kChoiceWithoutBias,
  kScaleBeforeNormalizing,
  kNoGroups,
  kGroupsByTheirBest,
  kScaledSharedExperts,
  kNoSharedExperts,
};

}  // namespace baton::testing
