// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <set>

#include "actors/version.h"
#include "actors/wire.h"

namespace baton {
namespace {

constexpr int kMaxStages = 1024;
constexpr int kMaxPasses = 1024;
constexpr int kMaxLayers = 1 << 20;
constexpr int kMaxRanks = 8;
constexpr size_t kMaxPath = 4096;
constexpr size_t kMaxConfig = 4 << 20;
constexpr size_t kMaxAddress = 64 << 10;
constexpr int64_t kMaxPages = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxPacketBytes = int64_t{1} << 40;
constexpr int64_t kMaxStepRows = 1 << 24;
constexpr int64_t kMaxDeadlineMs = int64_t{1000} * 3600 * 24;

Status CheckRange(std::string_view what, int64_t value, int64_t low,
                  int64_t high) {
  if (value < low || value > high) {
    return InvalidArgument("{} {}: expected {} to {}", what, value, low, high);
  }
  return OkStatus();
}

Status CheckText(std::string_view what, const std::string& text, size_t most) {
  if (text.empty()) return InvalidArgument("{} is missing", what);
  if (text.size() > most) {
    return InvalidArgument("{}: {} bytes, at most {} are allowed", what,
                           text.size(), most);
  }
  return OkStatus();
}

v1::DType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DTYPE_F32;
    case DType::kBF16:
      return v1::DTYPE_BF16;
    case DType::kI32:
      break;
  }
  return v1::DTYPE_UNSPECIFIED;
}

StatusOr<DType> FromProto(v1::DType dtype) {
  if (dtype == v1::DTYPE_F32) return DType::kF32;
  if (dtype == v1::DTYPE_BF16) return DType::kBF16;
  return InvalidArgument("dtype {}: expected f32 or bf16",
                         static_cast<int>(dtype));
}

using RangesProto = google::protobuf::RepeatedPtrField<v1::UnrolledRange>;

void Fill(const std::vector<UnrolledRange>& ranges, RangesProto& proto) {
  for (const UnrolledRange& range : ranges) {
    v1::UnrolledRange& to = *proto.Add();
    to.set_begin(range.begin);
    to.set_end(range.end);
  }
}

// Ascending, disjoint, none empty.
StatusOr<std::vector<UnrolledRange>> FromProto(const RangesProto& proto) {
  if (proto.empty()) return InvalidArgument("ranges are missing");
  BATON_RETURN_IF_ERROR(
      CheckRange("number of ranges", proto.size(), 1, kMaxPasses));
  std::vector<UnrolledRange> ranges;
  int before = 0;
  for (const v1::UnrolledRange& range : proto) {
    if (!range.has_begin()) return InvalidArgument("a range has no begin");
    if (range.begin() < before || range.end() <= range.begin() ||
        range.end() > kMaxLayers) {
      return InvalidArgument("range [{}, {}) after layer {}", range.begin(),
                             range.end(), before);
    }
    before = range.end();
    ranges.push_back({range.begin(), range.end()});
  }
  return ranges;
}

v1::ControllerState ToProto(ControllerState state) {
  switch (state) {
    case ControllerState::kWaiting:
      return v1::CONTROLLER_WAITING;
    case ControllerState::kLoading:
      return v1::CONTROLLER_LOADING;
    case ControllerState::kServing:
      return v1::CONTROLLER_SERVING;
    case ControllerState::kDraining:
      return v1::CONTROLLER_DRAINING;
    case ControllerState::kStopped:
      return v1::CONTROLLER_STOPPED;
  }
  return v1::CONTROLLER_UNSPECIFIED;
}

StatusOr<std::vector<std::pair<StageId, std::string>>> PeersFromProto(
    const v1::ConnectRequest& proto) {
  if (proto.peers_size() != proto.num_stages() - 1) {
    return InvalidArgument("{} peers of {} stages", proto.peers_size(),
                           proto.num_stages());
  }
  std::vector<std::pair<StageId, std::string>> peers;
  std::set<int> seen = {proto.self()};
  for (const v1::Peer& peer : proto.peers()) {
    if (!peer.has_stage()) return InvalidArgument("a peer has no stage");
    BATON_RETURN_IF_ERROR(
        CheckRange("peer", peer.stage(), 0, proto.num_stages() - 1));
    BATON_RETURN_IF_ERROR(
        CheckText("address of a peer", peer.address(), kMaxAddress));
    if (!seen.insert(peer.stage()).second) {
      return InvalidArgument("peer {} is given twice", peer.stage());
    }
    peers.emplace_back(StageId(peer.stage()), peer.address());
  }
  return peers;
}

}  // namespace

v1::Hello MyHello() {
  v1::Hello hello;
  hello.set_protocol(kProtocolVersion);
  hello.set_build(BuildId());
  return hello;
}

Status CheckHello(const v1::Hello& hello) {
  if (hello.protocol() != kProtocolVersion) {
    return FailedPrecondition("the peer speaks protocol {}, this one {}",
                              hello.protocol(), kProtocolVersion);
  }
  if (hello.build() != BuildId()) {
    return FailedPrecondition("the peer is build {}, this one {}",
                              hello.build().substr(0, 100), BuildId());
  }
  return OkStatus();
}

v1::PlacementPlan ToProto(const Placement& placement) {
  v1::PlacementPlan proto;
  proto.set_route(placement.route == RouteKind::kRing ? v1::ROUTE_RING
                                                      : v1::ROUTE_UNROLLED);
  proto.set_passes(placement.passes);
  for (const StagePlacement& stage : placement.stages) {
    v1::StagePlacement& to = *proto.add_stages();
    to.set_name(stage.name);
    Fill(stage.ranges, *to.mutable_ranges());
    to.set_tp(stage.tp);
  }
  return proto;
}

StatusOr<Placement> FromProto(const v1::PlacementPlan& proto) {
  Placement placement;
  if (proto.route() == v1::ROUTE_UNROLLED) {
    placement.route = RouteKind::kUnrolled;
  } else if (proto.route() != v1::ROUTE_RING) {
    return InvalidArgument("route {}", static_cast<int>(proto.route()));
  }
  BATON_RETURN_IF_ERROR(CheckRange("passes", proto.passes(), 1, kMaxPasses));
  BATON_RETURN_IF_ERROR(
      CheckRange("number of stages", proto.stages_size(), 1, kMaxStages));
  placement.passes = proto.passes();
  for (const v1::StagePlacement& from : proto.stages()) {
    StagePlacement stage;
    BATON_RETURN_IF_ERROR(CheckText("stage name", from.name(), kMaxPath));
    stage.name = from.name();
    BATON_ASSIGN_OR_RETURN(stage.ranges, FromProto(from.ranges()));
    if (static_cast<int>(stage.ranges.size()) != placement.passes) {
      return InvalidArgument("stage {}: {} ranges for {} passes", stage.name,
                             stage.ranges.size(), placement.passes);
    }
    BATON_RETURN_IF_ERROR(CheckRange("tp", from.tp(), 1, kMaxRanks));
    stage.tp = from.tp();
    placement.stages.push_back(std::move(stage));
  }
  return placement;
}

v1::StageSpec ToProto(const StageSpec& spec) {
  v1::StageSpec proto;
  proto.set_checkpoint(spec.checkpoint);
  proto.set_config(spec.config);
  proto.set_random_seed(spec.random_seed);
  Fill(spec.ranges, *proto.mutable_ranges());
  proto.set_dtype(ToProto(spec.dtype));
  proto.set_kv_pages(spec.kv.pages);
  proto.set_window_pages(spec.kv.window_pages);
  proto.set_state_slots(spec.kv.state_slots);
  proto.set_tp(spec.tp);
  return proto;
}

StatusOr<StageSpec> FromProto(const v1::StageSpec& proto) {
  BATON_RETURN_IF_ERROR(CheckText("checkpoint", proto.checkpoint(), kMaxPath));
  BATON_RETURN_IF_ERROR(CheckText("config", proto.config(), kMaxConfig));
  BATON_RETURN_IF_ERROR(CheckRange("kv_pages", proto.kv_pages(), 1, kMaxPages));
  if (!proto.has_window_pages()) {
    return InvalidArgument("window_pages is missing");
  }
  BATON_RETURN_IF_ERROR(
      CheckRange("window_pages", proto.window_pages(), 0, kMaxPages));
  if (!proto.has_state_slots()) {
    return InvalidArgument("state_slots is missing");
  }
  BATON_RETURN_IF_ERROR(
      CheckRange("state_slots", proto.state_slots(), 0, kMaxPages));
  BATON_RETURN_IF_ERROR(CheckRange("tp", proto.tp(), 1, kMaxRanks));
  StageSpec spec;
  spec.checkpoint = proto.checkpoint();
  spec.config = proto.config();
  spec.random_seed = proto.random_seed();
  BATON_ASSIGN_OR_RETURN(spec.ranges, FromProto(proto.ranges()));
  BATON_ASSIGN_OR_RETURN(spec.dtype, FromProto(proto.dtype()));
  spec.kv = {.pages = proto.kv_pages(),
             .window_pages = proto.window_pages(),
             .state_slots = proto.state_slots()};
  spec.tp = proto.tp();
  return spec;
}

v1::LoadResult ToProto(const StageLoaded& loaded) {
  v1::LoadResult proto;
  proto.set_weight_bytes(loaded.weight_bytes);
  proto.set_kv_bytes(loaded.kv_bytes);
  proto.set_seconds(loaded.seconds);
  proto.set_data_address(loaded.data_address);
  proto.set_fingerprint(loaded.fingerprint);
  return proto;
}

StatusOr<StageLoaded> FromProto(const v1::LoadResult& proto) {
  if (proto.weight_bytes() < 0 || proto.kv_bytes() < 0 ||
      !(proto.seconds() >= 0)) {
    return InvalidArgument("loaded: weight_bytes {} kv_bytes {} seconds {}",
                           proto.weight_bytes(), proto.kv_bytes(),
                           proto.seconds());
  }
  StageLoaded loaded;
  loaded.weight_bytes = proto.weight_bytes();
  loaded.kv_bytes = proto.kv_bytes();
  loaded.seconds = proto.seconds();
  loaded.data_address = proto.data_address();
  loaded.fingerprint = proto.fingerprint();
  return loaded;
}

v1::ConnectRequest ToProto(const ConnectStage& connect) {
  v1::ConnectRequest proto;
  proto.set_epoch(connect.session.epoch.value());
  proto.set_key(connect.session.key);
  proto.set_max_packet_bytes(connect.session.max_packet_bytes);
  proto.set_credits(connect.session.credits);
  proto.set_self(connect.self.value());
  proto.set_num_stages(connect.num_stages);
  proto.set_passes(connect.passes);
  proto.set_max_step_rows(connect.max_step_rows);
  proto.set_step_deadline_ms(absl::ToInt64Milliseconds(connect.step_deadline));
  for (const auto& [stage, address] : connect.peers) {
    v1::Peer& peer = *proto.add_peers();
    peer.set_stage(stage.value());
    peer.set_address(address);
  }
  return proto;
}

StatusOr<ConnectStage> FromProto(const v1::ConnectRequest& proto) {
  if (proto.epoch() == 0) return InvalidArgument("epoch is missing");
  if (!proto.has_self()) return InvalidArgument("self is missing");
  BATON_RETURN_IF_ERROR(CheckRange("max_packet_bytes", proto.max_packet_bytes(),
                                   1, kMaxPacketBytes));
  BATON_RETURN_IF_ERROR(CheckRange("credits", proto.credits(), 1, 1 << 16));
  BATON_RETURN_IF_ERROR(
      CheckRange("num_stages", proto.num_stages(), 1, kMaxStages));
  BATON_RETURN_IF_ERROR(
      CheckRange("self", proto.self(), 0, proto.num_stages() - 1));
  BATON_RETURN_IF_ERROR(CheckRange("passes", proto.passes(), 1, kMaxPasses));
  BATON_RETURN_IF_ERROR(
      CheckRange("max_step_rows", proto.max_step_rows(), 1, kMaxStepRows));
  BATON_RETURN_IF_ERROR(CheckRange("step_deadline_ms", proto.step_deadline_ms(),
                                   1, kMaxDeadlineMs));
  ConnectStage connect;
  connect.session.epoch = Epoch(proto.epoch());
  connect.session.key = proto.key();
  connect.session.max_packet_bytes = proto.max_packet_bytes();
  connect.session.credits = proto.credits();
  connect.self = StageId(proto.self());
  connect.num_stages = proto.num_stages();
  connect.passes = proto.passes();
  connect.max_step_rows = proto.max_step_rows();
  connect.step_deadline = absl::Milliseconds(proto.step_deadline_ms());
  BATON_ASSIGN_OR_RETURN(connect.peers, PeersFromProto(proto));
  return connect;
}

v1::StageFailure ToProto(const StageFailed& failed) {
  v1::StageFailure proto;
  proto.set_epoch(failed.epoch.value());
  proto.set_stage(failed.stage.value());
  proto.mutable_error()->set_code(static_cast<int>(failed.status.code()));
  proto.mutable_error()->set_message(Message(failed.status));
  return proto;
}

StatusOr<StageFailed> FromProto(const v1::StageFailure& proto) {
  if (proto.epoch() == 0) return InvalidArgument("epoch is missing");
  if (!proto.has_stage()) return InvalidArgument("stage is missing");
  if (!proto.has_error()) return InvalidArgument("error is missing");
  BATON_RETURN_IF_ERROR(CheckRange("stage", proto.stage(), 0, kMaxStages));
  BATON_RETURN_IF_ERROR(CheckRange("error code", proto.error().code(), 1, 16));
  StageFailed failed;
  failed.epoch = Epoch(proto.epoch());
  failed.stage = StageId(proto.stage());
  failed.status = Status(static_cast<StatusCode>(proto.error().code()),
                         proto.error().message().substr(0, kMaxPath));
  return failed;
}

v1::JoinRequest ToProto(const JoinOffer& offer) {
  v1::JoinRequest proto;
  *proto.mutable_hello() = MyHello();
  proto.set_name(offer.name);
  proto.set_incarnation(offer.incarnation);
  proto.set_control_address(offer.control_address);
  proto.set_data_address(offer.data_address);
  return proto;
}

StatusOr<JoinOffer> FromProto(const v1::JoinRequest& proto) {
  BATON_RETURN_IF_ERROR(CheckHello(proto.hello()));
  BATON_RETURN_IF_ERROR(CheckText("name", proto.name(), 64));
  BATON_RETURN_IF_ERROR(
      CheckText("control_address", proto.control_address(), kMaxPath));
  BATON_RETURN_IF_ERROR(
      CheckText("data_address", proto.data_address(), kMaxAddress));
  if (proto.incarnation() == 0) return InvalidArgument("no incarnation");
  return JoinOffer{proto.name(), proto.incarnation(), proto.control_address(),
                   proto.data_address()};
}

v1::ControllerStatusResponse ToProto(const ControllerStatus& status) {
  v1::ControllerStatusResponse proto;
  *proto.mutable_hello() = MyHello();
  proto.set_state(ToProto(status.state));
  proto.set_detail(status.detail);
  proto.set_epoch(status.epoch.value());
  *proto.mutable_placement() = ToProto(status.placement);
  proto.set_running(status.running);
  proto.set_waiting(status.waiting);
  proto.set_steps_in_flight(status.steps_in_flight);
  proto.set_pages_used(status.pages_used);
  proto.set_pages_total(status.pages_total);
  proto.set_window_pages_used(status.window_pages_used);
  proto.set_window_pages_total(status.window_pages_total);
  proto.set_state_slots_used(status.state_slots_used);
  proto.set_state_slots_total(status.state_slots_total);
  proto.set_preemptions(status.preemptions);
  proto.set_steps_done(status.steps_done);
  proto.set_tokens_generated(status.tokens_generated);
  return proto;
}

}  // namespace baton
