// SPDX-License-Identifier: Apache-2.0
// Checks and measures the device plane on the GPUs of this machine.
//   transport_check [WORD...]   only what has one of the words in its name
// Exit status: 0 if nothing failed.
#include "tests/device/transport_check.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace baton::check {
namespace {

constexpr absl::Duration kCaseLimit = absl::Seconds(40);

struct State {
  absl::Mutex mutex;
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> rows;
  int failures = 0;
  std::string running = "start";
  absl::Time since = absl::Now();
};

State& Get() {
  static auto* const state = new State;
  return *state;
}

int PrintTable() {
  State& state = Get();
  std::printf("\n");
  for (const auto& [name, result] : state.rows) {
    std::printf("%-44s %s\n", name.c_str(), result.c_str());
  }
  std::printf("%s: %d failed\n", state.failures == 0 ? "PASS" : "FAIL",
              state.failures);
  std::fflush(stdout);
  return state.failures == 0 ? 0 : 1;
}

// Ends the program with what is known when a case hangs.
void Watch() {
  while (true) {
    absl::SleepFor(absl::Milliseconds(200));
    State& state = Get();
    absl::MutexLock lock(&state.mutex);
    if (absl::Now() - state.since < kCaseLimit) continue;
    state.rows.emplace_back(state.running, "FAILED: hangs");
    ++state.failures;
    _exit(PrintTable());
  }
}

}  // namespace

void Report(const std::string& name, const std::string& result) {
  State& state = Get();
  absl::MutexLock lock(&state.mutex);
  state.rows.emplace_back(name, result);
  std::printf("%-44s %s\n", name.c_str(), result.c_str());
  std::fflush(stdout);
}

void Fail(const std::string& name, const std::string& why) {
  Report(name, "FAILED: " + why);
  absl::MutexLock lock(&Get().mutex);
  ++Get().failures;
}

bool Begin(const std::string& name) {
  State& state = Get();
  absl::MutexLock lock(&state.mutex);
  state.running = name;
  state.since = absl::Now();
  if (state.words.empty()) return true;
  for (const std::string& word : state.words) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

int Main(int argc, char** argv) {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (argc == 6 && std::string(argv[1]) == "--child") {
    return RunChild(argv[2], argv[3], std::atoi(argv[4]), std::atoi(argv[5]));
  }
  Get().words.assign(argv + 1, argv + argc);
  const int gpus = CudaDeviceCount();
  if (gpus == 0) {
    Fail("gpus", "none");
    return PrintTable();
  }
  std::thread(&Watch).detach();
  Report("gpus", std::to_string(gpus));
  if (gpus == 1) Report("two GPUs", "skipped: there is one");
  CheckPairs(gpus);
  CheckLosses(gpus);
  MeasureHops(gpus);
  absl::MutexLock lock(&Get().mutex);
  return PrintTable();
}

}  // namespace baton::check

int main(int argc, char** argv) {
  const int status = baton::check::Main(argc, argv);
  std::fflush(stdout);
  _exit(status);  // the watching thread goes on
}
