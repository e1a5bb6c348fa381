// SPDX-License-Identifier: Apache-2.0
// The UCX back end between processes, and what is left when one of them dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/runtime/transport/plane_testing.h"

namespace baton {
namespace {

using testing::Backend;
using testing::End;
using testing::Fabric;
using testing::SendStep;
using testing::StreamHeader;
using testing::TestSession;
using testing::TestTensor;

constexpr StageId kParent(0);
constexpr StageId kEcho(1);

// Both ends of the pair may be gone; a test then fails by its deadline.
void WriteText(int fd, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  (void)!send(fd, &bytes, sizeof(bytes), MSG_NOSIGNAL);
  (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

std::string ReadText(int fd) {
  uint32_t bytes = 0;
  if (recv(fd, &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return "";
  std::string text(bytes, '\0');
  if (recv(fd, text.data(), bytes, MSG_WAITALL) != bytes) return "";
  return text;
}

// The child's body: not a test of its own, run by EchoProcess through exec so
// that no state of UCX is forked. Sends back every packet that it gets.
TEST(DISABLED_EchoProcess, Serves) {
  const char* const fd_text = std::getenv("BATON_ECHO_FD");
  if (fd_text == nullptr) GTEST_SKIP();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = std::atoi(fd_text);
  Fabric fabric({"ucx", std::getenv("BATON_ECHO_TRANSPORTS")});
  End self(fabric, kEcho.value());
  WriteText(fd, self->Address());
  const uint64_t epoch = std::stoull(ReadText(fd));
  ASSERT_TRUE(
      self->Connect(TestSession(epoch), kEcho, {{kParent, ReadText(fd)}}).ok());
  WriteText(fd, "connected");
  while (self.lost.empty()) {
    if (!self->Progress()) self->Wait(absl::Seconds(1));
    for (Packet& packet : std::exchange(self.packets, {})) {
      self->Consume(kParent);
      (void)self->Send(kParent, packet.header, std::move(packet.payload));
    }
  }
}

class EchoProcess {
 public:
  explicit EchoProcess(const std::string& transports) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    const std::string fd = std::to_string(pair[1]);
    std::string fd_env = "BATON_ECHO_FD=" + fd;
    std::string tls_env = "BATON_ECHO_TRANSPORTS=" + transports;
    std::string filter = "--gtest_filter=DISABLED_EchoProcess.Serves";
    std::string also = "--gtest_also_run_disabled_tests";
    std::string name = "echo";
    std::vector<char*> argv = {name.data(), filter.data(), also.data(),
                               nullptr};
    std::vector<char*> env = {fd_env.data(), tls_env.data()};
    for (char** e = environ; *e != nullptr; ++e) env.push_back(*e);
    env.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      close(pair[0]);
      execve("/proc/self/exe", argv.data(), env.data());
      _exit(127);
    }
    close(pair[1]);
    fd_ = pair[0];
    const timeval limit = {30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~EchoProcess() {
    Signal(SIGKILL);
    Reap();
    close(fd_);
  }
  EchoProcess(const EchoProcess&) = delete;
  EchoProcess& operator=(const EchoProcess&) = delete;

  // Connects both ends in the session of `epoch`; steps may be sent then.
  void Join(End& parent, uint64_t epoch) {
    const std::string address = ReadText(fd_);
    ASSERT_TRUE(
        parent->Connect(TestSession(epoch), kParent, {{kEcho, address}}).ok());
    WriteText(fd_, std::to_string(epoch));
    WriteText(fd_, parent->Address());
    ASSERT_EQ(ReadText(fd_), "connected");
  }
  void Signal(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  // Shared memory takes a process that is not reaped for a live one.
  void Reap() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// Runs the end as an actor does, sleeping between events.
template <typename Done>
bool RunUntil(End& end, const Done& done) {
  const absl::Time deadline = absl::Now() + testing::kTestDeadline;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    if (!end->Progress()) end->Wait(absl::Seconds(1));
  }
  return true;
}

double ThreadCpuSeconds() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * used.tv_nsec;
}

// CPU seconds per second of an end that waits for half a second.
double IdleLoad(End& end) {
  const double used = ThreadCpuSeconds();
  const absl::Time start = absl::Now();
  const absl::Time until = start + absl::Milliseconds(500);
  while (absl::Now() < until) {
    (void)end->Progress();
    end->Wait(until - absl::Now());
  }
  return (ThreadCpuSeconds() - used) /
         absl::ToDoubleSeconds(absl::Now() - start);
}

class ProcessTest : public ::testing::TestWithParam<Backend> {
 protected:
  Fabric fabric_{GetParam()};
  End self_{fabric_, kParent.value()};
};

TEST_P(ProcessTest, CarriesAllSizesThereAndBack) {
  EchoProcess echo(GetParam().transports);
  echo.Join(self_, 1);
  uint64_t step = 0;
  for (const int rows : {0, 1, 2, 128, 8192, 1, 0}) {
    const PacketHeader header = StreamHeader(1, ++step, rows, 4096);
    ASSERT_TRUE(
        self_->Send(kEcho, header, TestTensor(DType::kBF16, rows, 4096, 1))
            .ok());
    ASSERT_TRUE(RunUntil(self_, [&] { return !self_.packets.empty(); }))
        << rows;
    EXPECT_EQ(self_.packets[0].header, header);
    EXPECT_TRUE(testing::SameBytes(self_.packets[0].payload,
                                   TestTensor(DType::kBF16, rows, 4096, 1)));
    self_.packets.clear();
    self_->Consume(kEcho);
  }
}

TEST_P(ProcessTest, LearnsOnceThatAPeerLeft) {
  EchoProcess echo(GetParam().transports);
  echo.Join(self_, 1);
  ASSERT_TRUE(SendStep(self_, kEcho, 1, 1).ok());
  ASSERT_TRUE(RunUntil(self_, [&] { return !self_.packets.empty(); }));
  // Ends the child's session, by which it learns to leave.
  ASSERT_TRUE(self_->Connect(TestSession(2), kParent, {}).ok());
  echo.Reap();
  EXPECT_TRUE(self_.lost.empty());
}

TEST_P(ProcessTest, NeitherHangsNorSpinsWhenAPeerIsKilledIdle) {
  EchoProcess echo(GetParam().transports);
  echo.Join(self_, 1);
  ASSERT_TRUE(SendStep(self_, kEcho, 1, 1).ok());
  ASSERT_TRUE(RunUntil(self_, [&] { return !self_.packets.empty(); }));
  echo.Signal(SIGKILL);
  echo.Reap();
  ASSERT_TRUE(RunUntil(self_, [&] { return !self_.lost.empty(); }));
  EXPECT_EQ(self_.lost[0].first, kEcho);
  EXPECT_EQ(SendStep(self_, kEcho, 1, 2).code(), StatusCode::kUnavailable);
  EXPECT_LT(IdleLoad(self_), 0.05);
  EXPECT_EQ(self_.lost.size(), 1u);
}

TEST_P(ProcessTest, SurvivesAPeerKilledWithTransfersInFlight) {
  EchoProcess echo(GetParam().transports);
  echo.Join(self_, 1);
  for (uint64_t step = 0; step < 16; ++step) {
    ASSERT_TRUE(SendStep(self_, kEcho, 1, step, 512, 4096).ok());
  }
  ASSERT_TRUE(RunUntil(self_, [&] { return self_.packets.size() == 1; }));
  echo.Signal(SIGKILL);
  echo.Reap();
  ASSERT_TRUE(RunUntil(self_, [&] { return !self_.lost.empty(); }));
  EXPECT_LT(IdleLoad(self_), 0.05);
  EXPECT_EQ(self_.lost.size(), 1u);
  // A replacement takes the place of the lost one.
  ASSERT_TRUE(self_->Renew().ok());
  EchoProcess next(GetParam().transports);
  next.Join(self_, 2);
  self_.packets.clear();
  ASSERT_TRUE(SendStep(self_, kEcho, 2, 100).ok());
  ASSERT_TRUE(RunUntil(self_, [&] { return !self_.packets.empty(); }));
  EXPECT_EQ(self_.packets[0].header.step, StepId(100));
}

TEST_P(ProcessTest, SleepsWhileAPeerIsStoppedAndGoesOnAfter) {
  EchoProcess echo(GetParam().transports);
  echo.Join(self_, 1);
  ASSERT_TRUE(SendStep(self_, kEcho, 1, 0).ok());
  ASSERT_TRUE(RunUntil(self_, [&] { return self_.packets.size() == 1; }));
  self_->Consume(kEcho);
  echo.Signal(SIGSTOP);
  for (uint64_t step = 1; step < 30; ++step) {
    ASSERT_TRUE(SendStep(self_, kEcho, 1, step, 16, 4096).ok());
  }
  EXPECT_LT(IdleLoad(self_), 0.05);
  EXPECT_TRUE(self_.lost.empty());
  EXPECT_GT(self_->counters().credit_stalls, 0);
  echo.Signal(SIGCONT);
  size_t consumed = 1;
  EXPECT_TRUE(RunUntil(self_, [&] {
    for (; consumed < self_.packets.size(); ++consumed) self_->Consume(kEcho);
    return self_.packets.size() == 30;
  }));
  EXPECT_EQ(self_.packets.back().header.step, StepId(29));
}

TEST_P(ProcessTest, IsDestroyedInTimeWhileAPeerIsStopped) {
  EchoProcess echo(GetParam().transports);
  echo.Join(self_, 1);
  echo.Signal(SIGSTOP);
  for (uint64_t step = 0; step < 16; ++step) {
    ASSERT_TRUE(SendStep(self_, kEcho, 1, step, 1024, 4096).ok());
  }
  (void)self_->Progress();
  const absl::Time start = absl::Now();
  self_.Destroy();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

INSTANTIATE_TEST_SUITE_P(All, ProcessTest,
                         ::testing::Values(Backend{"tcp", "tcp"},
                                           Backend{"posix", "posix,cma"},
                                           Backend{"sysv", "sysv,cma"},
                                           Backend{"shm", "shm"},
                                           Backend{"auto", ""}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton
