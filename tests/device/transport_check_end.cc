// SPDX-License-Identifier: Apache-2.0
// Ends, and ends in other processes.
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/device/transport_check.h"

extern char** environ;

namespace baton::check {
namespace {

bool WriteText(int fd, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  return send(fd, &bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes) &&
         send(fd, text.data(), bytes, MSG_NOSIGNAL) == bytes;
}

std::string ReadText(int fd) {
  uint32_t bytes = 0;
  if (recv(fd, &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return "";
  std::string text(bytes, '\0');
  if (recv(fd, text.data(), bytes, MSG_WAITALL) != bytes) return "";
  return text;
}

// Leaves the child's stream so that no put ever runs, and says it was sent.
Status SendWithoutData(End& end, int fd) {
  BATON_RETURN_IF_ERROR(end.SendRows(0, 1, End::Contents::kSeeded));
  BATON_ASSIGN_OR_RETURN(Packet packet, end.Next(absl::Seconds(20)));
  end.plane().Consume(end.peer());
  BATON_ASSIGN_OR_RETURN(Buffer words, end.device().Allocate(256));
  BATON_RETURN_IF_ERROR(end.device().Clear(words.data(), 256, end.stream()));
  BATON_ASSIGN_OR_RETURN(Buffer host, end.device().AllocateHost(256));
  std::memset(host.data(), 0, 256);
  CudaWait wait;
  wait.flag = reinterpret_cast<uint64_t*>(words.data());
  wait.value = 1;
  wait.limit_ns = absl::ToInt64Nanoseconds(absl::Seconds(60));
  wait.wait = reinterpret_cast<CudaWaitWords*>(host.data());
  wait.words = reinterpret_cast<CudaPutWords*>(words.data() + 128);
  BATON_RETURN_IF_ERROR(CudaStatus(LaunchWait(wait, CudaStreamOf(end.stream())),
                                   "launch a wait"));
  BATON_RETURN_IF_ERROR(end.SendRows(1, 1, End::Contents::kNone));
  (void)WriteText(fd, "sent");
  while (true) end.Step();
}

}  // namespace

const char* Name(Path path) {
  switch (path) {
    case Path::kHost:
      return "host";
    case Path::kDirect:
      return "direct";
    case Path::kNccl:
      return "nccl";
  }
  return "?";
}

CudaPlaneOptions OptionsFor(Path path) {
  CudaPlaneOptions options;
  options.direct = path == Path::kDirect;
  options.nccl = path == Path::kNccl;
  options.deadline = absl::Seconds(15);
  return options;
}

SessionInfo CheckSession() {
  SessionInfo session;
  session.epoch = Epoch(kEpoch);
  session.key = 77;
  session.max_packet_bytes = int64_t{8192} * kColumns * 2;
  session.credits = 8;
  return session;
}

StatusOr<std::unique_ptr<End>> End::Make(
    int stage, int gpu, const CudaPlaneOptions& options,
    std::shared_ptr<InprocNetwork> network) {
  std::unique_ptr<End> end(new End);
  end->stage_ = stage;
  BATON_ASSIGN_OR_RETURN(end->device_, NewCudaDevice(gpu));
  BATON_ASSIGN_OR_RETURN(end->stream_, end->device_->NewStream());
  DataPlaneEvents events;
  events.on_packet = [e = end.get()](Packet packet) {
    e->packets.push_back(std::move(packet));
  };
  events.on_peer_lost = [e = end.get()](StageId, const Status& why) {
    e->lost = why;
  };
  auto host_plane =
      [&](DataPlaneEvents inner) -> StatusOr<std::unique_ptr<DataPlane>> {
    if (network != nullptr) {
      return NewInprocDataPlane(network, std::move(inner));
    }
    UcxOptions ucx;
    if (const char* name = std::getenv("BATON_CHECK_UCX")) {
      ucx.transports = name;
    }
    return NewUcxDataPlane(ucx, std::move(inner));
  };
  BATON_ASSIGN_OR_RETURN(
      end->plane_,
      NewCudaDataPlane(host_plane, end->device_.get(), end->stream_.get(),
                       options, std::move(events)));
  return end;
}

End::~End() {
  packets.clear();
  plane_ = nullptr;
}

Status End::Connect(const std::string& peer_address) {
  return plane_->Connect(CheckSession(), self(), {{peer(), peer_address}});
}

void End::Step() {
  if (!plane_->Progress()) plane_->Wait(absl::Milliseconds(1));
}

StatusOr<Packet> End::Next(absl::Duration limit) {
  const absl::Time by = absl::Now() + limit;
  while (packets.empty()) {
    BATON_RETURN_IF_ERROR(lost);
    if (absl::Now() > by) {
      return DeadlineExceeded("no packet after {}",
                              absl::FormatDuration(limit));
    }
    Step();
  }
  Packet packet = std::move(packets.front());
  packets.pop_front();
  return packet;
}

Status End::SendRows(uint64_t step, int rows, Contents contents) {
  BATON_ASSIGN_OR_RETURN(
      Tensor payload,
      Tensor::Allocate(*device_, DType::kBF16, {rows, kColumns}));
  if (contents == Contents::kSeeded) {
    BATON_ASSIGN_OR_RETURN(
        Tensor host, Tensor::AllocateHost(DType::kBF16, {rows, kColumns}));
    Pattern(step, stage_, host.view().data(), host.bytes());
    // From memory that is not pinned: copied before it returns.
    BATON_RETURN_IF_ERROR(device_->Copy(
        payload.view().data(), host.view().data(), host.bytes(), *stream_));
  }
  PacketHeader header;
  header.epoch = Epoch(kEpoch);
  header.step = StepId(step);
  header.dtype = DType::kBF16;
  header.rows = rows;
  header.columns = kColumns;
  return plane_->Send(peer(), header, std::move(payload));
}

Status End::SendTokens(uint64_t step) {
  BATON_ASSIGN_OR_RETURN(Tensor tokens,
                         Tensor::AllocateHost(DType::kI32, {1, 1}));
  std::memset(tokens.view().data(), 0, 4);
  PacketHeader header;
  header.epoch = Epoch(kEpoch);
  header.step = StepId(step);
  header.kind = PacketKind::kTokens;
  header.dtype = DType::kI32;
  header.rows = 1;
  header.columns = 1;
  return plane_->Send(peer(), header, std::move(tokens));
}

StatusOr<std::unique_ptr<Child>> Child::Start(const std::string& role,
                                              Path path, int gpu) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
    return Internal("socketpair");
  }
  std::unique_ptr<Child> child(new Child);
  child->fd_ = pair[0];
  const timeval limit = {25, 0};
  setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string args[] = {
      "transport_check", "--child",           role,
      Name(path),        std::to_string(gpu), std::to_string(pair[1])};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclose(&actions, pair[0]);
  const int error = posix_spawn(&child->pid_, "/proc/self/exe", &actions,
                                nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  if (error != 0) return Internal("posix_spawn: {}", error);
  return child;
}

Child::~Child() {
  Signal(SIGKILL);
  (void)Wait();
  close(fd_);
}

Status Child::Connect(End& end) {
  const std::string address = ReadText(fd_);
  if (address.empty()) return Internal("the other process sent no address");
  BATON_RETURN_IF_ERROR(end.Connect(address));
  if (!WriteText(fd_, end.plane().Address()) || ReadText(fd_) != "connected") {
    return Internal("the other process did not connect");
  }
  return OkStatus();
}

void Child::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

int Child::Wait() {
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

bool Child::Hear() { return !ReadText(fd_).empty(); }

int RunChild(const std::string& role, const std::string& path_name, int gpu,
             int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Path path = Path::kHost;
  for (const Path p : {Path::kDirect, Path::kNccl}) {
    if (path_name == Name(p)) path = p;
  }
  auto run = [&]() -> Status {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<End> end,
                           End::Make(1, gpu, OptionsFor(path), nullptr));
    if (!WriteText(fd, end->plane().Address())) return Internal("no parent");
    BATON_RETURN_IF_ERROR(end->Connect(ReadText(fd)));
    if (!WriteText(fd, "connected")) return Internal("no parent");
    if (role == "exchange") return Exchange(*end, path);
    return SendWithoutData(*end, fd);
  };
  const Status status = run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "stage 1: %s\n", ToString(status).c_str());
  return 1;
}

}  // namespace baton::check
