// SPDX-License-Identifier: Apache-2.0
// Latents of one layer on the device: pages of [kPageTokens][latent + shared]
// bf16, token by token. Where that width is a multiple of 64, chunk c of 16
// bytes of token t lies at c ^ (t % 8), so that a page copied to shared memory
// as it is has eight tokens of one chunk in different banks.
#pragma once

#include <cstdint>

#include "kernels/cuda/kv_pages.h"

namespace baton::cuda {

struct LatentPages {
  void* pool;          // page p is at pool + p * page_bytes; 16-byte aligned
  int64_t page_bytes;  // width * kPageTokens * 2
  // Page of tokens [16 i, 16 i + 16) of sequence s: page_table[s, i].
  const int32_t* page_table;  // [sequences, page_stride], device
  int64_t page_stride;
  int64_t latent, shared;

  [[nodiscard]] constexpr int64_t Width() const { return latent + shared; }
};

// Where element d of token t of a page lies.
[[nodiscard]] constexpr int64_t LatentAt(int64_t width, int64_t t, int64_t d) {
  return t * width + (width % 64 == 0 ? d ^ t % 8 * 8 : d);
}

}  // namespace baton::cuda
