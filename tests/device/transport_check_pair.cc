// SPDX-License-Identifier: Apache-2.0
// Two ends in two threads or two processes: what one sends, the other gets.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/device/transport_check.h"

namespace baton::check {
namespace {

constexpr int kPackets = 200;
// Sent ahead of what has arrived.
constexpr int kAhead = 12;
constexpr uint64_t kLastStep = 1000;
constexpr absl::Duration kLimit = absl::Seconds(25);

int RowsOf(uint64_t step, int from) {
  if (step % 50 == 7) return 8192;
  std::mt19937_64 random(step * 2 + static_cast<uint64_t>(from));
  return 1 + static_cast<int>(random() % 64);
}

bool IsTokens(uint64_t step) { return step % 10 == 9; }

// A packet whose payload is on its way to the host.
struct Checked {
  Packet packet;  // keeps host payloads
  Buffer host;
  std::unique_ptr<Event> copied;
};

StatusOr<Checked> Read(End& end, Packet packet) {
  Checked checked;
  const bool on_device = packet.ready != nullptr;
  if (on_device) {
    BATON_RETURN_IF_ERROR(end.stream().WaitFor(*packet.ready));
    BATON_ASSIGN_OR_RETURN(checked.host,
                           end.device().AllocateHost(packet.payload.bytes()));
    BATON_RETURN_IF_ERROR(
        end.device().Copy(checked.host.data(), packet.payload.view().data(),
                          packet.payload.bytes(), end.stream()));
    BATON_ASSIGN_OR_RETURN(checked.copied, end.stream().Record());
    const int64_t bytes = packet.payload.bytes();
    packet.payload = Tensor();  // gives the slot back
    if (checked.host.bytes() != bytes) return Internal("host copy is short");
  }
  checked.packet = std::move(packet);
  return checked;
}

Status Compare(const Checked& checked, uint64_t step, Path path) {
  const PacketHeader& header = checked.packet.header;
  const int from = checked.packet.from.value();
  const bool tokens = IsTokens(step);
  if (header.step != StepId(step) ||
      (header.kind == PacketKind::kTokens) != tokens) {
    return Internal("{} came, step {} is next", ToString(header), step);
  }
  if (tokens) return OkStatus();
  if (header.rows != RowsOf(step, from)) {
    return Internal("{}: expected {} rows", ToString(header),
                    RowsOf(step, from));
  }
  const bool on_device = checked.copied != nullptr;
  if (on_device != (path != Path::kHost)) {
    return Internal("{} came {}", ToString(header),
                    on_device ? "in GPU memory" : "in host memory");
  }
  const int64_t bytes = int64_t{header.rows} * kColumns * 2;
  std::vector<std::byte> expected(static_cast<size_t>(bytes));
  Pattern(step, from, expected.data(), bytes);
  const std::byte* data =
      on_device ? checked.host.data() : checked.packet.payload.view().data();
  if (std::memcmp(data, expected.data(), expected.size()) == 0) {
    return OkStatus();
  }
  for (int64_t i = 0; i < bytes; ++i) {
    if (data[i] != expected[static_cast<size_t>(i)]) {
      return Internal("{} differs at byte {}", ToString(header), i);
    }
  }
  return OkStatus();
}

// Runs both ends in threads of this process.
template <typename Body>
Status InThreads(Path path, int gpu_a, int gpu_b, const Body& body) {
  auto network = NewInprocNetwork();
  const int gpus[] = {gpu_a, gpu_b};
  std::unique_ptr<End> ends[2];
  for (int i = 0; i < 2; ++i) {
    BATON_ASSIGN_OR_RETURN(ends[i],
                           End::Make(i, gpus[i], OptionsFor(path), network));
  }
  for (int i = 0; i < 2; ++i) {
    BATON_RETURN_IF_ERROR(ends[i]->Connect(ends[1 - i]->plane().Address()));
  }
  Status results[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] { results[i] = body(*ends[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  BATON_RETURN_IF_ERROR(Annotate(results[0], "stage 0"));
  return Annotate(results[1], "stage 1");
}

Status InProcesses(Path path, int gpu_a, int gpu_b) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Child> child,
                         Child::Start("exchange", path, gpu_b));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<End> end,
                         End::Make(0, gpu_a, OptionsFor(path), nullptr));
  BATON_RETURN_IF_ERROR(child->Connect(*end));
  BATON_RETURN_IF_ERROR(Exchange(*end, path));
  end = nullptr;  // what it said last leaves
  const int status = child->Wait();
  return status == 0 ? OkStatus() : Internal("stage 1: status {}", status);
}

template <typename Body>
void Case(const std::string& name, const Body& body) {
  if (!Begin(name)) return;
  const absl::Time start = absl::Now();
  const Status status = body();
  if (!status.ok()) return Fail(name, ToString(status));
  Report(name, fmt::format("ok, {:.1f} s",
                           absl::ToDoubleSeconds(absl::Now() - start)));
}

}  // namespace

void Pattern(uint64_t step, int from, std::byte* data, int64_t bytes) {
  uint64_t state = (step * 2 + static_cast<uint64_t>(from) + 1) *
                   uint64_t{0x9e3779b97f4a7c15};
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(data + i, &state, 8);
  }
}

Status Exchange(End& end, Path path) {
  std::deque<Checked> reading;
  uint64_t sent = 0;
  uint64_t arrived = 0;
  uint64_t compared = 0;
  bool said_last = false;
  bool heard_last = false;
  const absl::Time by = absl::Now() + kLimit;
  while (!said_last || !heard_last) {
    if (!end.lost.ok() && !(heard_last && said_last)) return end.lost;
    if (absl::Now() > by) {
      return DeadlineExceeded("sent {}, arrived {}, compared {} of {}", sent,
                              arrived, compared, kPackets);
    }
    if (sent < kPackets && sent < arrived + kAhead) {
      BATON_RETURN_IF_ERROR(
          IsTokens(sent) ? end.SendTokens(sent)
                         : end.SendRows(sent, RowsOf(sent, end.self().value()),
                                        End::Contents::kSeeded));
      ++sent;
    }
    end.Step();
    while (!end.packets.empty()) {
      Packet packet = std::move(end.packets.front());
      end.packets.pop_front();
      end.plane().Consume(end.peer());
      if (packet.header.step == StepId(kLastStep)) {
        heard_last = true;
        continue;
      }
      BATON_ASSIGN_OR_RETURN(Checked checked, Read(end, std::move(packet)));
      reading.push_back(std::move(checked));
      ++arrived;
    }
    while (!reading.empty()) {
      if (Event* copied = reading.front().copied.get()) {
        BATON_ASSIGN_OR_RETURN(const bool done, copied->Done());
        if (!done) break;
      }
      BATON_RETURN_IF_ERROR(Compare(reading.front(), compared, path));
      reading.pop_front();
      ++compared;
    }
    if (!said_last && sent == kPackets && compared == kPackets) {
      BATON_RETURN_IF_ERROR(end.SendTokens(kLastStep));
      said_last = true;
    }
  }
  return OkStatus();
}

StatusOr<double> PingPong(End& end, int rows, int hops) {
  const bool first = end.self() == StageId(0);
  constexpr int kWarmUp = 20;
  absl::Time start;
  for (int i = 0; i < kWarmUp + hops; ++i) {
    if (i == kWarmUp) start = absl::Now();
    if ((i % 2 == 0) == first) {
      BATON_RETURN_IF_ERROR(
          end.SendRows(static_cast<uint64_t>(i), rows, End::Contents::kNone));
      continue;
    }
    BATON_ASSIGN_OR_RETURN(Packet packet, end.Next(absl::Seconds(10)));
    end.plane().Consume(end.peer());
    if (packet.ready == nullptr) continue;
    BATON_RETURN_IF_ERROR(end.stream().WaitFor(*packet.ready));
  }
  BATON_RETURN_IF_ERROR(end.stream().Synchronize());
  const double us = absl::ToDoubleMicroseconds(absl::Now() - start);
  // The other end may still be waiting for this one's words.
  BATON_RETURN_IF_ERROR(end.SendTokens(kLastStep));
  BATON_ASSIGN_OR_RETURN(const Packet last, end.Next(absl::Seconds(10)));
  return us / hops;
}

void CheckPairs(int gpus) {
  for (const Path path : {Path::kHost, Path::kDirect, Path::kNccl}) {
    for (int other = 0; other < std::min(gpus, 2); ++other) {
      // NCCL refuses two ranks on one GPU; host copies are all the same.
      if (path == Path::kNccl && other == 0) continue;
      if (path == Path::kHost && other == 1) continue;
      const std::string name =
          fmt::format("{}, GPUs 0 and {}", Name(path), other);
      Case(name + ", threads", [&] {
        return InThreads(path, 0, other,
                         [&](End& end) { return Exchange(end, path); });
      });
      Case(name + ", processes", [&] { return InProcesses(path, 0, other); });
    }
  }
  for (const Path path : {Path::kHost, Path::kDirect, Path::kNccl}) {
    if (gpus < 2 && path == Path::kNccl) continue;
    for (const int rows : {1, 64}) {
      const std::string name =
          fmt::format("latency, planes, {}, {} rows", Name(path), rows);
      if (!Begin(name)) continue;
      double us = 0;
      const Status status =
          InThreads(path, 0, gpus < 2 ? 0 : 1, [&](End& end) -> Status {
            BATON_ASSIGN_OR_RETURN(const double hop, PingPong(end, rows, 200));
            if (end.self() == StageId(0)) us = hop;
            return OkStatus();
          });
      if (!status.ok()) {
        Fail(name, ToString(status));
      } else {
        Report(name, fmt::format("{:.2f} us a hop, with the host", us));
      }
    }
  }
}

}  // namespace baton::check
