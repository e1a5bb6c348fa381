// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/channel.h"

namespace baton {

StatusOr<std::unique_ptr<DataPlane>> NewUcxDataPlane(const UcxOptions& options,
                                                     DataPlaneEvents events) {
  return Unimplemented("data plane over UCX");
}

}  // namespace baton
