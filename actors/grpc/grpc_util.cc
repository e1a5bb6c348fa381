// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/grpc_util.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "actors/grpc/channels.h"
#include "actors/grpc/rpc_server.h"

namespace baton {
namespace {

// Has every channel until nobody else has it, so that none goes on a thread of
// gRPC. Thread: any.
class Channels {
 public:
  static Channels& OfProcess() {
    static auto* const channels = new Channels;
    return *channels;
  }

  void Keep(const std::shared_ptr<grpc::Channel>& channel) {
    CloseUnused();
    const absl::MutexLock lock(&mutex_);
    kept_.push_back(channel);
  }
  // Whether none is left.
  bool CloseUnused() {
    std::vector<std::shared_ptr<grpc::Channel>> unused;
    const absl::MutexLock lock(&mutex_);
    const auto used =
        std::partition(kept_.begin(), kept_.end(),
                       [](const auto& kept) { return kept.use_count() > 1; });
    unused.assign(std::make_move_iterator(used),
                  std::make_move_iterator(kept_.end()));
    kept_.erase(used, kept_.end());
    return kept_.empty();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<grpc::Channel>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void CloseChannels(absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  while (!Channels::OfProcess().CloseUnused() && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Both sides number their codes alike.
grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), Message(status)};
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return Status(static_cast<StatusCode>(status.error_code()),
                status.error_message());
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A proxy of the environment is not meant for actors.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // No connection, and no back-off, is inherited from an earlier channel.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      address, grpc::InsecureChannelCredentials(), args);
  Channels::OfProcess().Keep(channel);
  return channel;
}

}  // namespace baton
