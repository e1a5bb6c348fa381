// SPDX-License-Identifier: Apache-2.0
// Which experts a row gets, and the sum of what they give it; formulas in
// kernels/ops/moe.h. fp32 inside. The bits of a row depend on that row alone.
// Zero rows submit nothing. May be captured, and start as programmatic
// dependents.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

inline constexpr int64_t kMaxRoutedExperts = 1024;

struct RouteArgs {
  const float* logits;  // [rows, experts]
  int64_t logits_stride;
  int32_t* experts;  // [rows, top]
  int64_t experts_stride;
  float* weights;  // [rows, top]
  int64_t weights_stride;
  int64_t rows, count, top;  // count: experts
};
// invalidValue: more than kMaxRoutedExperts, top outside 1 to count.
[[nodiscard]] cudaError_t RouteRows(const RouteArgs& args, cudaStream_t stream);

struct RouteGroupedArgs {
  RouteArgs route;
  const float* bias;  // [experts]
  int64_t groups, top_groups;
  float scale;
};
// invalidValue: as RouteRows, or groups that are not equal and, if more than
// one, of two experts or more; top_groups outside 1 to groups, or with fewer
// experts than top.
[[nodiscard]] cudaError_t RouteGroupedRows(const RouteGroupedArgs& args,
                                           cudaStream_t stream);

struct CombineArgs {
  const void* y;  // bf16 [rows * top, hidden]
  int64_t y_stride;
  const float* weights;  // [rows, top]
  int64_t weights_stride;
  void* out;  // bf16 [rows, hidden]; must not alias y
  int64_t out_stride;
  int64_t rows, top, hidden;
  const void* added = nullptr;  // bf16 [rows, hidden], once out is rounded
  int64_t added_stride = 0;
};
[[nodiscard]] cudaError_t CombineRows(const CombineArgs& args,
                                      cudaStream_t stream);

}  // namespace baton::cuda
