// SPDX-License-Identifier: Apache-2.0
#include "actors/stage_actor.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/log.h"
#include "runtime/weights/file.h"

namespace baton {
namespace {

constexpr absl::Duration kCheckPeriod = absl::Milliseconds(250);

// Weights until the process is to end: a load that takes minutes must not keep
// it. Thread: any, as `stops`.
class StoppableWeights : public WeightSource {
 public:
  StoppableWeights(std::unique_ptr<WeightSource> source,
                   const std::function<bool()>& stops)
      : source_(std::move(source)), stops_(stops) {}
  bool Has(const std::string& name) const override {
    return source_->Has(name);
  }
  StatusOr<HostRows> Rows(const TensorDecl& decl, int64_t begin,
                          int64_t end) const override {
    if (stops_()) return Unavailable("the process is to end");
    return source_->Rows(decl, begin, end);
  }
  void Drop(const TensorDecl& decl) const override { source_->Drop(decl); }
  uint64_t Fingerprint() const override { return source_->Fingerprint(); }
  Status Check(std::span<const TensorDecl> declared) const override {
    return source_->Check(declared);
  }

 private:
  const std::unique_ptr<WeightSource> source_;
  const std::function<bool()>& stops_;
};

// The weights a spec names, after a check that this host's checkpoint is the
// controller's.
StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const StageSpec& spec,
                                                    const ModelConfig& config,
                                                    const Decoder& decoder) {
  if (spec.random_seed != 0) return NewRandomWeights(spec.random_seed);
  BATON_ASSIGN_OR_RETURN(std::string text,
                         ReadFile(spec.checkpoint + "/config.json"));
  if (text != spec.config) {
    return FailedPrecondition(
        "{}/config.json is not the controller's: the hosts hold different "
        "checkpoints",
        spec.checkpoint);
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(spec.checkpoint));
  BATON_ASSIGN_OR_RETURN(std::vector<TensorDecl> tensors,
                         decoder.tensors(config));
  BATON_RETURN_IF_ERROR(checkpoint->Check(tensors));
  return std::unique_ptr<WeightSource>(std::move(checkpoint));
}

}  // namespace

StatusOr<std::unique_ptr<StageActor>> StageActor::Create(Executor& executor,
                                                         StageOptions options) {
  std::unique_ptr<StageActor> actor(
      new StageActor(executor, std::move(options)));
  DataPlaneEvents events;
  events.on_packet = [a = actor.get()](Packet p) { a->OnPacket(std::move(p)); };
  events.on_peer_lost = [a = actor.get()](StageId peer, const Status& status) {
    a->OnPeerLost(peer, status);
  };
  Device* device = actor->options_.devices[0].get();
  BATON_ASSIGN_OR_RETURN(actor->stream_, device->NewStream());
  BATON_ASSIGN_OR_RETURN(
      actor->plane_,
      NewDevicePlane(actor->options_.make_data_plane, device,
                     actor->stream_.get(), actor->options_.gpu_path,
                     std::move(events)));
  actor->Handle(Check{});
  return actor;
}

StageActor::StageActor(Executor& executor, StageOptions options)
    : Actor(executor, options.name),
      options_(std::move(options)),
      step_seconds_("baton_stage_step_seconds", "Time of one visit",
                    {{"stage", options_.name}}),
      idle_seconds_("baton_stage_idle_seconds_total",
                    "Time with a session and nothing to run",
                    {{"stage", options_.name}}),
      idle_since_(Now()) {}

StageActor::~StageActor() = default;

std::string StageActor::DataAddress() const { return plane_->Address(); }

void StageActor::Handle(LoadStage message) {
  DropSession();
  if (Status renewed = plane_->Renew(); !renewed.ok()) {
    message.reply.Send(Annotate(renewed, options_.name));
    return;
  }
  if (slice_ != nullptr && spec_ == message.spec) {
    StageLoaded loaded;
    loaded.weight_bytes = slice_->WeightBytes();
    loaded.kv_bytes = slice_->KvBytes();
    loaded.fingerprint = fingerprint_;
    loaded.data_address = plane_->Address();
    message.reply.Send(loaded);
    return;
  }
  slice_.reset();
  spec_.reset();
  auto load = [&]() -> StatusOr<StageLoaded> {
    const absl::Time start = absl::Now();
    const StageSpec& spec = message.spec;
    BATON_ASSIGN_OR_RETURN(
        ModelConfig config,
        ModelConfig::Parse(spec.config, spec.checkpoint + "/config.json"));
    BATON_ASSIGN_OR_RETURN(const Decoder* decoder,
                           FindDecoder(config.architecture()));
    BATON_ASSIGN_OR_RETURN(info_, decoder->describe(config, spec.dtype));
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> weights,
                           OpenWeights(spec, config, *decoder));
    if (options_.stops) {
      weights = std::make_unique<StoppableWeights>(std::move(weights),
                                                   options_.stops);
    }
    SliceOptions slice;
    slice.stage = options_.name;
    slice.ranges = spec.ranges;
    slice.dtype = spec.dtype;
    slice.kv = spec.kv;
    slice.kernels = options_.kernels;
    slice.device = options_.devices[0].get();
    for (int i = 1; i < spec.tp && i < std::ssize(options_.devices); ++i) {
      slice.rank_devices.push_back(
          options_.devices[static_cast<size_t>(i)].get());
    }
    slice.stream = stream_.get();
    slice.weights = weights.get();
    slice.ranks = spec.tp;
    slice.progress = options_.on_load_progress;
    BATON_ASSIGN_OR_RETURN(slice_, decoder->build(config, slice));
    fingerprint_ = weights->Fingerprint();
    StageLoaded loaded;
    loaded.weight_bytes = slice_->WeightBytes();
    loaded.kv_bytes = slice_->KvBytes();
    loaded.fingerprint = fingerprint_;
    loaded.data_address = plane_->Address();
    loaded.seconds = absl::ToDoubleSeconds(absl::Now() - start);
    return loaded;
  };
  StatusOr<StageLoaded> loaded = load();
  if (loaded.ok()) {
    spec_ = std::move(message.spec);
    std::string layers;  // pass by pass
    for (const UnrolledRange& range : spec_->ranges) {
      layers += fmt::format("[{},{})", range.begin, range.end);
    }
    LogInfo("stage.loaded",
            "stage={} layers={} tp={} weight_bytes={} kv_bytes={} "
            "seconds={:.2f} gb_per_s={:.2f}",
            options_.name, layers, spec_->tp, loaded->weight_bytes,
            loaded->kv_bytes, loaded->seconds,
            static_cast<double>(loaded->weight_bytes) / 1e9 /
                std::max(loaded->seconds, 1e-9));
  }
  message.reply.Send(std::move(loaded));
}

void StageActor::Handle(ConnectStage message) {
  DropSession();
  if (slice_ == nullptr) {
    message.reply.Send(
        FailedPrecondition("stage {} has nothing loaded", options_.name));
    return;
  }
  if (message.passes != static_cast<int>(spec_->ranges.size())) {
    message.reply.Send(InvalidArgument("stage {}: {} passes, {} are loaded",
                                       options_.name, message.passes,
                                       spec_->ranges.size()));
    return;
  }
  const Status connected =
      plane_->Connect(message.session, message.self, message.peers);
  if (!connected.ok()) {
    message.reply.Send(Annotate(connected, options_.name));
    return;
  }
  Reply<Done> reply = std::move(message.reply);
  session_ = Session{.info = std::move(message)};
  free_slots_.resize(static_cast<size_t>(slice_->TokenSlots()));
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  idle_since_ = Now();
  LogInfo("stage.connected", "stage={} epoch={} place={}/{}", options_.name,
          session_->info.session.epoch.value(), session_->info.self.value(),
          session_->info.num_stages);
  reply.Send(Done{});
}

void StageActor::Handle(EndSession message) {
  DropSession();
  message.reply.Send(Done{});
}

void StageActor::DropSession() {
  if (!submitted_.empty()) plane_->GiveUp();
  if (session_.has_value()) {
    // What the device still writes to must not be given to others: that of
    // visits that failed when they had been submitted, too.
    if (Status drained = stream_->Synchronize(); !drained.ok()) {
      LogWarn("stage.drain_failed", "stage={} status={}", options_.name,
              ToString(drained));
    }
  }
  submitted_.clear();
  session_.reset();
  sequences_.clear();
  rounds_.clear();
  inbox_.clear();
  due_tokens_.clear();
  waiting_since_ = absl::InfiniteFuture();
}

void StageActor::OnPacket(Packet packet) {
  if (!session_.has_value() || session_->failed ||
      packet.header.epoch != session_->info.session.epoch) {
    return;  // between sessions; the sender's credits die with the session
  }
  if (packet.header.kind == PacketKind::kTokens) {
    plane_->Consume(packet.from);
    const Status taken = TakeTokens(packet.header.step, packet.payload);
    if (!taken.ok()) return Fail(taken);
  } else {
    const PacketKey key(packet.header.step.value(), packet.header.pass,
                        packet.header.kind);
    if (!inbox_.emplace(key, std::move(packet)).second) {
      return Fail(InvalidArgument("step {} pass {} arrived twice",
                                  std::get<0>(key), std::get<1>(key)));
    }
  }
  Wake();
}

void StageActor::OnPeerLost(StageId peer, const Status& status) {
  if (!session_.has_value() || session_->failed) return;
  Fail(Unavailable("stage {} lost its peer, stage {}: {}", options_.name,
                   peer.value(), Message(status)));
}

void StageActor::Fail(Status status) {
  LogWarn("stage.failed", "stage={} epoch={} status={}", options_.name,
          session_->info.session.epoch.value(), ToString(status));
  StageFailed failed;
  failed.epoch = session_->info.session.epoch;
  failed.stage = session_->info.self;
  failed.status = std::move(status);
  session_->failed = true;
  rounds_.clear();
  inbox_.clear();
  options_.on_failed(std::move(failed));
}

void StageActor::Handle(Check) {
  TellAt(Now() + kCheckPeriod, Check{});
  if (!session_.has_value() || session_->failed || rounds_.empty()) return;
  if (Now() - waiting_since_ > session_->info.step_deadline) {
    const QueuedRound& head = rounds_.front();
    const Visit visit = head.order[head.next];
    Fail(DeadlineExceeded(
        "stage {} waited {} for the input of step {} pass {}", options_.name,
        absl::FormatDuration(Now() - waiting_since_),
        head.round.steps[static_cast<size_t>(visit.step_index)].step.value(),
        visit.pass));
  }
}

}  // namespace baton
