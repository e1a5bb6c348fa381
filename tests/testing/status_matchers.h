// SPDX-License-Identifier: Apache-2.0
// Matchers for Status and StatusOr:
//   EXPECT_THAT(Parse(text), IsOk());
//   EXPECT_THAT(Parse("7"), IsOkAndHolds(7));
//   EXPECT_THAT(Parse("x"), StatusIs(StatusCode::kInvalidArgument,
//                                    HasSubstr("x")));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "runtime/base/status.h"

namespace baton::testing {

[[nodiscard]] inline const Status& StatusOf(const Status& status) {
  return status;
}
template <typename T>
[[nodiscard]] const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  if (StatusOf(arg).ok()) return true;
  *result_listener << "which is " << ToString(StatusOf(arg));
  return false;
}

MATCHER_P(IsOkAndHolds, value,
          std::string("is OK and holds a value that ") +
              ::testing::PrintToString(value)) {
  if (!arg.ok()) {
    *result_listener << "which is " << ToString(StatusOf(arg));
    return false;
  }
  return ::testing::ExplainMatchResult(value, *arg, result_listener);
}

MATCHER_P2(StatusIs, code, message,
           "has status " + absl::StatusCodeToString(code) +
               " and a message that matches") {
  const Status& status = StatusOf(arg);
  *result_listener << "which is " << ToString(status);
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, Message(status),
                                       result_listener);
}

MATCHER_P(StatusIs, code, "has status " + absl::StatusCodeToString(code)) {
  *result_listener << "which is " << ToString(StatusOf(arg));
  return StatusOf(arg).code() == code;
}

}  // namespace baton::testing
