// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sample.h"

#include <cstddef>

#include "kernels/cuda/context.h"
#include "kernels/cuda/kernels.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

static_assert(sizeof(SampleRow) == sizeof(SamplingRow));
static_assert(offsetof(SampleRow, position) == offsetof(SamplingRow, position));
static_assert(offsetof(SampleRow, digest) == offsetof(SamplingRow, digest));
static_assert(offsetof(SampleRow, token_slot) == offsetof(SamplingRow, slot));
static_assert(sizeof(SampleOut) == sizeof(SampledRow));
static_assert(offsetof(SampleOut, digest) == offsetof(SampledRow, digest));
static_assert(offsetof(SampleOut, num_top) == offsetof(SampledRow, num_top));
static_assert(offsetof(SampleOut, top) == offsetof(SampledRow, top));
static_assert(sizeof(SampleOuts) == sizeof(SampledRows));
static_assert(offsetof(SampleOuts, count) == offsetof(SampledRows, count));

}  // namespace

Status SampleCuda(const Sample::Args& args, Stream& stream) {
  ShapeMatch match("sample");
  match.Match("logits", args.logits, {"rows", "vocab"})
      .IsType("logits", args.logits, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t rows = match["rows"];
  const int64_t vocab = match["vocab"];
  match.Require(static_cast<int64_t>(args.rows.size()) == rows,
                "one SamplingRow per row");
  BATON_RETURN_IF_ERROR(match.status());
  Context& context = Context::Of(stream);
  BATON_ASSIGN_OR_RETURN(void* const scratch,
                         context.Workspace(SampleScratchBytes(rows, vocab)));
  return CudaStatus(
      SampleRows({.logits = reinterpret_cast<const float*>(args.logits.data()),
                  .logits_stride = args.logits.row_stride(),
                  .rows = rows,
                  .vocab = vocab,
                  .how = reinterpret_cast<const SampleRow*>(args.rows.data()),
                  .outs = reinterpret_cast<const SampleOuts*>(args.results),
                  .tokens = args.drawn.data(),
                  .scratch = scratch},
                 context.stream()),
      "sample");
}

}  // namespace baton::cuda
