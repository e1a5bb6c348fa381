// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/controller_client.h"

#include "actors/grpc/grpc_util.h"
#include "actors/wire.h"
#include "proto/controller.grpc.pb.h"

namespace baton {
namespace {

class Client : public ControllerClient {
 public:
  explicit Client(const std::string& address)
      : stub_(v1::Controller::NewStub(OpenChannel(address))) {}

  StatusOr<absl::Duration> Join(const JoinOffer& offer,
                                absl::Duration timeout) override {
    grpc::ClientContext context;
    SetDeadline(context, timeout);
    v1::JoinResponse response;
    BATON_RETURN_IF_ERROR(
        FromGrpc(stub_->Join(&context, ToProto(offer), &response)));
    if (response.lease_ms() < 1 || response.lease_ms() > 1'000'000'000) {
      return InvalidArgument("a lease of {} ms", response.lease_ms());
    }
    return absl::Milliseconds(response.lease_ms());
  }

  Status Heartbeat(const std::string& name, uint64_t incarnation,
                   absl::Duration timeout) override {
    grpc::ClientContext context;
    SetDeadline(context, timeout);
    v1::HeartbeatRequest request;
    request.set_name(name);
    request.set_incarnation(incarnation);
    v1::HeartbeatResponse response;
    return FromGrpc(stub_->Heartbeat(&context, request, &response));
  }

  Status Leave(const std::string& name, uint64_t incarnation,
               absl::Duration timeout) override {
    grpc::ClientContext context;
    SetDeadline(context, timeout);
    v1::LeaveRequest request;
    request.set_name(name);
    request.set_incarnation(incarnation);
    v1::LeaveResponse response;
    return FromGrpc(stub_->Leave(&context, request, &response));
  }

 private:
  std::unique_ptr<v1::Controller::Stub> stub_;
};

}  // namespace

std::unique_ptr<ControllerClient> ControllerClient::New(
    const std::string& address) {
  return std::make_unique<Client>(address);
}

}  // namespace baton
