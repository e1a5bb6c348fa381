// SPDX-License-Identifier: Apache-2.0
#include "actors/lease_table.h"

namespace baton {

bool LeaseTable::Has(const std::string& name, uint64_t incarnation) const {
  auto found = leases_.find(name);
  return found != leases_.end() && found->second.incarnation == incarnation;
}

Status LeaseTable::Grant(const std::string& name, uint64_t incarnation,
                         absl::Time now) {
  auto found = leases_.find(name);
  if (found != leases_.end()) {
    return MakeStatus(StatusCode::kAlreadyExists,
                      "a stage named {} is here already", name);
  }
  leases_.emplace(name, Lease{incarnation, now + lease_});
  return OkStatus();
}

Status LeaseTable::Renew(const std::string& name, uint64_t incarnation,
                         absl::Time now) {
  if (!Has(name, incarnation)) {
    return FailedPrecondition("stage {} has no lease any more", name);
  }
  leases_[name].until = now + lease_;
  return OkStatus();
}

bool LeaseTable::Release(const std::string& name, uint64_t incarnation) {
  if (!Has(name, incarnation)) return false;
  leases_.erase(name);
  return true;
}

std::vector<std::pair<std::string, uint64_t>> LeaseTable::Expire(
    absl::Time now) {
  std::vector<std::pair<std::string, uint64_t>> expired;
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    expired.emplace_back(it->first, it->second.incarnation);
    it = leases_.erase(it);
  }
  return expired;
}

}  // namespace baton
