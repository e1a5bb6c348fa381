// SPDX-License-Identifier: Apache-2.0
#include "actors/cli/cli.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/weights/file.h"

namespace baton {
namespace {

std::atomic<bool> interrupted = false;
int wake = -1;  // an eventfd, readable once interrupted

// Only calls that may be made in a signal handler.
void OnSignal(int) {
  if (interrupted.exchange(true)) _exit(130);
  const uint64_t one = 1;
  if (write(wake, &one, sizeof(one)) < 0) _exit(130);
}

}  // namespace

int Fail(const Status& status) {
  std::fflush(stdout);
  std::fprintf(stderr, "baton: %s\n", ToString(status).c_str());
  return 1;
}

StatusOr<ServeConfig> ReadServeConfig(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseServeConfig(text, path);
}

std::vector<StageConfig> NumberedStages(int count, int tp) {
  std::vector<StageConfig> stages(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    stages[static_cast<size_t>(i)].name = fmt::format("stage{}", i);
    stages[static_cast<size_t>(i)].tp = tp;
  }
  return stages;
}

std::string AddressProblem(const std::string& text) {
  const StatusOr<std::string> address = ParseAddress(text);
  return address.ok() ? std::string() : Message(address.status());
}

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "kB", "MB", "GB",
                                                      "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string Grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

void CatchSignals() {
  wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  BATON_CHECK(wake >= 0);
  struct sigaction action = {};
  action.sa_handler = &OnSignal;
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool Interrupted() { return interrupted; }

void WaitForSignal(int milliseconds) {
  pollfd poll_wake = {.fd = wake, .events = POLLIN, .revents = 0};
  poll(&poll_wake, 1, milliseconds);
}

}  // namespace baton
