// SPDX-License-Identifier: Apache-2.0
#include "models/step.h"

#include <utility>

#include "runtime/base/log.h"

namespace baton {

KvPages Step::kv() const {
  const LayerState& state = memory_.state;
  return {.data = memory_.pool,
          .dtype = state.dtype,
          .num_pages = state.Pages(memory_.sizes),
          .kv_heads = state.kv_heads,
          .head_dim = state.head_dim,
          .window = state.window};
}

LatentPages Step::latents(int64_t latent) const {
  const LayerState& state = memory_.state;
  return {.data = memory_.pool,
          .dtype = state.dtype,
          .num_pages = state.Pages(memory_.sizes),
          .latent = latent,
          .shared = state.latent_width - latent};
}

StateSlots Step::states(int64_t offset) const {
  const LayerState& state = memory_.state;
  return {.data = memory_.pool + state.SlotsAt(memory_.sizes) + offset,
          .num_slots = memory_.sizes.state_slots,
          .slot_bytes = state.slot_bytes};
}

Scratch Step::Reduced(Scratch partial, Collective& group) {
  if (group.size() == 1) return partial;
  const View rows = partial.view();
  Scratch sum = NewScratch(rows.dim(0), rows.dim(1));
  if (status_.ok()) {
    LogCollective("all_reduce", group, rows);
    Keep(group.AllReduce(rows, sum.view(), *parts_.stream));
  }
  return sum;
}

void Step::Gather(ConstView part, View out) {
  if (!status_.ok()) return;
  LogCollective("all_gather", tp(), part);
  Keep(tp().AllGather(part, out, *parts_.stream));
}

void Step::LogCollective(std::string_view kind, const Collective& group,
                         ConstView rows) const {
  LogTrace("collective", "step={} stage={} kind={} ranks={} rank={} rows={}",
           number_.value(), parts_.stage, kind, group.size(), group.rank(),
           rows.dim(0));
}

void Step::Copy(View to, ConstView from) {
  if (!status_.ok()) return;
  BATON_CHECK(to.bytes() == from.bytes() && from.contiguous());
  Keep(parts_.device->Copy(to.data(), from.data(), from.bytes(),
                           *parts_.stream));
}

Scratch Step::NewScratch(DType dtype, int64_t rows, int64_t columns) {
  StatusOr<Scratch> scratch = parts_.scratch->Take(dtype, {rows, columns});
  if (scratch.ok()) return *std::move(scratch);
  Keep(scratch.status());
  return {nullptr, -1, View(nullptr, dtype, {rows, columns})};
}

Tensor Step::NewTensor(DType dtype, Shape shape) {
  StatusOr<Tensor> tensor = Tensor::Allocate(*parts_.device, dtype, shape);
  if (tensor.ok()) return *std::move(tensor);
  Keep(tensor.status());
  return {};
}

Buffer Step::NewBuffer(int64_t bytes) {
  StatusOr<Buffer> buffer = parts_.device->Allocate(bytes);
  if (buffer.ok()) return *std::move(buffer);
  Keep(buffer.status());
  return {};
}

void Step::Keep(const Status& status) {
  if (status.ok() || !status_.ok()) return;
  status_ =
      layer_.value() < 0
          ? status
          : Annotate(status, fmt::format("unrolled layer {}", layer_.value()));
}

}  // namespace baton
