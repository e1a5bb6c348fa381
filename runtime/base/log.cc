// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstring>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

struct Node {
  absl::Mutex mutex;
  std::string name ABSL_GUARDED_BY(mutex) = "baton";
};

Node& GetNode() {
  static Node* node = new Node;
  return *node;
}

spdlog::logger& Logger() {
  static auto* logger = [] {
    auto* made =
        new std::shared_ptr<spdlog::logger>(spdlog::stderr_color_mt("baton"));
    (*made)->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    (*made)->flush_on(spdlog::level::info);
    return made;
  }();
  return **logger;
}

}  // namespace

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

void SetLogNode(std::string node) {
  absl::MutexLock lock(&GetNode().mutex);
  GetNode().name = std::move(node);
}

void LogLine(LogLevel level, std::string_view event, std::string_view text,
             const char* file, int line) {
  const char* slash = std::strrchr(file, '/');
  std::string node;
  {
    absl::MutexLock lock(&GetNode().mutex);
    node = GetNode().name;
  }
  Logger().log(ToSpdlog(level), "{} {}:{} {} {}", node,
               slash != nullptr ? slash + 1 : file, line, event, text);
}

}  // namespace baton
