// SPDX-License-Identifier: Apache-2.0
// A whole pipeline in one thread: slices of a decoder, run in route order.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "models/decoder.h"
#include "runtime/tensor/device.h"
#include "runtime/weights/weight_source.h"

namespace baton::testing {

// The device and kernels all tests here share.
struct Machine {
  std::unique_ptr<Device> device = NewCpuDevice(2);
  std::unique_ptr<Stream> stream = device->NewStream().value();
  KernelRegistry kernels;
  Machine() { RegisterCpuKernels(kernels, DetectCpuIsa().value()); }
  static Machine& Get() {
    static auto* machine = new Machine;
    return *machine;
  }
};

// Tokens of one sequence that a step computes.
struct Fed {
  int sequence = 0;
  std::vector<int32_t> tokens;
};

struct StepOutput {
  std::vector<SampleResult> samples;       // of every row, greedy, digested
  std::vector<std::vector<float>> logits;  // of every row
  std::vector<Capture> captures;
};

using Stages = std::vector<std::vector<UnrolledRange>>;

class Pipeline {
 public:
  static constexpr int kSequences = 6;
  static constexpr int kPagesEach = 16;  // 256 tokens

  Pipeline(const Decoder& decoder, const ModelConfig& config,
           const WeightSource& weights, DType dtype, const Stages& stages,
           int ranks = 1) {
    Machine& machine = Machine::Get();
    for (const std::vector<UnrolledRange>& ranges : stages) {
      StatusOr<std::unique_ptr<StageSlice>> slice =
          decoder.build(config, {.ranges = ranges,
                                 .dtype = dtype,
                                 .kv = {.pages = kSequences * kPagesEach,
                                        .window_pages = kSequences * kPagesEach,
                                        .state_slots = kSequences},
                                 .kernels = &machine.kernels,
                                 .device = machine.device.get(),
                                 .stream = machine.stream.get(),
                                 .weights = &weights,
                                 .ranks = ranks});
      if (!slice.ok()) ADD_FAILURE() << slice.status();
      for (UnrolledRange range : ranges) {
        route_.push_back({range, slices_.size()});
      }
      slices_.push_back(*std::move(slice));
    }
    std::sort(route_.begin(), route_.end(), [](const auto& a, const auto& b) {
      return a.range.begin < b.range.begin;
    });
    lengths_.resize(kSequences);
    pages_.resize(kSequences);
    window_pages_.resize(kSequences);
    for (int i = 0; i < kSequences; ++i) {  // pages of sequences interleave
      for (int p = 0; p < kPagesEach; ++p) {
        pages_[i].push_back((kPagesEach - 1 - p) * kSequences + i);
        window_pages_[i].push_back(p * kSequences + i);
      }
    }
  }

  // One step over the whole route. `flip`: the bit of the stream's first
  // element that the first hop damages; -1: none.
  StepOutput Step(const std::vector<Fed>& fed,
                  const std::vector<CapturePoint>& captures = {},
                  int flip = -1) {
    Batch batch = MakeBatch(fed);
    StepOutput output;
    Tensor stream;
    for (const Hop& hop : route_) {
      if (flip >= 0 && hop.range.begin > 0) {
        stream.view().data()[flip / 8] ^= static_cast<std::byte>(1 << flip % 8);
        flip = -1;
      }
      VisitArgs args = ArgsOf(batch, hop.range);
      args.stream = stream.view();
      args.captures = captures;
      StatusOr<VisitResult> result = slices_[hop.slice]->Run(args);
      if (!result.ok()) {
        ADD_FAILURE() << result.status();
        return output;
      }
      stream = std::move(result->stream);
      for (Capture& capture : result->captures) {
        output.captures.push_back(std::move(capture));
      }
      output.samples = result->Samples();
      CopyLogits(result->logits, output);
    }
    for (const Fed& f : fed) {
      lengths_[f.sequence] += static_cast<int64_t>(f.tokens.size());
    }
    return output;
  }

  // The digests of every row of a prompt, fed in chunks of `chunk`, and of
  // `decode` greedy tokens after it. With `mates`, other sequences share every
  // step: prompts of other lengths, then tokens of their own.
  std::vector<uint64_t> Digests(const std::vector<int32_t>& prompt, int chunk,
                                int decode, int mates = 0) {
    std::vector<uint64_t> digests;
    size_t done = 0;
    int32_t next = 0;
    while (done < prompt.size() || decode-- > 0) {
      std::vector<Fed> fed;
      for (int m = 1; m <= mates / 2; ++m) fed.push_back(MateOf(m, prompt));
      Fed own{.sequence = 0, .tokens = {next}};
      if (done < prompt.size()) {
        const size_t end = std::min(prompt.size(), done + chunk);
        own.tokens.assign(prompt.begin() + done, prompt.begin() + end);
        done = end;
      }
      size_t first = 0;
      for (const Fed& f : fed) first += f.tokens.size();
      fed.push_back(own);
      for (int m = mates / 2 + 1; m <= mates; ++m) {
        fed.push_back(MateOf(m, prompt));
      }
      StepOutput output = Step(fed);
      for (size_t i = 0; i < own.tokens.size(); ++i) {
        digests.push_back(output.samples[first + i].digest);
        next = output.samples[first + i].token;
      }
    }
    return digests;
  }

  StageSlice& slice(size_t i) { return *slices_[i]; }
  const std::vector<PageId>& pages(int sequence) { return pages_[sequence]; }

 private:
  struct Hop {
    UnrolledRange range;
    size_t slice;
  };
  struct Batch {
    std::vector<SequenceSpan> spans;
    std::vector<int32_t> positions, ids, rows;
    std::vector<SamplingRow> sampling;
    AttentionBatch attention;
  };

  Batch MakeBatch(const std::vector<Fed>& fed) {
    Batch batch;
    for (const Fed& f : fed) {
      const int64_t first = lengths_[f.sequence];
      batch.spans.push_back(
          {.first_row = static_cast<int64_t>(batch.ids.size()),
           .rows = static_cast<int64_t>(f.tokens.size()),
           .first_position = first,
           .pages = pages_[f.sequence],
           .window_pages = window_pages_[f.sequence],
           .state_slot = kSequences - 1 - f.sequence});
      for (size_t i = 0; i < f.tokens.size(); ++i) {
        const auto position = static_cast<int32_t>(first + i);
        batch.rows.push_back(static_cast<int32_t>(batch.ids.size()));
        batch.positions.push_back(position);
        batch.ids.push_back(f.tokens[i]);
        batch.sampling.push_back({.position = position + 1, .digest = true});
      }
    }
    return batch;
  }

  static VisitArgs ArgsOf(Batch& batch, UnrolledRange range) {
    batch.attention = {.sequences = batch.spans, .positions = batch.positions};
    return {.range = range,
            .batch = &batch.attention,
            .ids = batch.ids,
            .logit_rows = batch.rows,
            .sampling = batch.sampling};
  }

  static void CopyLogits(const Tensor& logits, StepOutput& output) {
    if (logits.empty()) return;
    const int64_t columns = logits.shape()[1];
    for (int64_t r = 0; r < logits.shape()[0]; ++r) {
      const float* row = logits.view().Row<float>(r);
      output.logits.emplace_back(row, row + columns);
    }
  }

  // A batch mate's next rows: a piece of the prompt backwards, then one by one.
  Fed MateOf(int sequence, const std::vector<int32_t>& prompt) const {
    std::vector<int32_t> tokens;
    const int rows = lengths_[sequence] == 0 ? 3 * sequence + 1 : 1;
    for (int i = 0; i < rows; ++i) {
      const size_t at = static_cast<size_t>(lengths_[sequence] + i);
      tokens.push_back(prompt[prompt.size() - 1 - at % prompt.size()]);
    }
    return {.sequence = sequence, .tokens = tokens};
  }

  std::vector<std::unique_ptr<StageSlice>> slices_;
  std::vector<Hop> route_;
  std::vector<int64_t> lengths_;
  std::vector<std::vector<PageId>> pages_, window_pages_;
};

// A checkpoint of tests/checkpoints with its decoder.
struct TinyCheckpoint {
  std::unique_ptr<Checkpoint> files;
  const Decoder* decoder = nullptr;
  DecoderInfo info;

  static std::string Directory(const std::string& name) {
    return std::string(BATON_SOURCE_DIR "/tests/checkpoints/") + name;
  }
  static TinyCheckpoint Open(const std::string& name) {
    TinyCheckpoint tiny;
    tiny.files = Checkpoint::Open(Directory(name)).value();
    tiny.decoder = FindDecoder(tiny.config().architecture()).value();
    tiny.info = tiny.decoder->describe(tiny.config(), DType::kF32).value();
    return tiny;
  }
  const ModelConfig& config() const { return files->config(); }
  Stages Whole() const { return {{{0, info.unrolled_layers()}}}; }
  Pipeline Run(DType dtype, const Stages& stages) const {
    return {*decoder, config(), *files, dtype, stages};
  }
  // Token ids that mean nothing, the same every time.
  std::vector<int32_t> Prompt(int tokens) const {
    std::vector<int32_t> ids;
    uint32_t state = 12345;
    for (int i = 0; i < tokens; ++i) {
      state = state * 1664525u + 1013904223u;
      ids.push_back(static_cast<int32_t>((state >> 8) % info.vocab));
    }
    return ids;
  }
};

}  // namespace baton::testing
