// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "models/decoder.h"

namespace baton {

// The list: an architecture is declared and named here, and nowhere else.
Decoder ApertusDecoder();
Decoder ArceeDecoder();
Decoder Exaone4Decoder();
Decoder KimiLinearDecoder();
Decoder MixtralDecoder();
Decoder NanbeigeDecoder();
Decoder Spark25Decoder();

std::span<const Decoder> AllDecoders() {
  static const auto* decoders = new std::vector<Decoder>{
      ApertusDecoder(),    ArceeDecoder(),   Exaone4Decoder(),
      KimiLinearDecoder(), MixtralDecoder(), NanbeigeDecoder(),
      Spark25Decoder(),
  };
  return *decoders;
}

StatusOr<const Decoder*> FindDecoder(const std::string& architecture) {
  std::string known;
  for (const Decoder& decoder : AllDecoders()) {
    if (decoder.architecture == architecture) return &decoder;
    known += known.empty() ? "" : ", ";
    known += decoder.architecture;
  }
  return Unimplemented("no decoder for {}; there are {}", architecture, known);
}

}  // namespace baton
