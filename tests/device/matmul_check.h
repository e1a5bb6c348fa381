// SPDX-License-Identifier: Apache-2.0
// Parts of matmul_check. Each prints what it finds; those that check return the
// number of failures.
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny_matmul.h"

namespace baton::test {

// A weight of one of the models.
struct Shape {
  int64_t n, k;
};
inline constexpr Shape kModelShapes[] = {
    {6144, 4096},   {4096, 4096},  {21504, 4096}, {4096, 21504},
    {131072, 4096}, {21504, 3072}, {3072, 10752}, {18432, 2560},
};

// Those of the smaller models, a layer each: EXAONE 4.0 1.2B, Spark 4B,
// AFM 4.5B, Nanbeige 3B.
inline constexpr Shape kSmallShapes[] = {
    {3072, 2048}, {2048, 2048}, {8192, 2048},  {2048, 4096},
    {6160, 2560}, {2560, 4096}, {20480, 2560}, {2560, 10240},
    {3584, 2560}, {2560, 2560}, {18432, 2560}, {2560, 18432},
    {8192, 3072}, {3072, 6144}, {21504, 3072}, {3072, 10752},
};

// A layout of the skinny product, for up to max_m rows of x.
struct SkinnyCandidate {
  const char* name;
  int64_t max_m;
  cuda::SkinnyTuning tuning;
};
inline constexpr SkinnyCandidate kSkinnyCandidates[] = {
    {"default", 64, {}},
    // Teams x row tiles, blocks of a cluster; as many stages as let two blocks
    // fit on a multiprocessor, unless a number is named.
    {"8x2", 32, {8, 2, 0, 1}},
    {"8x2, 3 stages", 32, {8, 2, 3, 1}},
    {"8x2, 5 stages", 8, {8, 2, 5, 1}},
    {"8x1, 4 stages", 1, {8, 1, 4, 1}},
    {"8x1, 8 stages", 1, {8, 1, 8, 1}},
    {"4x1 cluster 2, 6 stages", 1, {4, 1, 6, 2}},
    {"4x2 cluster 2", 32, {4, 2, 0, 2}},
    {"4x4", 32, {4, 4, 0, 1}},
    {"4x4, 4 stages", 32, {4, 4, 4, 1}},
    {"4x4 cluster 2", 32, {4, 4, 0, 2}},
    {"4x4 cluster 2, 2 stages", 32, {4, 4, 2, 2}},
    {"2x4 cluster 2", 64, {2, 4, 0, 2}},
    {"2x4 cluster 2, 6 stages", 64, {2, 4, 6, 2}},
    {"2x4 cluster 4", 64, {2, 4, 0, 4}},
    {"2x4 cluster 4, 2 stages", 64, {2, 4, 2, 4}},
    {"2x8 cluster 2", 32, {2, 8, 0, 2}},
    {"2x8 cluster 4", 32, {2, 8, 0, 4}},
    {"1x8 cluster 4", 64, {1, 8, 0, 4}},
    {"1x8 cluster 8", 64, {1, 8, 0, 8}},
};

// Whether a layout takes m rows: one tile of rows is of the kernel of one row.
[[nodiscard]] inline bool Takes(const SkinnyCandidate& candidate, int64_t m,
                                const cuda::SkinnyWeight& weight) {
  return m <= candidate.max_m && (candidate.tuning.row_tiles != 1 ||
                                  cuda::SuitsRow(weight.k, weight.halves));
}

int CheckSkinny();     // values, bits, activations, chains of dependent kernels
int CheckSkinnyFew();  // for compute-sanitizer
int CheckHalves();     // of a k that two ranks may share
int CheckHalvesFew();  // for compute-sanitizer
int CheckLt();         // values, bits
void BenchSkinny();    // bandwidth
void BenchSmall();     // the same of small models, one row and eight
void BenchLt();        // TFLOP/s

}  // namespace baton::test
