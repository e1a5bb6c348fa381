// SPDX-License-Identifier: Apache-2.0
// One hop of the data plane between two processes: one row of 4096 bf16, there
// and back, half the round trip. In the same run and interleaved with it, plain
// UCX active messages of the same size with busy polling, as the floor.
//
//   hop_bench [--rounds N] [--columns N] [--json FILE]
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/transport/channel.h"

namespace baton {
namespace {

constexpr int kHopsPerRound = 200;
constexpr int kWarmUpRounds = 3;

struct Settings {
  int rounds = 50;
  int columns = 4096;
  std::string json;
};

double NowMicros() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * now.tv_nsec;
}

void WriteText(int fd, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  BATON_CHECK(write(fd, &bytes, sizeof(bytes)) == sizeof(bytes));
  BATON_CHECK(write(fd, text.data(), bytes) == static_cast<ssize_t>(bytes));
}

std::string ReadText(int fd) {
  uint32_t bytes = 0;
  BATON_CHECK(recv(fd, &bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes));
  std::string text(bytes, '\0');
  BATON_CHECK(recv(fd, text.data(), bytes, MSG_WAITALL) ==
              static_cast<ssize_t>(bytes));
  return text;
}

std::string Exchange(int fd, const std::string& mine) {
  WriteText(fd, mine);
  return ReadText(fd);
}

// One side of a ping-pong.
class Player {
 public:
  virtual ~Player() = default;
  virtual void Send() = 0;
  // Returns when one more message is there.
  virtual void Receive() = 0;
};

// The data plane, used as a stage does.
class PlanePlayer : public Player {
 public:
  PlanePlayer(int fd, int stage, const UcxOptions& options,
              const Settings& settings)
      : self_(stage), other_(1 - stage) {
    auto plane = NewUcxDataPlane(
        options,
        {.on_packet = [this](Packet p) { packet_ = std::move(p); },
         .on_peer_lost = [](StageId, const Status&) { std::exit(1); }});
    BATON_CHECK(plane.ok());
    plane_ = std::move(plane).value();
    const std::string address = Exchange(fd, plane_->Address());
    const SessionInfo session = {
        .epoch = Epoch(1), .key = 1, .max_packet_bytes = 1 << 24};
    BATON_CHECK(plane_->Connect(session, self_, {{other_, address}}).ok());
    (void)Exchange(fd, "connected");
    header_ = {.epoch = Epoch(1),
               .kind = PacketKind::kStream,
               .dtype = DType::kBF16,
               .rows = 1,
               .columns = settings.columns};
    auto payload = Tensor::AllocateHost(DType::kBF16, {1, settings.columns});
    BATON_CHECK(payload.ok());
    std::memset(payload->view().data(), 1,
                static_cast<size_t>(payload->bytes()));
    if (stage == 0) packet_.payload = std::move(payload).value();  // serves
  }
  void Send() override {
    Tensor payload = std::move(packet_.payload);
    packet_.payload = Tensor();
    BATON_CHECK(plane_->Send(other_, header_, std::move(payload)).ok());
  }
  void Receive() override {
    while (packet_.payload.empty()) {
      if (!plane_->Progress()) plane_->Wait(absl::Seconds(1));
    }
    plane_->Consume(other_);
  }

 private:
  StageId self_;
  StageId other_;
  std::unique_ptr<DataPlane> plane_;
  PacketHeader header_;
  Packet packet_;  // what came last, and goes back
};

// Plain UCX: no session, no credits, no sleep.
class RawPlayer : public Player {
 public:
  RawPlayer(int fd, const std::string& transports, const Settings& settings)
      : out_(static_cast<size_t>(settings.columns) * 2), in_(out_.size()) {
    ucp_config_t* config = nullptr;
    Check(ucp_config_read(nullptr, nullptr, &config));
    Check(ucp_config_modify(config, "TLS", transports.c_str()));
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    Check(ucp_init(&params, config, &context_));
    ucp_config_release(config);
    const ucp_worker_params_t worker_params = {};
    Check(ucp_worker_create(context_, &worker_params, &worker_));
    Listen();
    ConnectTo(Exchange(fd, Address()));
    (void)Exchange(fd, "connected");
  }
  void Send() override {
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;  // a rendezvous is slower here
    const ucs_status_ptr_t request = ucp_am_send_nbx(
        endpoint_, 1, nullptr, 0, out_.data(), out_.size(), &params);
    BATON_CHECK(!UCS_PTR_IS_ERR(request));
    if (request == nullptr) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_);
    }
    ucp_request_free(request);
  }
  void Receive() override {
    while (received_ == 0) ucp_worker_progress(worker_);
    --received_;
  }

 private:
  static void Check(ucs_status_t status) { BATON_CHECK(status == UCS_OK); }

  void Listen() {
    ucp_am_handler_param_t params = {};
    params.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = 1;
    params.flags = UCP_AM_FLAG_WHOLE_MSG;
    params.cb = [](void* arg, const void*, size_t, void* data, size_t bytes,
                   const ucp_am_recv_param_t* param) {
      auto& self = *static_cast<RawPlayer*>(arg);
      BATON_CHECK((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0);
      std::memcpy(self.in_.data(), data, bytes);
      ++self.received_;
      return UCS_OK;
    };
    params.arg = this;
    Check(ucp_worker_set_am_recv_handler(worker_, &params));
  }
  std::string Address() {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    Check(ucp_worker_get_address(worker_, &address, &bytes));
    std::string text(reinterpret_cast<const char*>(address), bytes);
    ucp_worker_release_address(worker_, address);
    return text;
  }
  void ConnectTo(const std::string& address) {
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    Check(ucp_ep_create(worker_, &params, &endpoint_));
  }

  ucp_context_h context_ = nullptr;  // lives as long as the process
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  int received_ = 0;
};

struct Contest {
  std::string transport;
  std::string way;
  std::unique_ptr<Player> player;
  std::vector<double> micros;  // one way, per hop
};

// Both processes make the same list in the same order.
std::vector<Contest> MakeContests(int fd, int stage, const Settings& settings) {
  struct Transport {
    const char* name;
    const char* raw;
    const char* plane;
  };
  std::vector<Contest> contests;
  for (const auto& [name, raw, plane] :
       {Transport{"shm", "posix", "posix"}, Transport{"tcp", "tcp", "tcp"}}) {
    contests.push_back(
        {name, "raw ucx", std::make_unique<RawPlayer>(fd, raw, settings), {}});
    UcxOptions options = {.transports = plane};
    contests.push_back(
        {name,
         "baton",
         std::make_unique<PlanePlayer>(fd, stage, options, settings),
         {}});
    options.spin = absl::ZeroDuration();
    contests.push_back(
        {name,
         "baton, no spin",
         std::make_unique<PlanePlayer>(fd, stage, options, settings),
         {}});
  }
  return contests;
}

void Play(std::vector<Contest>& contests, int stage, const Settings& settings) {
  for (int round = -kWarmUpRounds; round < settings.rounds; ++round) {
    for (Contest& contest : contests) {
      for (int hop = 0; hop < kHopsPerRound; ++hop) {
        const double start = NowMicros();
        if (stage == 0) contest.player->Send();
        contest.player->Receive();
        if (stage == 1) contest.player->Send();
        if (round >= 0) contest.micros.push_back((NowMicros() - start) / 2);
      }
    }
  }
}

double Quantile(std::vector<double>& values, double q) {
  const auto at = values.begin() +
                  static_cast<int64_t>(q * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void Report(std::vector<Contest>& contests, const Settings& settings) {
  fmt::print("one hop of {} bytes, {} hops each\n", settings.columns * 2,
             settings.rounds * kHopsPerRound);
  fmt::print("{:<6}{:<16}{:>12}{:>12}{:>10}\n", "over", "by", "median us",
             "p99 us", "of raw");
  std::string json;
  double raw = 0;
  for (Contest& contest : contests) {
    const double median = Quantile(contest.micros, 0.5);
    const double p99 = Quantile(contest.micros, 0.99);
    if (contest.way == "raw ucx") raw = median;
    fmt::print("{:<6}{:<16}{:>12.2f}{:>12.2f}{:>10.2f}\n", contest.transport,
               contest.way, median, p99, median / raw);
    json += fmt::format(
        "{}{{\"transport\":\"{}\",\"way\":\"{}\",\"bytes\":{},"
        "\"median_us\":{:.3f},\"p99_us\":{:.3f}}}",
        json.empty() ? "" : ",\n ", contest.transport, contest.way,
        settings.columns * 2, median, p99);
  }
  if (settings.json.empty()) return;
  std::FILE* file = std::fopen(settings.json.c_str(), "w");
  BATON_CHECK(file != nullptr);
  fmt::print(file, "[{}]\n", json);
  BATON_CHECK(std::fclose(file) == 0);
}

Settings Parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--rounds") settings.rounds = std::atoi(argv[i + 1]);
    if (name == "--columns") settings.columns = std::atoi(argv[i + 1]);
    if (name == "--json") settings.json = argv[i + 1];
  }
  BATON_CHECK(settings.rounds > 0 && settings.columns > 0);
  return settings;
}

int Main(int argc, char** argv) {
  const Settings settings = Parse(argc, argv);
  int pair[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  const pid_t child = fork();  // before UCX is used
  BATON_CHECK(child >= 0);
  const int stage = child == 0 ? 1 : 0;
  if (stage == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<Contest> contests = MakeContests(pair[stage], stage, settings);
  Play(contests, stage, settings);
  (void)Exchange(pair[stage], "done");
  if (stage == 0) Report(contests, settings);
  contests.clear();
  if (stage == 0) waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
