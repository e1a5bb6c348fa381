// SPDX-License-Identifier: Apache-2.0
#include "actors/lease_table.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const absl::Time kStart = absl::UnixEpoch();

TEST(LeaseTableTest, ExpiresWhatIsNotRenewed) {
  LeaseTable leases(absl::Seconds(3));
  ASSERT_THAT(leases.Grant("a", 1, kStart), IsOk());
  ASSERT_THAT(leases.Grant("b", 2, kStart), IsOk());
  ASSERT_THAT(leases.Renew("a", 1, kStart + absl::Seconds(2)), IsOk());
  EXPECT_THAT(leases.Expire(kStart + absl::Milliseconds(2999)), IsEmpty());
  EXPECT_THAT(leases.Expire(kStart + absl::Seconds(3)),
              ElementsAre(Pair("b", 2)));
  EXPECT_THAT(leases.Expire(kStart + absl::Seconds(5)),
              ElementsAre(Pair("a", 1)));
}

TEST(LeaseTableTest, RefusesASecondIncarnationOfALiveName) {
  LeaseTable leases(absl::Seconds(3));
  ASSERT_THAT(leases.Grant("a", 1, kStart), IsOk());
  EXPECT_THAT(leases.Grant("a", 2, kStart),
              StatusIs(StatusCode::kAlreadyExists));
  EXPECT_TRUE(leases.Release("a", 1));
  EXPECT_THAT(leases.Grant("a", 2, kStart), IsOk());
}

TEST(LeaseTableTest, KnowsOnlyThePresentIncarnation) {
  LeaseTable leases(absl::Seconds(3));
  ASSERT_THAT(leases.Grant("a", 2, kStart), IsOk());
  EXPECT_THAT(leases.Renew("a", 1, kStart),
              StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_FALSE(leases.Release("a", 1));
  EXPECT_TRUE(leases.Has("a", 2));
}

}  // namespace
}  // namespace baton
