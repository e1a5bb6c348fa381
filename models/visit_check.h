// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "models/decoder.h"
#include "runtime/base/status.h"

namespace baton {

// Checks what a visit brings, once, before its bytes are used. The stream's
// shape is FromWire's. InvalidArgument: says what does not fit.
[[nodiscard]] Status CheckVisit(const DecoderInfo& info,
                                std::span<const UnrolledRange> ranges,
                                const KvSizes& kv, int32_t token_slots,
                                const VisitArgs& args);

// InvalidArgument: a range is empty, out of the decoder, or not ascending.
[[nodiscard]] Status CheckRanges(const DecoderInfo& info,
                                 std::span<const UnrolledRange> ranges);

}  // namespace baton
