// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

// A broken invariant of our own: prints where and aborts. Bad input from
// outside is a Status, never a check.
#define BATON_CHECK(condition)                                              \
  do {                                                                      \
    if (__builtin_expect(!(condition), 0)) {                                \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, \
                   #condition);                                             \
      std::abort();                                                         \
    }                                                                       \
  } while (false)
