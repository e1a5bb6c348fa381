// SPDX-License-Identifier: Apache-2.0
// Structured logs: a stable dotted event name, then key=value pairs.
//   LogInfo("stage.loaded", "layers=[{},{}) bytes={}", begin, end, bytes);
// Never prompt text; nothing per token above Trace. Thread: any.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace baton {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };

// Writes one line to stderr. Only log.cc knows the logging library.
void LogLine(LogLevel level, std::string_view event, std::string_view text,
             const char* file, int line);
[[nodiscard]] bool LogEnabled(LogLevel level);
void SetLogLevel(LogLevel level);
// The name every line of this process carries ("controller", "stage:a").
void SetLogNode(std::string node);

template <typename... Args>
struct LogFormat {
  template <typename S>
  consteval LogFormat(const S& s,  // NOLINT: converts
                      const char* f = __builtin_FILE(),
                      int l = __builtin_LINE())
      : format(s), file(f), line(l) {}
  fmt::format_string<Args...> format;
  const char* file;
  int line;
};

template <typename... Args>
void Log(LogLevel level, std::string_view event,
         LogFormat<std::type_identity_t<Args>...> f, Args&&... args) {
  if (!LogEnabled(level)) return;
  LogLine(level, event, fmt::format(f.format, std::forward<Args>(args)...),
          f.file, f.line);
}

#define BATON_DEFINE_LOG(name, level)                                     \
  template <typename... Args>                                             \
  void name(std::string_view event,                                       \
            LogFormat<std::type_identity_t<Args>...> f, Args&&... args) { \
    Log(level, event, f, std::forward<Args>(args)...);                    \
  }
BATON_DEFINE_LOG(LogTrace, LogLevel::kTrace)
BATON_DEFINE_LOG(LogDebug, LogLevel::kDebug)
BATON_DEFINE_LOG(LogInfo, LogLevel::kInfo)
BATON_DEFINE_LOG(LogWarn, LogLevel::kWarn)
BATON_DEFINE_LOG(LogError, LogLevel::kError)
#undef BATON_DEFINE_LOG

}  // namespace baton
