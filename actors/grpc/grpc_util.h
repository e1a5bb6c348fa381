// SPDX-License-Identifier: Apache-2.0
// What the files of this folder share. Included by them only: it brings gRPC's
// headers with it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/time/time.h"
#include "actors/core/actor.h"
#include "runtime/base/status.h"

namespace baton {

[[nodiscard]] grpc::Status ToGrpc(const Status& status);
[[nodiscard]] Status FromGrpc(const grpc::Status& status);

// A plain-text channel of its own to HOST:PORT, for calls between actors and
// from the command line.
[[nodiscard]] std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address);

inline void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

// A Reply that answers a unary call: fills in the response with `fill(value,
// response)`, or finishes with the error.
template <typename T, typename Response>
[[nodiscard]] Reply<T> AnswerCall(
    grpc::ServerUnaryReactor* reactor, Response* response,
    std::type_identity_t<void (*)(const T&, Response&)> fill) {
  return Reply<T>([reactor, response, fill](StatusOr<T> answer) {
    if (answer.ok()) fill(*answer, *response);
    reactor->Finish(ToGrpc(answer.status()));
  });
}

// The same for a response without fields.
[[nodiscard]] inline Reply<Done> AnswerDone(grpc::ServerUnaryReactor* reactor) {
  return Reply<Done>([reactor](const StatusOr<Done>& answer) {
    reactor->Finish(ToGrpc(answer.status()));
  });
}

}  // namespace baton
