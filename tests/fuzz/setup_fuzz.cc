// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"
#include "runtime/transport/device_setup.h"
#include "tests/fuzz/fuzz.h"

// A setup packet between device planes, and the note in an address. What is
// accepted survives the way back and forth.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  constexpr Epoch kEpoch(1);
  const StatusOr<CudaEndpoint> endpoint = DecodeEndpoint(Text(input));
  if (endpoint.ok()) {
    BATON_CHECK(DecodeEndpoint(EncodeEndpoint(*endpoint)).value() == *endpoint);
  }
  const StatusOr<SetupMessage> message = DecodeSetup(input, kEpoch);
  if (!message.ok()) return endpoint.ok();
  const Tensor bytes = EncodeSetup(*message).value();
  const std::span<const std::byte> again(bytes.view().data(),
                                         static_cast<size_t>(bytes.bytes()));
  BATON_CHECK(DecodeSetup(again, kEpoch).value() == *message);
  return true;
}
