// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fetch_block.h"

#include "kernels/cuda/kernels.h"
#include "runtime/tensor/cuda_device.h"

namespace baton::cuda {

Status FetchBlockCuda(const FetchBlock::Args& args, Stream& stream) {
  if (args.block.empty() || args.ring.size() % args.block.size() != 0 ||
      args.turns.size() != 2) {
    return InvalidArgument(
        "fetch_block: a ring of {} bytes, blocks of {}, {} words of turns",
        args.ring.size(), args.block.size(), args.turns.size());
  }
  return CudaStatus(
      FetchToDevice(
          {.ring = args.ring.data(),
           .blocks = static_cast<int64_t>(args.ring.size() / args.block.size()),
           .block = args.block.data(),
           .bytes = static_cast<int64_t>(args.block.size()),
           .turns = reinterpret_cast<uint32_t*>(args.turns.data())},
          CudaStreamOf(stream)),
      "fetch_block");
}

}  // namespace baton::cuda
