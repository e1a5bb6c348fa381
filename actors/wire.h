// SPDX-License-Identifier: Apache-2.0
// Messages as protos and as structs. The only place that sees both; everything
// that arrives is checked here (sizes, ranges, missing fields), so that code
// behind it sees only values that could have been made by our own.
//
// FromProto: InvalidArgument names the field. Thread: any.
#pragma once

#include <string>

#include "actors/messages.h"
#include "actors/registrar_actor.h"
#include "proto/common.pb.h"
#include "proto/controller.pb.h"
#include "proto/plan.pb.h"
#include "proto/stage.pb.h"
#include "runtime/base/status.h"

namespace baton {

// --- steps (wire.cc) -------------------------------------------------------

[[nodiscard]] v1::Round ToProto(const Round& round);
[[nodiscard]] StatusOr<Round> FromProto(const v1::Round& proto);

[[nodiscard]] v1::StepResult ToProto(const StepResult& result);
[[nodiscard]] StatusOr<StepResult> FromProto(const v1::StepResult& proto);

[[nodiscard]] v1::SamplingParams ToProto(const SamplingParams& sampling);
[[nodiscard]] StatusOr<SamplingParams> FromProto(
    const v1::SamplingParams& proto);

// --- placement and sessions (wire_control.cc) ------------------------------

[[nodiscard]] v1::Hello MyHello();
// FailedPrecondition: another protocol or build; names both.
[[nodiscard]] Status CheckHello(const v1::Hello& hello);

[[nodiscard]] v1::PlacementPlan ToProto(const Placement& placement);
[[nodiscard]] StatusOr<Placement> FromProto(const v1::PlacementPlan& proto);

[[nodiscard]] v1::StageSpec ToProto(const StageSpec& spec);
[[nodiscard]] StatusOr<StageSpec> FromProto(const v1::StageSpec& proto);

[[nodiscard]] v1::LoadResult ToProto(const StageLoaded& loaded);
[[nodiscard]] StatusOr<StageLoaded> FromProto(const v1::LoadResult& proto);

// Without the incarnation, which belongs to the connection.
[[nodiscard]] v1::ConnectRequest ToProto(const ConnectStage& connect);
// The reply is left empty.
[[nodiscard]] StatusOr<ConnectStage> FromProto(const v1::ConnectRequest& proto);

[[nodiscard]] v1::StageFailure ToProto(const StageFailed& failed);
[[nodiscard]] StatusOr<StageFailed> FromProto(const v1::StageFailure& proto);

[[nodiscard]] v1::JoinRequest ToProto(const JoinOffer& offer);
// Also FailedPrecondition, as CheckHello.
[[nodiscard]] StatusOr<JoinOffer> FromProto(const v1::JoinRequest& proto);

[[nodiscard]] v1::ControllerStatusResponse ToProto(
    const ControllerStatus& status);

}  // namespace baton
