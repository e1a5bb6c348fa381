// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)
// without positions. What is kept of a token is one row for all heads: a latent
// c that keys and values are linear in, and a key p that the heads share.
//
// A head's key and value matrices are absorbed into its query and its output:
//   q . [Wk c | p] = (Wk^T q_latent) . c + q_shared . p
//   sum of weight * (Wv c) = Wv (sum of weight * c)
// Prompts and generated tokens are computed in this one form, so that a row's
// bits do not depend on which it is.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/ops/batch.h"
#include "kernels/ops/matmul.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// One layer's pages: [num_pages, PageBytes] of one pool. A page is
// [kPageTokens][latent + shared], token by token; on CUDA 16-byte chunks of a
// token may change places (kernels/README.md).
struct LatentPages {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_pages = 0;
  int64_t latent = 0;
  int64_t shared = 0;

  [[nodiscard]] int64_t Width() const { return latent + shared; }
  [[nodiscard]] int64_t PageBytes() const {
    return Width() * kPageTokens * SizeOf(dtype);
  }
};

// out[t, h] = x[t, h] W^T with W of head h; the bits that Matmul gives.
struct HeadMatmul {
  static constexpr std::string_view kName = "head_matmul";
  struct Args {
    // [tokens, heads * stride]: head h's k columns begin at h * stride.
    ConstView x;
    std::span<const PackedMatrix> weights;  // [n, k] of each head
    View out;  // [tokens, heads * n], dtype of x; must not alias x
  };
};

// Stores a batch's rows into their pages.
struct LatentWrite {
  static constexpr std::string_view kName = "latent_write";
  struct Args {
    ConstView rows;  // [tokens, latent + shared]
    LatentPages pages;
    const AttentionBatch* batch;
  };
};

// With s(j) = (q_latent . c_j + q_shared . p_j) scale over the tokens j up to
// the row's own: out = cast(sum of softmax(s)(j) c_j). fp32 scores, softmax and
// sums, in spans of kAttentionSpan (ops/attention.h). The rows of the
// batch are in the pages already (LatentWrite first).
struct LatentAttention {
  static constexpr std::string_view kName = "latent_attention";
  struct Args {
    ConstView q_latent;  // [tokens, heads, latent]
    // [tokens, heads, any]: the last `shared` columns of each head.
    ConstView q;
    LatentPages pages;
    const AttentionBatch* batch;
    float scale;
    View out;  // [tokens, heads, latent]; must not alias q_latent or q
  };
};

}  // namespace baton
