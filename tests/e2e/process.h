// SPDX-License-Identifier: Apache-2.0
// A child process whose output is read while it runs. Waits are polls of its
// pipes with a deadline; nothing sleeps.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace baton::testing {

class Process {
 public:
  // Runs the baton binary.
  explicit Process(const std::vector<std::string>& args);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  // Kills it (SIGKILL) if it still runs.
  ~Process();

  void Signal(int signal) const;
  // Reads until the output (both streams) holds `text`; the rest of that line
  // after it, or nothing at the deadline or when the process ended first.
  std::optional<std::string> WaitFor(
      const std::string& text, absl::Duration timeout = absl::Seconds(30));
  // Reads until the process ends: its exit code, 128 + the signal that ended
  // it, or -1 at the deadline.
  int WaitForExit(absl::Duration timeout = absl::Seconds(30));
  [[nodiscard]] const std::string& output() const { return output_; }

 private:
  // False once both ends are closed or the deadline has passed.
  bool ReadMore(absl::Time deadline);

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string output_;
  size_t searched_ = 0;
};

// Runs to its end.
struct Ran {
  int exit_code = 0;
  std::string output;
};
[[nodiscard]] Ran RunBaton(const std::vector<std::string>& args);

}  // namespace baton::testing
