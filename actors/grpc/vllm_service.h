// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "actors/gateway.h"
#include "actors/grpc/rpc_server.h"

namespace baton {

inline constexpr char kVllmServiceName[] = "vllm.grpc.engine.VllmEngine";

// The service that LLM routers call (proto/router/vllm_engine.proto). Token ids
// in, token ids out. `gateway` outlives it.
[[nodiscard]] std::unique_ptr<RpcService> NewVllmService(Gateway* gateway);

}  // namespace baton
