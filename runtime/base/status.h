// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

using absl::OkStatus;
using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

// Builds a Status from a code and a fmt format string. Thread: any.
template <typename... Args>
[[nodiscard]] Status MakeStatus(StatusCode code,
                                fmt::format_string<Args...> format,
                                Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[nodiscard]] Status InvalidArgument(fmt::format_string<Args...> format,
                                     Args&&... args) {
  return MakeStatus(StatusCode::kInvalidArgument, format,
                    std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status FailedPrecondition(fmt::format_string<Args...> format,
                                        Args&&... args) {
  return MakeStatus(StatusCode::kFailedPrecondition, format,
                    std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status Unavailable(fmt::format_string<Args...> format,
                                 Args&&... args) {
  return MakeStatus(StatusCode::kUnavailable, format,
                    std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status Unimplemented(fmt::format_string<Args...> format,
                                   Args&&... args) {
  return MakeStatus(StatusCode::kUnimplemented, format,
                    std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status DataLoss(fmt::format_string<Args...> format,
                              Args&&... args) {
  return MakeStatus(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status ResourceExhausted(fmt::format_string<Args...> format,
                                       Args&&... args) {
  return MakeStatus(StatusCode::kResourceExhausted, format,
                    std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status DeadlineExceeded(fmt::format_string<Args...> format,
                                      Args&&... args) {
  return MakeStatus(StatusCode::kDeadlineExceeded, format,
                    std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status NotFound(fmt::format_string<Args...> format,
                              Args&&... args) {
  return MakeStatus(StatusCode::kNotFound, format, std::forward<Args>(args)...);
}

template <typename... Args>
[[nodiscard]] Status Internal(fmt::format_string<Args...> format,
                              Args&&... args) {
  return MakeStatus(StatusCode::kInternal, format, std::forward<Args>(args)...);
}

// The status's message; what Abseil's own string_view cannot give to std code.
[[nodiscard]] inline std::string Message(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// "CODE: message", for logs and command-line errors.
[[nodiscard]] inline std::string ToString(const Status& status) {
  return status.ToString();
}

// Returns `status` with "context: " in front of its message; OK stays OK.
[[nodiscard]] inline Status Annotate(const Status& status,
                                     const std::string& context) {
  if (status.ok()) return status;
  return Status(status.code(), context + ": " + Message(status));
}

}  // namespace baton

#define BATON_RETURN_IF_ERROR(expression)                                   \
  do {                                                                      \
    if (::absl::Status baton_status_ = (expression); !baton_status_.ok()) { \
      return baton_status_;                                                 \
    }                                                                       \
  } while (false)

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)

#define BATON_ASSIGN_OR_RETURN(left, expression)                       \
  BATON_ASSIGN_OR_RETURN_IMPL(BATON_CONCAT(baton_or_, __LINE__), left, \
                              expression)
// NOLINTBEGIN(bugprone-macro-parentheses): `tmp` and `left` may be declarations
#define BATON_ASSIGN_OR_RETURN_IMPL(tmp, left, expression) \
  auto tmp = (expression);                                 \
  if (!tmp.ok()) return std::move(tmp).status();           \
  left = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
