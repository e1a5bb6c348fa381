// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

namespace baton {
namespace {

// Routers ping every 30 s, also an idle connection, and wait minutes for a long
// generation: by default gRPC would close such a connection.
void AllowPings(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

struct RpcServer::State {
  std::unique_ptr<grpc::Server> server;
};

StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const std::string& listen, const std::vector<RpcService*>& services) {
  static const bool plugins = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  // Otherwise a second server would share the port unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  AllowPings(builder);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  for (RpcService* service : services) {
    builder.RegisterService(service->service());
  }
  auto state = std::make_unique<State>();
  state->server = builder.BuildAndStart();
  if (state->server == nullptr || port == 0) {
    return Unavailable(
        "cannot listen on {}: the port is in use, or the host is not an "
        "address of this machine",
        listen);
  }
  std::string address =
      fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port);
  return std::unique_ptr<RpcServer>(
      new RpcServer(std::move(state), std::move(address)));
}

RpcServer::RpcServer(std::unique_ptr<State> state, std::string address)
    : state_(std::move(state)), address_(std::move(address)) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::SetServing(const std::string& service, bool serving) {
  state_->server->GetHealthCheckService()->SetServingStatus(service, serving);
}

void RpcServer::Shutdown(absl::Duration timeout) {
  state_->server->Shutdown(absl::ToChronoTime(absl::Now() + timeout));
}

}  // namespace baton
