// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/time/clock.h"
#include "runtime/base/check.h"

namespace baton::testing {

Process::Process(const std::vector<std::string>& args) {
  std::array<int, 2> ends;
  BATON_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
  std::vector<char*> argv = {const_cast<char*>(BATON_BINARY)};
  for (const std::string& arg : args) {
    argv.push_back(const_cast<char*>(arg.c_str()));
  }
  argv.push_back(nullptr);
  pid_ = fork();
  BATON_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execv(BATON_BINARY, argv.data());
    _exit(127);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      output_(std::move(other.output_)),
      searched_(other.searched_) {}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pipe_ >= 0) close(pipe_);
}

void Process::Signal(int signal) const { BATON_CHECK(kill(pid_, signal) == 0); }

bool Process::ReadMore(absl::Time deadline) {
  const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
  pollfd wait = {.fd = pipe_, .events = POLLIN, .revents = 0};
  if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return false;
  std::array<char, 4096> bytes;
  const ssize_t count = read(pipe_, bytes.data(), bytes.size());
  if (count <= 0) return false;
  output_.append(bytes.data(), static_cast<size_t>(count));
  return true;
}

std::optional<std::string> Process::WaitFor(const std::string& text,
                                            absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const size_t at = output_.find(text, searched_);
    const size_t end =
        at == std::string::npos ? at : output_.find('\n', at + text.size());
    if (end != std::string::npos) {
      searched_ = end;
      return output_.substr(at + text.size(), end - at - text.size());
    }
    if (!ReadMore(deadline)) return std::nullopt;
  }
}

int Process::WaitForExit(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (ReadMore(deadline)) {
  }
  // The pipe is closed when it ends, so this does not take long then.
  if (absl::Now() >= deadline) return -1;
  int status = 0;
  BATON_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Ran RunBaton(const std::vector<std::string>& args) {
  Process process(args);
  Ran ran;
  ran.exit_code = process.WaitForExit();
  ran.output = process.output();
  return ran;
}

}  // namespace baton::testing
