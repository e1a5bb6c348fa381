// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/status.h"

namespace baton {

// Which incarnation of each name may run, and until when. Pure: the caller
// brings the time.
class LeaseTable {
 public:
  explicit LeaseTable(absl::Duration lease) : lease_(lease) {}

  [[nodiscard]] absl::Duration lease() const { return lease_; }
  [[nodiscard]] bool Has(const std::string& name, uint64_t incarnation) const;

  // AlreadyExists: another incarnation has the name, until it is released.
  Status Grant(const std::string& name, uint64_t incarnation, absl::Time now);
  // FailedPrecondition: it ran out or was never given.
  Status Renew(const std::string& name, uint64_t incarnation, absl::Time now);
  // False: this incarnation does not have it.
  bool Release(const std::string& name, uint64_t incarnation);
  // Releases and returns those that were not renewed in time.
  std::vector<std::pair<std::string, uint64_t>> Expire(absl::Time now);

 private:
  struct Lease {
    uint64_t incarnation = 0;
    absl::Time until;
  };
  absl::Duration lease_;
  std::map<std::string, Lease> leases_;
};

}  // namespace baton
