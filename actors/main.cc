// SPDX-License-Identifier: Apache-2.0
// The `baton` binary: the list of its subcommands, each in actors/cli/.
#include <CLI/CLI.hpp>
#include <map>

#include "actors/cli/cli.h"
#include "actors/grpc/channels.h"
#include "actors/version.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

constexpr int kUsage = 2;

int Main(int argc, char** argv) {
  CLI::App app("Serves language models whose layers are split over processes.");
  app.name("baton");
  app.set_version_flag("--version", BuildId());
  app.require_subcommand(1);
  app.fallthrough();

  LogLevel level = LogLevel::kInfo;
  const std::map<std::string, LogLevel> levels = {{"trace", LogLevel::kTrace},
                                                  {"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warn", LogLevel::kWarn},
                                                  {"error", LogLevel::kError}};
  app.add_option_function<std::string>(
         "--log-level",
         [&](const std::string& name) { level = levels.at(name); },
         "trace, debug, info, warn or error; logs go to stderr")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  app.parse_complete_callback([&] { SetLogLevel(level); });

  int exit_code = 0;
  AddServe(app, &exit_code);
  AddStage(app, &exit_code);
  AddGenerate(app, &exit_code);
  AddPlan(app, &exit_code);
  AddInspect(app, &exit_code);
  AddParity(app, &exit_code);
  AddBench(app, &exit_code);

  try {  // CLI11 reports by throwing
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  CloseChannels(absl::Seconds(2));
  return exit_code;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
