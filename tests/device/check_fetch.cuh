// SPDX-License-Identifier: Apache-2.0
// A block of the host's fetched inside of a graph, as kernels behind see it.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/fetch_block.h"
#include "tests/device/check_support.cuh"

namespace baton::check {

// Copies the block before it waits for earlier grids, to where its first word
// says.
static __global__ void ReadAheadKernel(const uint4* block, int64_t words,
                                       uint4* seen, int64_t step) {
  cuda::AllowNextGrid();
  uint4* const to = seen + cuda::Load4(block) * step;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = cuda::Load16(block + i);
  }
  cuda::AwaitPreviousGrids();
}

// Of `blocks` runs at a time, each one's block is that of its turn, in all
// kernels behind the fetch.
inline void CheckFetchCase(int64_t bytes, int64_t blocks) {
  constexpr int kReaders = 3;
  constexpr int kRounds = 3;
  const std::string what =
      Name("fetch %d blocks of %d bytes", static_cast<int>(blocks),
           static_cast<int>(bytes));
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint4));
  char* ring = nullptr;
  CUDA_OK(cudaHostAlloc(&ring, blocks * bytes, cudaHostAllocPortable));
  const Device<char> block(bytes);
  const Device<char> seen(blocks * kReaders * bytes);
  const Device<uint32_t> turns(std::vector<uint32_t>(2, 0));
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CUDA_OK(cuda::FetchToDevice({ring, blocks, block.data(), bytes, turns.data()},
                              stream));
  for (int i = 0; i < kReaders; ++i) {
    CUDA_OK(cuda::Launch(&ReadAheadKernel, dim3(64), 256, 0, stream,
                         reinterpret_cast<const uint4*>(block.data()), words,
                         reinterpret_cast<uint4*>(seen.data() + i * bytes),
                         kReaders * words));
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < kRounds; ++round) {
    for (int64_t i = 0; i < blocks * bytes; ++i) {
      ring[i] = static_cast<char>(31 * round + 7 * (i / bytes) + i % 251);
    }
    for (int64_t i = 0; i < blocks; ++i) {
      const auto number = static_cast<uint32_t>(i);
      std::memcpy(ring + i * bytes, &number, sizeof(number));
    }
    for (int64_t i = 0; i < blocks; ++i) {
      CUDA_OK(cudaGraphLaunch(exec, stream));
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<char> got = seen.Download();
    bool same = true;
    for (int64_t i = 0; i < blocks * kReaders; ++i) {
      const char* from = ring + i / kReaders * bytes;
      same &= std::equal(from, from + bytes, got.begin() + i * bytes);
    }
    Expect(same, what + Name(" round %d", round));
  }
  Expect(turns.Download() == std::vector<uint32_t>(
                                 {static_cast<uint32_t>(kRounds * blocks), 0}),
         what + " turns");
  Expect(block.GuardsHold() && seen.GuardsHold() && turns.GuardsHold(),
         what + " guards");
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFreeHost(ring));
}

inline void CheckFetch() {
  CheckFetchCase(16, 1);
  CheckFetchCase(2048, 8);
  CheckFetchCase(256 * 16 + 16, 4);
  CheckFetchCase(3 << 20, 2);
  const Device<char> block(64);
  const auto refused = [&](int64_t blocks, int64_t bytes) {
    return cuda::FetchToDevice(
               {block.data(), blocks, block.data(), bytes, nullptr}, nullptr) ==
           cudaErrorInvalidValue;
  };
  Expect(refused(3, 16) && refused(0, 16) && refused(2, 24) && refused(2, 0),
         "fetch refuses sizes");
}

}  // namespace baton::check
