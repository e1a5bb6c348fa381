// SPDX-License-Identifier: Apache-2.0
#include "runtime/sched/step.h"

namespace baton {

std::vector<Visit> VisitOrder(int passes, int steps) {
  std::vector<Visit> order;
  for (int pass = 0; pass < passes; ++pass) {
    for (int step = 0; step < steps; ++step) order.push_back({pass, step});
  }
  return order;
}

}  // namespace baton
