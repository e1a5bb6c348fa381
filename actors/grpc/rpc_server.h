// SPDX-License-Identifier: Apache-2.0
// A gRPC port with health and reflection, and the services on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/status.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace baton {

// Of one message, either way.
inline constexpr int kMaxMessageBytes = 64 << 20;

// One service; outlives the server it is given to. Its calls convert and Tell.
class RpcService {
 public:
  virtual ~RpcService() = default;
  [[nodiscard]] virtual grpc::Service* service() = 0;
};

// Start -> SetServing* -> Shutdown. Thread: any.
class RpcServer {
 public:
  // `listen`: HOST:PORT, port 0 for any free one. Unavailable: the port is in
  // use, or the host is not this machine's.
  [[nodiscard]] static StatusOr<std::unique_ptr<RpcServer>> Start(
      const std::string& listen, const std::vector<RpcService*>& services);
  ~RpcServer();

  // HOST:PORT with the real port.
  [[nodiscard]] const std::string& address() const { return address_; }
  // What grpc.health.v1 says of `service`; "" is the process.
  void SetServing(const std::string& service, bool serving);
  // Refuses new calls, waits for those that run, cancels what is left at the
  // deadline. Every call must still be able to finish.
  void Shutdown(absl::Duration timeout);

 private:
  struct State;
  RpcServer(std::unique_ptr<State> state, std::string address);
  std::unique_ptr<State> state_;
  std::string address_;
};

}  // namespace baton
