// SPDX-License-Identifier: Apache-2.0
// Parts of matmul_check. Each prints what it finds; those that check return the
// number of failures.
#pragma once

#include <cstdint>

namespace baton::test {

// A weight of one of the models.
struct Shape {
  int64_t n, k;
};
inline constexpr Shape kModelShapes[] = {
    {6144, 4096},   {4096, 4096},  {21504, 4096}, {4096, 21504},
    {131072, 4096}, {21504, 3072}, {3072, 10752}, {18432, 2560},
};

int CheckSkinny();   // values, bits, activations, chains of dependent kernels
int CheckLt();       // values, bits
void BenchSkinny();  // bandwidth
void BenchLt();      // TFLOP/s

}  // namespace baton::test
