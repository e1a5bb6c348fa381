// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/address.h"

#include <gtest/gtest.h>

#include "tests/runtime/transport/plane_testing.h"

namespace baton {
namespace {

using testing::End;
using testing::Fabric;
using testing::Pump;
using testing::SendStep;
using testing::TestSession;

TEST(AddressTest, TakesTheNoteOffAgain) {
  const std::string address = AddDeviceNote("inproc:7", "a note");
  EXPECT_EQ(HostAddress(address), "inproc:7");
  EXPECT_EQ(DeviceNote(address), "a note");
}

TEST(AddressTest, LeavesAnAddressWithoutANoteAlone) {
  for (const std::string address : {"", "inproc:7", "BatonGPU", "xBatonGPU"}) {
    EXPECT_EQ(HostAddress(address), address);
    EXPECT_EQ(DeviceNote(address), "");
  }
}

TEST(AddressTest, IgnoresANoteThatIsLongerThanTheAddress) {
  std::string address = AddDeviceNote("inproc:7", "a note");
  address.erase(0, 9);
  EXPECT_EQ(DeviceNote(address), "");
  EXPECT_EQ(HostAddress(address), address);
}

TEST(AddressTest, PlanesBetweenHostsReachAnEndWithANote) {
  for (const char* const name : {"inproc", "ucx"}) {
    Fabric fabric({name, "tcp,self"});
    End a(fabric, 0);
    End b(fabric, 1);
    ASSERT_TRUE(b.Connect(TestSession(), {&a}).ok());
    ASSERT_TRUE(a->Connect(TestSession(), a.stage(),
                           {{b.stage(), AddDeviceNote(b->Address(), "gpu")}})
                    .ok());
    ASSERT_TRUE(SendStep(a, b.stage(), 1, 1).ok());
    EXPECT_TRUE(Pump({&a, &b}, [&] { return !b.packets.empty(); }));
  }
}

}  // namespace
}  // namespace baton
