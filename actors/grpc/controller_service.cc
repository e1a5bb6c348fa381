// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/controller_service.h"

#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "actors/grpc/grpc_util.h"
#include "actors/grpc/stage_peer.h"
#include "actors/registrar_actor.h"
#include "actors/wire.h"
#include "proto/controller.grpc.pb.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

// "ipv4:10.0.0.7:51324" -> "10.0.0.7", "ipv6:[::1]:51324" -> "[::1]".
std::string HostOfPeer(std::string peer) {
  // IPv6 hosts may come percent-encoded.
  for (const auto& [code, text] :
       {std::pair<std::string, std::string>{"%5B", "["}, {"%5D", "]"}}) {
    const size_t at = peer.find(code);
    if (at != std::string::npos) peer.replace(at, code.size(), text);
  }
  const size_t begin = peer.find(':') + 1;
  return peer.substr(begin, peer.rfind(':') - begin);
}

// A host that listens on all its addresses is reached at the one it calls from.
void ResolveWildcard(std::string& address, const std::string& peer) {
  for (const std::string_view wildcard : {"0.0.0.0:", "[::]:"}) {
    if (address.starts_with(wildcard)) {
      address = HostOfPeer(peer) + address.substr(wildcard.size() - 1);
      return;
    }
  }
}

class ControllerService : public RpcService,
                          public v1::Controller::CallbackService {
 public:
  explicit ControllerService(const ControllerServiceOptions& options)
      : controller_(options.controller), executor_("registrar") {
    StagePeerOptions peer;
    peer.controller = options.controller;
    peer.load_deadline = options.load_deadline;
    executor_.Post([this, options, peer] {
      registrar_ = std::make_unique<RegistrarActor>(
          executor_, options.controller, options.lease,
          [peer](const JoinOffer& offer, PeerEvents events) {
            return DialStage(peer, offer, std::move(events));
          });
      ref_ = registrar_->ref();
      made_.Notify();
    });
    made_.WaitForNotification();
  }

  ~ControllerService() override {
    executor_.Post([this] { registrar_.reset(); });
    executor_.Stop();
  }

  grpc::Service* service() override { return this; }

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    StatusOr<JoinOffer> offer = FromProto(*request);
    if (!offer.ok()) {
      LogWarn("controller.join_refused", "stage={} peer={} status={}",
              request->name().substr(0, 64), context->peer(),
              ToString(offer.status()));
      reactor->Finish(ToGrpc(offer.status()));
      return reactor;
    }
    ResolveWildcard(offer->control_address, context->peer());
    ref_.Tell(
        JoinStage{*std::move(offer),
                  AnswerCall<absl::Duration>(
                      reactor, response,
                      [](const absl::Duration& lease, v1::JoinResponse& to) {
                        to.set_lease_ms(absl::ToInt64Milliseconds(lease));
                      })});
    return reactor;
  }

  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    ref_.Tell(RenewLease{request->name(), request->incarnation(),
                         AnswerDone(reactor)});
    return reactor;
  }

  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    ref_.Tell(LeaveStage{request->name(), request->incarnation(),
                         AnswerDone(reactor)});
    return reactor;
  }

  grpc::ServerUnaryReactor* Status(
      grpc::CallbackServerContext* context, const v1::ControllerStatusRequest*,
      v1::ControllerStatusResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    controller_.Tell(GetStatus{AnswerCall<ControllerStatus>(
        reactor, response,
        [](const ControllerStatus& status, v1::ControllerStatusResponse& to) {
          to = ToProto(status);
        })});
    return reactor;
  }

 private:
  const ControllerRef controller_;
  absl::Notification made_;
  std::unique_ptr<RegistrarActor> registrar_;  // on the executor's thread
  RegistrarActor::Ref ref_;
  ThreadExecutor executor_;  // last: stops first
};

}  // namespace

std::unique_ptr<RpcService> NewControllerService(
    const ControllerServiceOptions& options) {
  return std::make_unique<ControllerService>(options);
}

}  // namespace baton
