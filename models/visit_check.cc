// SPDX-License-Identifier: Apache-2.0
#include "models/visit_check.h"

#include <algorithm>
#include <vector>

namespace baton {
namespace {

Status CheckPages(std::string_view what, std::span<const PageId> pages,
                  int64_t tokens, int64_t total) {
  if (static_cast<int64_t>(pages.size()) * kPageTokens < tokens) {
    return InvalidArgument("{} {} pages for {} tokens", pages.size(), what,
                           tokens);
  }
  for (PageId page : pages) {
    if (page < 0 || page >= total) {
      return InvalidArgument("{} page {} of {}", what, page, total);
    }
  }
  return OkStatus();
}

// Every sequence has a slot, and no other sequence has it.
Status CheckStateSlots(const AttentionBatch& batch, int64_t total) {
  std::vector<int32_t> slots;
  for (const SequenceSpan& s : batch.sequences) {
    if (s.state_slot < 0 || s.state_slot >= total) {
      return InvalidArgument("state slot {} of {}", s.state_slot, total);
    }
    slots.push_back(s.state_slot);
  }
  std::sort(slots.begin(), slots.end());
  const auto twice = std::adjacent_find(slots.begin(), slots.end());
  if (twice != slots.end()) {
    return InvalidArgument("state slot {} of two sequences", *twice);
  }
  return OkStatus();
}

Status CheckSequences(const DecoderInfo& info, const KvSizes& kv,
                      const AttentionBatch& batch) {
  const int64_t rows = static_cast<int64_t>(batch.positions.size());
  int64_t row = 0;
  for (const SequenceSpan& s : batch.sequences) {
    if (s.first_row != row || s.rows < 1 || s.rows > rows - row) {
      return InvalidArgument(
          "sequence of rows [{}, +{}) where row {} of {} comes next",
          s.first_row, s.rows, row, rows);
    }
    if (s.first_position < 0 ||
        s.first_position > info.max_positions - s.rows) {
      return InvalidArgument("positions [{}, +{}), the decoder has {}",
                             s.first_position, s.rows, info.max_positions);
    }
    for (int64_t i = 0; i < s.rows; ++i) {
      const int32_t position = batch.positions[static_cast<size_t>(row + i)];
      if (position != s.first_position + i) {
        return InvalidArgument("position {} in row {}, expected {}", position,
                               row + i, s.first_position + i);
      }
    }
    const int64_t tokens = s.first_position + s.rows;
    BATON_RETURN_IF_ERROR(CheckPages("KV", s.pages, tokens, kv.pages));
    if (info.Window() > 0) {
      BATON_RETURN_IF_ERROR(
          CheckPages("window", s.window_pages, tokens, kv.window_pages));
    }
    row += s.rows;
  }
  if (row != rows) {
    return InvalidArgument("sequences cover {} of {} rows", row, rows);
  }
  if (!info.NeedsStateSlots()) return OkStatus();
  return CheckStateSlots(batch, kv.state_slots);
}

Status CheckIds(const DecoderInfo& info, std::span<const int32_t> ids,
                int64_t rows, int32_t token_slots) {
  if (static_cast<int64_t>(ids.size()) != rows) {
    return InvalidArgument("{} token ids for {} rows", ids.size(), rows);
  }
  for (int32_t id : ids) {
    if (id < -token_slots || id >= info.vocab) {
      return InvalidArgument("token id {}, the vocabulary has {}", id,
                             info.vocab);
    }
  }
  return OkStatus();
}

Status CheckLogitRows(const DecoderInfo& info, const VisitArgs& args,
                      int64_t rows, int32_t token_slots) {
  if (args.sampling.size() != args.logit_rows.size()) {
    return InvalidArgument("{} sampling rows for {} logit rows",
                           args.sampling.size(), args.logit_rows.size());
  }
  int64_t previous = -1;
  for (int32_t row : args.logit_rows) {
    if (row <= previous || row >= rows) {
      return InvalidArgument("logit row {} after {}, of {} rows", row, previous,
                             rows);
    }
    previous = row;
  }
  for (const SamplingRow& row : args.sampling) {
    if (row.slot >= token_slots) {
      return InvalidArgument("token slot {} of {}", row.slot, token_slots);
    }
    if (row.forced >= info.vocab) {
      return InvalidArgument("forced token {}, the vocabulary has {}",
                             row.forced, info.vocab);
    }
  }
  return OkStatus();
}

}  // namespace

Status CheckVisit(const DecoderInfo& info,
                  std::span<const UnrolledRange> ranges, const KvSizes& kv,
                  int32_t token_slots, const VisitArgs& args) {
  const UnrolledRange range = args.range;
  if (std::find(ranges.begin(), ranges.end(), range) == ranges.end()) {
    return InvalidArgument("unrolled layers [{}, {}) are not this stage's",
                           range.begin, range.end);
  }
  if (args.batch == nullptr) return InvalidArgument("a visit without a batch");
  const int64_t rows = static_cast<int64_t>(args.batch->positions.size());
  BATON_RETURN_IF_ERROR(CheckSequences(info, kv, *args.batch));
  if (range.begin == 0) {
    BATON_RETURN_IF_ERROR(CheckIds(info, args.ids, rows, token_slots));
  }
  if (range.end == info.unrolled_layers()) {
    BATON_RETURN_IF_ERROR(CheckLogitRows(info, args, rows, token_slots));
  }
  return OkStatus();
}

Status CheckRanges(const DecoderInfo& info,
                   std::span<const UnrolledRange> ranges) {
  if (ranges.empty()) return InvalidArgument("a stage without layers");
  int next = 0;
  for (const UnrolledRange& range : ranges) {
    if (range.begin < next || range.end <= range.begin ||
        range.end > info.unrolled_layers()) {
      return InvalidArgument(
          "unrolled layers [{}, {}) after {}, the decoder has {}", range.begin,
          range.end, next, info.unrolled_layers());
    }
    next = range.end;
  }
  return OkStatus();
}

}  // namespace baton
