// SPDX-License-Identifier: Apache-2.0
// An address of a data plane: what the back end between hosts understands, and
// behind it, where the stage has a GPU, a note of its device plane. Ends
// without a GPU so reach those with one. Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace baton {

[[nodiscard]] std::string AddDeviceNote(const std::string& host_address,
                                        std::string_view note);
// The address without the note.
[[nodiscard]] std::string HostAddress(const std::string& address);
// "" if there is none.
[[nodiscard]] std::string_view DeviceNote(const std::string& address);

}  // namespace baton
