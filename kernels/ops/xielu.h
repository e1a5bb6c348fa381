// SPDX-License-Identifier: Apache-2.0
// The constants of xIELU (activation.h has the formula), as kernels use them.
#pragma once

#include <cmath>

namespace baton {

struct XieluConstants {
  float positive = 0;  // Ap
  float negative = 0;  // An
  float beta = 0;
  float eps = 0;
};

// From alphas as stored; softplus in fp64, rounded once.
inline XieluConstants XieluConstantsOf(float alpha_p, float alpha_n, float beta,
                                       float eps) {
  const auto softplus = [](double z) { return std::log1p(std::exp(z)); };
  return {static_cast<float>(softplus(alpha_p)),
          static_cast<float>(beta + softplus(alpha_n)), beta, eps};
}

}  // namespace baton
