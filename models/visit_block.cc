// SPDX-License-Identifier: Apache-2.0
#include "models/visit_block.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/matmul.h"

namespace baton {
namespace {

constexpr int64_t kAlignment = 64;

template <typename T>
T* At(std::byte* block, int64_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

std::vector<PromptTile> TilesOf(const AttentionBatch& batch) {
  std::vector<PromptTile> tiles;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSpan& span = batch.sequences[s];
    for (int64_t i = 0; i < span.prompt_rows; i += kPromptTileRows) {
      tiles.push_back({static_cast<int32_t>(span.first_row + i),
                       static_cast<int32_t>(
                           std::min(kPromptTileRows, span.prompt_rows - i)),
                       static_cast<int32_t>(span.first_position + i),
                       static_cast<int32_t>(s)});
    }
  }
  std::stable_sort(
      tiles.begin(), tiles.end(), [](const PromptTile& a, const PromptTile& b) {
        return a.first_position + a.rows > b.first_position + b.rows;
      });
  return tiles;
}

int64_t CountTiles(const AttentionBatch& batch) {
  int64_t tiles = 0;
  for (const SequenceSpan& span : batch.sequences) {
    tiles += (span.prompt_rows + kPromptTileRows - 1) / kPromptTileRows;
  }
  return tiles;
}

}  // namespace

VisitBlock::Sizes VisitBlock::SizesOf(const VisitArgs& args, bool windows) {
  Sizes sizes;
  sizes.windows = windows;
  sizes.rows = static_cast<int64_t>(args.batch->positions.size());
  sizes.sequences = static_cast<int64_t>(args.batch->sequences.size());
  for (const SequenceSpan& span : args.batch->sequences) {
    sizes.page_stride =
        std::max(sizes.page_stride, static_cast<int64_t>(span.pages.size()));
  }
  sizes.tiles = CountTiles(*args.batch);
  sizes.logit_rows = static_cast<int64_t>(args.sampling.size());
  return sizes;
}

VisitBlock::VisitBlock(const Sizes& sizes) : sizes_(sizes) {
  auto place = [&](int64_t& offset, int64_t bytes) {
    offset = bytes_;
    bytes_ = PadTo(bytes_ + bytes, kAlignment);
  };
  constexpr int64_t kWord = sizeof(int32_t);
  place(ids_, sizes.rows * kWord);
  place(positions_, sizes.rows * kWord);
  place(row_sequence_, sizes.rows * kWord);
  const int64_t table = sizes.sequences * sizes.page_stride * kWord;
  place(page_table_, table);
  place(window_table_, sizes.windows ? table : 0);
  place(sequences_,
        sizes.sequences * static_cast<int64_t>(sizeof(SequenceRows)));
  place(tiles_, sizes.tiles * static_cast<int64_t>(sizeof(PromptTile)));
  place(sampling_,
        sizes.logit_rows * static_cast<int64_t>(sizeof(SamplingRow)));
  place(results_, sizeof(SampledRows));
}

void VisitBlock::Fill(const VisitArgs& args, const SparePages& spare,
                      const SampledRows& results, std::byte* host) const {
  const AttentionBatch& batch = *args.batch;
  auto* ids = At<int32_t>(host, ids_);
  auto* positions = At<int32_t>(host, positions_);
  auto* row_sequence = At<int32_t>(host, row_sequence_);
  std::fill_n(ids, sizes_.rows, 0);
  std::copy(args.ids.begin(), args.ids.end(), ids);
  std::fill_n(positions, sizes_.rows, 0);
  std::copy(batch.positions.begin(), batch.positions.end(), positions);
  FillTable(batch, &SequenceSpan::pages, spare.page,
            At<PageId>(host, page_table_));
  if (sizes_.windows) {
    FillTable(batch, &SequenceSpan::window_pages, spare.window_page,
              At<PageId>(host, window_table_));
  }
  auto* sequences = At<SequenceRows>(host, sequences_);
  int64_t row = 0;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSpan& span = batch.sequences[s];
    std::fill_n(row_sequence + row, span.rows, static_cast<int32_t>(s));
    sequences[s] = {.first_row = static_cast<int32_t>(row),
                    .rows = static_cast<int32_t>(span.rows),
                    .first_position = static_cast<int32_t>(span.first_position),
                    .state_slot = span.state_slot};
    row += span.rows;
  }
  // Sequences of nobody have a row each while there are rows.
  for (int64_t s = std::ssize(batch.sequences), next = row;
       s < sizes_.sequences; ++s, ++next) {
    sequences[s] = {.first_row = static_cast<int32_t>(next),
                    .rows = next < sizes_.rows ? 1 : 0};
  }
  // Rows of nobody use the last sequence's place, which then is nobody's too.
  std::fill_n(row_sequence + row, sizes_.rows - row,
              static_cast<int32_t>(sizes_.sequences - 1));
  const std::vector<PromptTile> tiles = TilesOf(batch);
  std::copy(tiles.begin(), tiles.end(), At<PromptTile>(host, tiles_));
  auto* sampling = At<SamplingRow>(host, sampling_);
  std::fill_n(sampling, sizes_.logit_rows, SamplingRow{});
  std::copy(args.sampling.begin(), args.sampling.end(), sampling);
  *At<SampledRows>(host, results_) = results;
}

void VisitBlock::FillTable(const AttentionBatch& batch,
                           std::span<const PageId> SequenceSpan::*pages,
                           PageId spare, PageId* table) const {
  std::fill_n(table, sizes_.sequences * sizes_.page_stride, spare);
  for (const SequenceSpan& span : batch.sequences) {
    std::copy((span.*pages).begin(), (span.*pages).end(), table);
    table += sizes_.page_stride;
  }
}

DeviceBatch VisitBlock::Batch(std::byte* block, int64_t longest) const {
  return {.positions = At<int32_t>(block, positions_),
          .row_sequence = At<int32_t>(block, row_sequence_),
          .page_table = At<PageId>(block, page_table_),
          .window_table =
              sizes_.windows ? At<PageId>(block, window_table_) : nullptr,
          .page_stride = sizes_.page_stride,
          .sequences = At<SequenceRows>(block, sequences_),
          .num_sequences = sizes_.sequences,
          .tiles = At<PromptTile>(block, tiles_),
          .num_tiles = sizes_.tiles,
          .longest = longest};
}

std::span<const int32_t> VisitBlock::Ids(std::byte* block) const {
  return {At<int32_t>(block, ids_), static_cast<size_t>(sizes_.rows)};
}

std::span<const SamplingRow> VisitBlock::Sampling(std::byte* block) const {
  return {At<SamplingRow>(block, sampling_),
          static_cast<size_t>(sizes_.logit_rows)};
}

const SampledRows* VisitBlock::Results(std::byte* block) const {
  return At<const SampledRows>(block, results_);
}

}  // namespace baton
