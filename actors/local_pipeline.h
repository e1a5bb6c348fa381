// SPDX-License-Identifier: Apache-2.0
// A whole pipeline inside one process: stages on threads of their own, joined
// to a controller by local refs. `baton serve` without remote stages, `parity`,
// `bench` and tests run on it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/controller_actor.h"
#include "actors/messages.h"
#include "actors/stage_actor.h"

namespace baton {

enum class Transport { kInproc, kUcx };
[[nodiscard]] StatusOr<Transport> ParseTransport(const std::string& name);
[[nodiscard]] std::string_view Name(Transport transport);

struct LocalStagesOptions {
  std::vector<std::string> names;  // of the stages, in order
  // Where stage i runs: devices[i % size], as OpenDevices names them.
  std::vector<std::string> devices = {"cpu"};
  int threads = 1;                    // of each stage on a CPU
  GpuPath gpu_path = GpuPath::kBest;  // between stages on GPUs
  Transport transport = Transport::kInproc;
  std::string ucx_transports;  // as UcxOptions::transports
  // Wraps each stage's data plane (index, plane); may be empty.
  std::function<std::unique_ptr<DataPlane>(int, std::unique_ptr<DataPlane>)>
      wrap;
  // Bytes loaded so far and in all, of stage `index`. Thread: the stage's.
  std::function<void(int index, int64_t done, int64_t total)> on_load_progress;
  std::function<bool()> stops;  // as StageOptions'
};

// Stages that outlive controllers: a later controller finds them loaded.
class LocalStages {
 public:
  // Unavailable, Internal: no data plane.
  [[nodiscard]] static StatusOr<std::unique_ptr<LocalStages>> Start(
      const LocalStagesOptions& options);

  // Results go to `controller` from now on. Thread: any.
  void Attach(ControllerRef controller);
  [[nodiscard]] StageHost& host(int i) {
    return *hosts_[static_cast<size_t>(i)];
  }
  [[nodiscard]] int size() const { return static_cast<int>(hosts_.size()); }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  LocalStages() = default;
  ControllerRef controller() const;

  std::vector<std::string> names_;
  KernelRegistry kernels_;
  mutable absl::Mutex mutex_;
  ControllerRef controller_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StageHost>> hosts_;  // last: stops first
};

// A controller with its thread; joins `stages` (may be null: remote stages
// join by themselves). Destroyed on any thread but its own.
class ControllerHost {
 public:
  ControllerHost(ControllerOptions options, LocalStages* stages);
  ~ControllerHost();

  [[nodiscard]] const ControllerRef& ref() const { return ref_; }
  // Blocks until it serves, or with why it cannot.
  [[nodiscard]] Status WaitUntilServing(absl::Duration timeout);
  [[nodiscard]] ControllerStatus GetStatusNow();
  // Blocks until nothing runs or `timeout` has passed.
  void Drain(absl::Duration timeout);

 private:
  ThreadExecutor executor_;
  std::unique_ptr<ControllerActor> actor_;
  ControllerRef ref_;
};

// A finished request.
struct Completion {
  std::vector<SampleResult> prompt;  // where prompt_logprobs were asked for
  std::vector<SampleResult> tokens;
  FinishReason reason = FinishReason::kLength;
  friend bool operator==(const Completion&, const Completion&) = default;
};
// Submits all at once and blocks until all have ended. Not from an actor.
[[nodiscard]] std::vector<StatusOr<Completion>> RunRequests(
    const ControllerRef& controller, std::vector<Request> requests);

// A decoder opened for serving: config, facts, byte counts.
struct OpenedModel {
  std::string directory;
  std::string config_text;
  const Decoder* decoder = nullptr;
  DecoderInfo info;
  std::vector<TensorDecl> tensors;
  std::vector<int32_t> eos_ids;
};
// `check_weights`: also opens the weights and compares them with the decoder's
// declaration. Any Status of opening a checkpoint.
enum class WeightsCheck { kStrict, kConfigOnly };
[[nodiscard]] StatusOr<OpenedModel> OpenModel(const std::string& directory,
                                              DType dtype, WeightsCheck check);

}  // namespace baton
