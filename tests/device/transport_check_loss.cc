// SPDX-License-Identifier: Apache-2.0
// A peer dies, or stops, while this end's stream waits for what it announced.
#include <signal.h>

#include <cstring>

#include "tests/device/transport_check.h"

namespace baton::check {
namespace {

constexpr absl::Duration kStopDeadline = absl::Seconds(2);

Status CheckUsable(End& end) {
  constexpr int64_t kBytes = 1 << 20;
  BATON_ASSIGN_OR_RETURN(Buffer from, end.device().AllocateHost(kBytes));
  BATON_ASSIGN_OR_RETURN(Buffer to, end.device().AllocateHost(kBytes));
  BATON_ASSIGN_OR_RETURN(Buffer gpu, end.device().Allocate(kBytes));
  Pattern(5, 0, from.data(), kBytes);
  BATON_RETURN_IF_ERROR(
      end.device().Copy(gpu.data(), from.data(), kBytes, end.stream()));
  BATON_RETURN_IF_ERROR(
      end.device().Copy(to.data(), gpu.data(), kBytes, end.stream()));
  BATON_RETURN_IF_ERROR(end.stream().Synchronize());
  return std::memcmp(from.data(), to.data(), kBytes) == 0
             ? OkStatus()
             : Internal("the stream copies wrongly");
}

// Both ends know each other's paths; the last packet's data never comes.
Status ReachTheWait(End& end, Child& child) {
  BATON_RETURN_IF_ERROR(child.Connect(end));
  BATON_ASSIGN_OR_RETURN(Packet first, end.Next(absl::Seconds(20)));
  end.plane().Consume(end.peer());
  if (first.ready == nullptr) return Internal("not in GPU memory");
  BATON_RETURN_IF_ERROR(end.stream().WaitFor(*first.ready));
  BATON_RETURN_IF_ERROR(end.stream().Synchronize());
  first.payload = Tensor();
  BATON_RETURN_IF_ERROR(end.SendRows(0, 1, End::Contents::kSeeded));
  BATON_ASSIGN_OR_RETURN(Packet second, end.Next(absl::Seconds(20)));
  if (!child.Hear()) return Internal("the other process is gone");
  BATON_RETURN_IF_ERROR(end.stream().WaitFor(*second.ready));
  BATON_ASSIGN_OR_RETURN(Buffer host, end.device().AllocateHost(1 << 20));
  BATON_RETURN_IF_ERROR(
      end.device().Copy(host.data(), second.payload.view().data(),
                        second.payload.bytes(), end.stream()));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Event> after, end.stream().Record());
  for (int i = 0; i < 100; ++i) end.Step();
  BATON_ASSIGN_OR_RETURN(const bool done, after->Done());
  return done ? Internal("the stream did not wait") : OkStatus();
}

StatusOr<std::string> Killed(Path path, int gpu) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Child> child,
                         Child::Start("silent", path, gpu));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<End> end,
                         End::Make(0, 0, OptionsFor(path), nullptr));
  BATON_RETURN_IF_ERROR(ReachTheWait(*end, *child));
  const absl::Time start = absl::Now();
  child->Signal(SIGKILL);
  (void)child->Wait();
  while (end->lost.ok() && absl::Now() - start < absl::Seconds(10)) {
    end->Step();
  }
  const absl::Duration took = absl::Now() - start;
  if (end->lost.ok() || took > absl::Seconds(5)) {
    return Internal("told after {}", absl::FormatDuration(took));
  }
  BATON_RETURN_IF_ERROR(CheckUsable(*end));
  if (end->SendRows(9, 1, End::Contents::kNone).ok()) {
    return Internal("a send to the dead succeeded");
  }
  return fmt::format("ok, told after {:.2f} s: {}", absl::ToDoubleSeconds(took),
                     Message(end->lost));
}

// Nobody says that the peer is gone, and this end's thread sits in a wait.
StatusOr<std::string> Stopped(Path path, int gpu) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Child> child,
                         Child::Start("silent", path, gpu));
  CudaPlaneOptions options = OptionsFor(path);
  options.deadline = kStopDeadline;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<End> end,
                         End::Make(0, 0, options, nullptr));
  BATON_RETURN_IF_ERROR(ReachTheWait(*end, *child));
  child->Signal(SIGSTOP);
  const absl::Time start = absl::Now();
  BATON_RETURN_IF_ERROR(end->stream().Synchronize());
  const absl::Duration took = absl::Now() - start;
  if (end->SendRows(9, 1, End::Contents::kNone).ok()) {
    return Internal("a send of what is not data succeeded");
  }
  (void)end->plane().Progress();
  if (end->lost.code() != StatusCode::kDeadlineExceeded) {
    return Internal("told: {}", ToString(end->lost));
  }
  BATON_RETURN_IF_ERROR(CheckUsable(*end));
  child->Signal(SIGKILL);
  (void)child->Wait();
  return fmt::format("ok, waited {:.2f} s: {}", absl::ToDoubleSeconds(took),
                     Message(end->lost));
}

}  // namespace

void CheckLosses(int gpus) {
  struct Case {
    Path path;
    int gpu;
  };
  for (const Case& c :
       {Case{Path::kDirect, 0}, Case{Path::kDirect, 1}, Case{Path::kNccl, 1}}) {
    if (c.gpu >= gpus) continue;
    const std::string where =
        fmt::format("{}, GPUs 0 and {}", Name(c.path), c.gpu);
    for (const bool killed : {true, false}) {
      const std::string name =
          fmt::format("{}, {}", killed ? "killed" : "stopped", where);
      if (!Begin(name)) continue;
      const StatusOr<std::string> result =
          killed ? Killed(c.path, c.gpu) : Stopped(c.path, c.gpu);
      if (result.ok()) {
        Report(name, *result);
      } else {
        Fail(name, ToString(result.status()));
      }
    }
  }
}

}  // namespace baton::check
