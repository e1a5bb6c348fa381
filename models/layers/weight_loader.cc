// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "models/layers/weights.h"

namespace baton {
namespace {

// Host memory a generated or converted piece of a tensor may take at a time.
constexpr int64_t kPieceBytes = int64_t{32} << 20;

}  // namespace

Status WeightLoader::ForRun(const TensorDecl& decl, const TensorSplit::Run& run,
                            int64_t first, RowsSink sink, void* to) const {
  const int64_t row_elements = decl.shape.NumElements() / decl.shape[0];
  const int64_t piece =
      std::max<int64_t>(1, kPieceBytes / (row_elements * SizeOf(DType::kF32)));
  for (int64_t begin = run.begin; begin < run.end; begin += piece) {
    const int64_t end = std::min(run.end, begin + piece);
    BATON_ASSIGN_OR_RETURN(HostRows host,
                           options_->weights->Rows(decl, begin, end));
    if (host.view.shape().NumElements() != (end - begin) * row_elements) {
      return InvalidArgument("{}: shape {}, expected rows of {}", decl.name,
                             ToString(host.view.shape()), ToString(decl.shape));
    }
    ConstView held = host.view;
    if (decl.split.kind == TensorSplit::Kind::kColumns) {
      const TensorSplit::Run columns =
          decl.split.Columns(row_elements, rank(), ranks());
      held = ConstView(held.data(), held.dtype(), {end - begin, row_elements})
                 .Columns(columns.begin, columns.end);
    }
    const Status status = sink(*this, held, first + begin - run.begin, to);
    if (!status.ok()) {
      return Annotate(status, "load " + decl.name);
    }
  }
  return OkStatus();
}

// Gives `sink` what the rank holds of the tensor's rows, in pieces.
Status WeightLoader::ForRows(const TensorDecl& decl, RowsSink sink, void* to) {
  int64_t first = 0;
  for (const TensorSplit::Run& run :
       decl.split.Rows(decl.shape[0], rank(), ranks())) {
    BATON_RETURN_IF_ERROR(ForRun(decl, run, first, sink, to));
    first += run.size();
  }
  options_->weights->Drop(decl);
  elements_ += decl.shape.NumElements();
  if (options_->progress) {
    const int64_t size = SizeOf(options_->dtype);
    options_->progress(elements_ * size, total_ * size);
  }
  return OkStatus();
}

StatusOr<Buffer> WeightLoader::Allocate(int64_t bytes) {
  BATON_ASSIGN_OR_RETURN(Buffer buffer, options_->device->Allocate(bytes));
  bytes_ += bytes;
  return buffer;
}

}  // namespace baton
