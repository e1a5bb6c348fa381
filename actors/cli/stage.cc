// SPDX-License-Identifier: Apache-2.0
// `baton stage`: a host that lends its device to a controller. It joins, obeys
// while its lease lasts, and joins again whenever it has lost its controller;
// weights stay loaded all the while.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "actors/cli/cli.h"
#include "actors/grpc/controller_client.h"
#include "actors/grpc/stage_service.h"
#include "actors/stage_actor.h"
#include "kernels/devices/devices.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

constexpr absl::Duration kJoinTimeout = absl::Seconds(10);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kLastBackoff = absl::Seconds(2);
constexpr int kSliceMs = 50;

struct Flags {
  std::string controller;
  std::string name;
  std::string listen = "127.0.0.1:0";
  std::string checkpoint;
  std::string ucx_transports;
  std::string metrics;
  std::string device = "cpu";
  std::string gpu_path = "best";
  int threads = 0;
};

// Codes after which another try cannot help.
bool IsFatal(const Status& status) {
  return status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kUnimplemented;
}

uint64_t NewIncarnation() {
  std::random_device device;
  uint64_t id = 0;
  while (id == 0) id = (static_cast<uint64_t>(device()) << 32) | device();
  return id;
}

// Sleeps unless the process is told to stop.
void Pause(absl::Duration duration) {
  const absl::Time end = absl::Now() + duration;
  while (!Interrupted() && absl::Now() < end) WaitForSignal(kSliceMs);
}

class Host {
 public:
  explicit Host(Flags flags) : flags_(std::move(flags)) {}

  Status Run() {
    BATON_RETURN_IF_ERROR(Start());
    absl::Duration backoff = kFirstBackoff;
    std::string last_complaint;
    while (!Interrupted()) {
      StatusOr<absl::Duration> lease = Join();
      if (lease.ok()) {
        backoff = kFirstBackoff;
        last_complaint.clear();
        KeepLease(*lease);
        continue;
      }
      if (IsFatal(lease.status())) {
        return Annotate(lease.status(), "join " + flags_.controller);
      }
      if (std::string text = ToString(lease.status()); text != last_complaint) {
        LogWarn("stage.join_failed", "controller={} status={}",
                flags_.controller, text);
        last_complaint = text;
      }
      Pause(backoff);
      backoff = std::min(backoff * 2, kLastBackoff);
    }
    return OkStatus();
  }

 private:
  Status Start() {
    BATON_RETURN_IF_ERROR(RegisterKernels(kernels_));
    if (!flags_.metrics.empty()) {
      BATON_ASSIGN_OR_RETURN(metrics_, MetricsServer::Start(flags_.metrics));
    }
    service_ = StageService::New(flags_.name, flags_.checkpoint);
    StageOptions options;
    options.name = flags_.name;
    BATON_ASSIGN_OR_RETURN(options.devices,
                           OpenDevices(flags_.device, flags_.threads));
    options.kernels = &kernels_;
    BATON_ASSIGN_OR_RETURN(options.gpu_path, ParseGpuPath(flags_.gpu_path));
    options.make_data_plane = [this](DataPlaneEvents events) {
      UcxOptions ucx;
      ucx.transports = flags_.ucx_transports;
      return NewUcxDataPlane(ucx, std::move(events));
    };
    options.on_step_done = [s = service_.get()](StepDone done) {
      s->OnStepDone(std::move(done));
    };
    options.on_failed = [s = service_.get()](StageFailed failed) {
      s->OnFailed(std::move(failed));
    };
    options.on_load_progress = [s = service_.get()](int64_t done,
                                                    int64_t total) {
      s->OnLoadProgress(done, total);
    };
    options.stops = &Interrupted;
    BATON_ASSIGN_OR_RETURN(host_, StageHost::Start(std::move(options)));
    service_->SetStage(host_->stage());
    BATON_ASSIGN_OR_RETURN(server_,
                           RpcServer::Start(flags_.listen, {service_.get()}));
    client_ = ControllerClient::New(flags_.controller);
    LogInfo("stage.started", "name={} listen={} device={} threads={}",
            flags_.name, server_->address(), flags_.device, flags_.threads);
    std::printf("baton: stage %s on %s\n", flags_.name.c_str(),
                server_->address().c_str());
    std::fflush(stdout);
    return OkStatus();
  }

  StatusOr<absl::Duration> Join() {
    JoinOffer offer;
    offer.name = flags_.name;
    offer.incarnation = incarnation_ = NewIncarnation();
    offer.control_address = server_->address();
    offer.data_address = host_->data_address();
    service_->SetIncarnation(incarnation_);
    StatusOr<absl::Duration> lease = client_->Join(offer, kJoinTimeout);
    if (lease.ok()) {
      LogInfo("stage.joined", "controller={} lease={}", flags_.controller,
              absl::FormatDuration(*lease));
    } else {
      EndSession();
    }
    return lease;
  }

  // Renews until the lease is lost or the process is told to stop, which takes
  // leave first.
  void KeepLease(absl::Duration lease) {
    absl::Time renewed = absl::Now();
    Status why = OkStatus();
    std::optional<Leaving> leaving;
    while (why.ok()) {
      const absl::Time next = absl::Now() + lease / 3;
      while (absl::Now() < next && service_->Attached()) {
        if (leaving.has_value() ? leaving->done->HasBeenNotified()
                                : Interrupted()) {
          break;
        }
        SleepSlice();
      }
      if (Interrupted() && !leaving.has_value()) leaving.emplace(Leave());
      if (leaving.has_value() && leaving->done->HasBeenNotified()) return;
      const absl::Time asked = absl::Now();
      const Status status =
          client_->Heartbeat(flags_.name, incarnation_, lease / 3);
      if (status.ok()) {
        renewed = asked;
      } else if (IsFatal(status) || absl::Now() - renewed > lease) {
        why = status;
      }
      if (!service_->Attached()) why = Unavailable("the Run stream broke");
    }
    LogWarn("stage.lease_lost", "controller={} status={}", flags_.controller,
            ToString(why));
    EndSession();
  }

  // A call to Leave on a thread of its own, while renewing goes on.
  struct Leaving {
    std::shared_ptr<absl::Notification> done;
    std::jthread thread;
  };
  Leaving Leave() {
    LogInfo("stage.leaving", "controller={}", flags_.controller);
    auto done = std::make_shared<absl::Notification>();
    std::jthread thread([this, done, incarnation = incarnation_] {
      const Status left =
          client_->Leave(flags_.name, incarnation, kLeaveTimeout);
      if (left.ok()) {
        LogInfo("stage.left", "controller={}", flags_.controller);
      } else {
        LogWarn("stage.leave_failed", "status={}", ToString(left));
      }
      done->Notify();
    });
    return {std::move(done), std::move(thread)};
  }

  // WaitForSignal no longer sleeps once a signal came.
  static void SleepSlice() {
    if (Interrupted()) {
      absl::SleepFor(absl::Milliseconds(kSliceMs));
    } else {
      WaitForSignal(kSliceMs);
    }
  }

  // Weights stay; nothing of the lost controller is obeyed any more.
  void EndSession() {
    service_->SetIncarnation(0);
    host_->stage().Tell(baton::EndSession{});
  }

  const Flags flags_;
  KernelRegistry kernels_;
  uint64_t incarnation_ = 0;
  // Started in this order, stopped in the reverse.
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<StageService> service_;
  std::unique_ptr<StageHost> host_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<ControllerClient> client_;
};

}  // namespace

void AddStage(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  flags->threads =
      static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App* sub = app.add_subcommand(
      "stage", "Lend this machine to a controller as one stage");
  sub->add_option("--controller", flags->controller, "HOST:PORT of baton serve")
      ->required()
      ->check(AddressProblem);
  sub->add_option("--name", flags->name,
                  "the stage's name in the controller's config")
      ->required();
  sub->add_option("--listen", flags->listen,
                  "HOST:PORT the controller calls; port 0: any free one")
      ->capture_default_str()
      ->check(AddressProblem);
  sub->add_option("--device", flags->device, "cpu, cuda or cuda:N");
  sub->add_option("--gpu-path", flags->gpu_path,
                  "between GPUs: best, direct, nccl or host")
      ->check(CLI::IsMember({"best", "direct", "nccl", "host"}));
  sub->add_option("--threads", flags->threads, "threads of CPU kernels")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--checkpoint", flags->checkpoint,
                  "directory of the checkpoint on this machine, if it is not "
                  "where the controller has it");
  sub->add_option("--transports", flags->ucx_transports,
                  "UCX transports, such as tcp,self; default: UCX chooses");
  sub->add_option("--metrics", flags->metrics,
                  "HOST:PORT for Prometheus; default: none")
      ->check(AddressProblem);
  sub->callback([flags, exit_code] {
    SetLogNode("stage:" + flags->name);
    CatchSignals();
    if (Status status = Host(*flags).Run(); !status.ok()) {
      *exit_code = Fail(status);
    }
  });
}

}  // namespace baton
