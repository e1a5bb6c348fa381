// SPDX-License-Identifier: Apache-2.0
// What kernels that follow sequences check of a batch.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/ops/batch.h"
#include "kernels/ops/delta_attention.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

// There is a batch, and its sequences cover `tokens` rows in order. Fails
// `match` otherwise.
inline void MatchRows(ShapeMatch& match, const AttentionBatch* batch,
                      int64_t tokens) {
  match.Require(batch != nullptr, "there must be a batch");
  if (!match.status().ok()) return;
  int64_t next_row = 0;
  for (const SequenceSpan& sequence : batch->sequences) {
    match.Require(sequence.first_row == next_row && sequence.rows >= 0,
                  "sequences must cover the rows in order");
    next_row += sequence.rows;
  }
  match.Require(next_row == tokens, "sequences must cover all rows");
}

// And the pages of a layer with this window (0: without one) exist, `num_pages`
// of them, and reach as far as its positions.
inline void MatchPages(ShapeMatch& match, const AttentionBatch* batch,
                       int64_t window, int64_t num_pages, int64_t tokens) {
  MatchRows(match, batch, tokens);
  if (!match.status().ok()) return;
  for (const SequenceSpan& sequence : batch->sequences) {
    const int64_t end = sequence.first_position + sequence.rows;
    const std::span<const PageId> pages = sequence.PagesOf(window);
    const auto covered = static_cast<int64_t>(pages.size()) * kPageTokens;
    match.Require(sequence.first_position >= 0 && covered >= end,
                  "the pages of a sequence must cover its positions");
    for (const PageId page : pages) {
      match.Require(page >= 0 && page < num_pages,
                    "pages must lie inside the pool");
    }
  }
}

// And every sequence has a slot of its own, which has `bytes` bytes.
inline void MatchStates(ShapeMatch& match, const AttentionBatch* batch,
                        const StateSlots& states, int64_t bytes,
                        int64_t tokens) {
  MatchRows(match, batch, tokens);
  match.Require(states.slot_bytes >= bytes, "a slot must hold a state");
  if (!match.status().ok()) return;
  std::vector<int32_t> taken;
  for (const SequenceSpan& sequence : batch->sequences) {
    const int32_t slot = sequence.state_slot;
    match.Require(slot >= 0 && slot < states.num_slots,
                  "state slots must lie inside the pool");
    taken.push_back(slot);
  }
  std::sort(taken.begin(), taken.end());
  match.Require(std::adjacent_find(taken.begin(), taken.end()) == taken.end(),
                "no two sequences may share a state slot");
}

}  // namespace baton::cpu
