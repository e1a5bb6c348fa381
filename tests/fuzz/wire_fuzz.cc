// SPDX-License-Identifier: Apache-2.0
#include "actors/wire.h"
#include "runtime/base/check.h"
#include "tests/fuzz/fuzz.h"

namespace baton {
namespace {

// Parses the bytes as `Proto` and converts; what is accepted must survive the
// way back and forth.
template <typename Proto>
bool Survives(const std::string& bytes) {
  Proto proto;
  if (!proto.ParseFromString(bytes)) return false;
  auto value = FromProto(proto);
  if (!value.ok()) return false;
  BATON_CHECK(FromProto(ToProto(*value)).ok());
  return true;
}

}  // namespace
}  // namespace baton

// Whatever crosses between actors: the first byte says which message follows.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  if (input.empty()) return false;
  const std::string bytes = Text(input.subspan(1));
  switch (static_cast<char>(input[0])) {
    case 'r':
      return Survives<v1::Round>(bytes);
    case 's':
      return Survives<v1::StepResult>(bytes);
    case 'l':
      return Survives<v1::StageSpec>(bytes);
    case 'c':
      return Survives<v1::ConnectRequest>(bytes);
    case 'f':
      return Survives<v1::StageFailure>(bytes);
    case 'p':
      return Survives<v1::PlacementPlan>(bytes);
    case 'j': {
      // A hello of this build goes first; protobuf merges them.
      v1::JoinRequest hello;
      *hello.mutable_hello() = MyHello();
      return Survives<v1::JoinRequest>(bytes + hello.SerializeAsString());
    }
    default:
      return false;
  }
}
