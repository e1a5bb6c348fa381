// SPDX-License-Identifier: Apache-2.0
// The subcommands of `baton`, one file each. Add...() puts a subcommand into
// the app; running it sets the exit code: 0 done, 1 failed (2, wrong usage, is
// main's).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/config/plan.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton {

void AddServe(CLI::App& app, int* exit_code);
void AddStage(CLI::App& app, int* exit_code);
void AddGenerate(CLI::App& app, int* exit_code);
void AddPlan(CLI::App& app, int* exit_code);
void AddInspect(CLI::App& app, int* exit_code);
void AddParity(CLI::App& app, int* exit_code);
void AddBench(CLI::App& app, int* exit_code);

// Prints "baton: CODE: message" to stderr; the exit code for it.
int Fail(const Status& status);

// The config of a YAML file. NotFound, InvalidArgument.
[[nodiscard]] StatusOr<ServeConfig> ReadServeConfig(const std::string& path);
// `count` stages named stage0, stage1, ..., each of `tp` ranks.
[[nodiscard]] std::vector<StageConfig> NumberedStages(int count, int tp);

// What is wrong with an option that should be HOST:PORT, as CLI11 asks for it;
// empty: nothing. gRPC would take a port of its own choice for one left out,
// and the rest of the division for one beyond 65535.
[[nodiscard]] std::string AddressProblem(const std::string& text);

// "1.5 GB", "203.4 MB", "12 B".
[[nodiscard]] std::string HumanBytes(int64_t bytes);
// 8053338240 as "8,053,338,240".
[[nodiscard]] std::string Grouped(int64_t value);

// Set by the first SIGINT or SIGTERM after the call; a second one ends the
// process at once.
void CatchSignals();
[[nodiscard]] bool Interrupted();
// Sleeps until a signal came or `milliseconds` have passed.
void WaitForSignal(int milliseconds);

}  // namespace baton
