// SPDX-License-Identifier: Apache-2.0
// How the shapes of HeadMatmul fit together, on every device.
#pragma once

#include "kernels/ops/latent_attention.h"
#include "runtime/tensor/shape_match.h"

namespace baton {

// Binds "tokens", "columns" and "outputs"; x and out are of `dtype`. When it is
// ok there is a head, of whose columns x has columns / heads.
inline Status MatchHeads(ShapeMatch& match, const HeadMatmul::Args& args,
                         DType dtype) {
  match.Match("x", args.x, {"tokens", "columns"})
      .Match("out", args.out, {"tokens", "outputs"})
      .IsType("x", args.x, dtype)
      .IsType("out", args.out, dtype);
  BATON_RETURN_IF_ERROR(match.status());
  const auto heads = static_cast<int64_t>(args.weights.size());
  match.Require(heads > 0, "there must be a head");
  BATON_RETURN_IF_ERROR(match.status());
  const PackedMatrix& first = args.weights[0];
  match
      .Require(
          match["columns"] % heads == 0 && first.k <= match["columns"] / heads,
          "x must have columns enough for each head")
      .Require(match["outputs"] == heads * first.n,
               "out must be as wide as all heads");
  for (const PackedMatrix& weight : args.weights) {
    match.Require(weight.n == first.n && weight.k == first.k,
                  "heads must have matrices of one shape");
  }
  return match.status();
}

}  // namespace baton
