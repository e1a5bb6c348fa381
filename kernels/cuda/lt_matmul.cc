// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lt_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace baton::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8;
constexpr int64_t kTuningRows = 4096;
constexpr int64_t kTuningOutBytes = int64_t{256} << 20;
constexpr int64_t kBlockRows = 64;  // of comparisons and of padded runs
constexpr int kTimedRuns = 5;
constexpr int64_t kAlignment = 16;  // bytes, of every pointer and row
// Rows that an algorithm must take as they are.
constexpr int64_t kProbeRows[] = {1, 2, 3, 8, 63, 64, 1000};

#define RETURN_IF_CUBLAS_ERROR(expression)                \
  do {                                                    \
    const cublasStatus_t status_ = (expression);          \
    if (status_ != CUBLAS_STATUS_SUCCESS) return status_; \
  } while (false)
#define RETURN_IF_CUDA_ERROR(expression)                                    \
  do {                                                                      \
    if ((expression) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED; \
  } while (false)

int64_t SizeOf(LtOut type) { return type == LtOut::kF32 ? 4 : 2; }
int64_t PadTo8(int64_t value) { return (value + 7) / 8 * 8; }
bool IsAligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kAlignment == 0;
}

// Device memory of a scope.
struct DeviceBytes {
  DeviceBytes() = default;
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(data); }
  cudaError_t Allocate(int64_t bytes) {
    return cudaMalloc(&data, static_cast<size_t>(bytes));
  }
  void* data = nullptr;
};

// The product as cuBLASLt sees it, column-major: out^T [n, m] = w^T' x^T, where
// w is [k, n] to be transposed and x is [k, m].
struct Problem {
  cublasStatus_t Init(const LtMatmul::Args& args) {
    RETURN_IF_CUBLAS_ERROR(
        cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmulDescSetAttribute(
        &product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)));
    const auto n = static_cast<uint64_t>(args.weight.n);
    const auto k = static_cast<uint64_t>(args.weight.k);
    const auto m = static_cast<uint64_t>(args.m);
    RETURN_IF_CUBLAS_ERROR(
        cublasLtMatrixLayoutInit(&w, CUDA_R_16BF, k, n, args.weight.ldw));
    RETURN_IF_CUBLAS_ERROR(
        cublasLtMatrixLayoutInit(&x, CUDA_R_16BF, k, m, args.ldx));
    return cublasLtMatrixLayoutInit(
        &out, args.out_type == LtOut::kF32 ? CUDA_R_32F : CUDA_R_16BF, n, m,
        args.ldo);
  }

  cublasLtMatmulDescOpaque_t product = {};
  cublasLtMatrixLayoutOpaque_t w = {}, x = {}, out = {};
};

uint32_t ConfigOf(const cublasLtMatmulAlgo_t& algo,
                  cublasLtMatmulAlgoConfigAttributes_t attribute) {
  uint32_t value = 0;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value,
                                           sizeof(value),
                                           &written) != CUBLAS_STATUS_SUCCESS) {
    return 0;
  }
  return value;
}

// Algorithms for these sizes that do not split K, best guess first.
cublasStatus_t Candidates(cublasLtHandle_t handle, const LtMatmul::Args& args,
                          std::vector<cublasLtMatmulAlgo_t>& found) {
  cublasLtMatmulPreferenceOpaque_t preference = {};
  RETURN_IF_CUBLAS_ERROR(cublasLtMatmulPreferenceInit(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                    const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value,
                                                sizeof(value));
  };
  RETURN_IF_CUBLAS_ERROR(
      prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes));
  RETURN_IF_CUBLAS_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_CUBLAS_ERROR(prefer(attribute, uint32_t{kAlignment}));
  }
  Problem problem;
  RETURN_IF_CUBLAS_ERROR(problem.Init(args));
  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int count = 0;
  RETURN_IF_CUBLAS_ERROR(cublasLtMatmulAlgoGetHeuristic(
      handle, &problem.product, &problem.w, &problem.x, &problem.out,
      &problem.out, &preference, kCandidates, results, &count));
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulAlgo_t& algo = results[i].algo;
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (ConfigOf(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
    found.push_back(algo);
  }
  return found.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

// Whether the algorithm takes this number of rows.
bool Takes(cublasLtHandle_t handle, LtMatmul::Args args, int64_t m,
           const cublasLtMatmulAlgo_t& algo) {
  args.m = m;
  Problem problem;
  cublasLtMatmulHeuristicResult_t result = {};
  return problem.Init(args) == CUBLAS_STATUS_SUCCESS &&
         cublasLtMatmulAlgoCheck(handle, &problem.product, &problem.w,
                                 &problem.x, &problem.out, &problem.out, &algo,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}
bool TakesAnyRows(cublasLtHandle_t handle, const LtMatmul::Args& args,
                  const cublasLtMatmulAlgo_t& algo) {
  return std::all_of(std::begin(kProbeRows), std::end(kProbeRows),
                     [&](int64_t m) { return Takes(handle, args, m, algo); });
}

// Fills x [rows, ldx] with numbers of either sign in [0.5, 1), the same every
// kBlockRows rows.
cudaError_t FillRows(void* x, int64_t rows, int64_t ldx, cudaStream_t stream) {
  std::vector<uint16_t> block(static_cast<size_t>(kBlockRows * ldx));
  uint32_t state = 1;
  for (uint16_t& value : block) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<uint16_t>((state >> 16 & 0x807f) | 0x3f00);
  }
  const size_t bytes = block.size() * sizeof(uint16_t);
  cudaError_t error =
      cudaMemcpyAsync(x, block.data(), bytes, cudaMemcpyHostToDevice, stream);
  for (int64_t row = kBlockRows; row < rows && error == cudaSuccess;
       row += kBlockRows) {
    error = cudaMemcpyAsync(
        static_cast<std::byte*>(x) + static_cast<size_t>(row * ldx) * 2, x,
        bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

}  // namespace

struct LtMatmul::Entry {
  cublasLtMatmulAlgo_t algo = {};
  bool pad_rows = false;  // takes no row counts but multiples of kBlockRows
  // Where rows of `out` are no multiples of 16 bytes, or rows must be padded:
  DeviceBytes x;    // bf16 [kBlockRows, PadTo8(k)]
  DeviceBytes out;  // [kBlockRows, PadTo8(n)]
  Choice choice;
};

// One algorithm on scratch data: its time, and the bits of kBlockRows rows.
struct LtMatmul::Trial {
  float ms = 0;
  std::vector<std::byte> bits;

  cublasStatus_t Run(LtMatmul& lt, const Args& args,
                     const cublasLtMatmulAlgo_t& algo) {
    RETURN_IF_CUBLAS_ERROR(lt.Submit(args, algo));
    const size_t row_bytes =
        static_cast<size_t>(args.weight.n * SizeOf(args.out_type));
    bits.resize(row_bytes * kBlockRows);
    RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(
        bits.data(), row_bytes, args.out,
        static_cast<size_t>(args.ldo * SizeOf(args.out_type)), row_bytes,
        kBlockRows, cudaMemcpyDeviceToHost, lt.stream_));
    cudaEvent_t start = nullptr, stop = nullptr;
    RETURN_IF_CUDA_ERROR(cudaEventCreate(&start));
    RETURN_IF_CUDA_ERROR(cudaEventCreate(&stop));
    cudaEventRecord(start, lt.stream_);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < kTimedRuns && status == CUBLAS_STATUS_SUCCESS; ++i) {
      status = lt.Submit(args, algo);
    }
    cudaEventRecord(stop, lt.stream_);
    const cudaError_t error = cudaEventSynchronize(stop);
    cudaEventElapsedTime(&ms, start, stop);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    ms /= kTimedRuns;
    RETURN_IF_CUDA_ERROR(error);
    return status;
  }
};

std::unique_ptr<LtMatmul> LtMatmul::Create(cudaStream_t stream) {
  std::unique_ptr<LtMatmul> made(new LtMatmul);
  made->stream_ = stream;
  if (cublasLtCreate(&made->handle_) != CUBLAS_STATUS_SUCCESS) return nullptr;
  if (cudaMalloc(&made->workspace_, kWorkspaceBytes) != cudaSuccess) {
    return nullptr;
  }
  return made;
}

LtMatmul::~LtMatmul() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
  cudaFree(workspace_);
}

const LtMatmul::Choice* LtMatmul::Find(int64_t n, int64_t k,
                                       LtOut out_type) const {
  const auto found = entries_.find(Key(n, k, out_type));
  return found == entries_.end() ? nullptr : &found->second->choice;
}

cublasStatus_t LtMatmul::Prepare(const Weight& weight, LtOut out_type) {
  if (weight.n <= 0 || weight.k <= 0 || weight.ldw < weight.k ||
      weight.ldw % 8 != 0 || !IsAligned(weight.w)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Key key(weight.n, weight.k, out_type);
  if (entries_.count(key) != 0) return CUBLAS_STATUS_SUCCESS;
  auto entry = std::make_unique<Entry>();
  const Args shape = {.weight = weight,
                      .ldx = PadTo8(weight.k),
                      .ldo = PadTo8(weight.n),
                      .out_type = out_type};
  RETURN_IF_CUBLAS_ERROR(Choose(shape, *entry));
  if (entry->pad_rows || weight.n * SizeOf(out_type) % kAlignment != 0) {
    RETURN_IF_CUDA_ERROR(entry->x.Allocate(kBlockRows * shape.ldx * 2));
    RETURN_IF_CUDA_ERROR(
        entry->out.Allocate(kBlockRows * shape.ldo * SizeOf(out_type)));
  }
  entries_.emplace(key, std::move(entry));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t LtMatmul::Choose(Args args, Entry& entry) {
  const int64_t out_row_bytes = args.ldo * SizeOf(args.out_type);
  args.m = std::clamp(kTuningOutBytes / out_row_bytes / kBlockRows * kBlockRows,
                      kBlockRows, kTuningRows);
  std::vector<cublasLtMatmulAlgo_t> offered;
  Args alone = args;  // half of a matrix is offered what a rank with it is
  alone.weight.ldw = PadTo8(args.weight.k);
  RETURN_IF_CUBLAS_ERROR(Candidates(handle_, alone, offered));
  entry.choice.candidates = static_cast<int>(offered.size());
  entry.choice.tuning_rows = args.m;
  entry.pad_rows = std::none_of(offered.begin(), offered.end(),
                                [&](const cublasLtMatmulAlgo_t& algo) {
                                  return TakesAnyRows(handle_, args, algo);
                                });

  DeviceBytes x, out;
  RETURN_IF_CUDA_ERROR(x.Allocate(args.m * args.ldx * 2));
  RETURN_IF_CUDA_ERROR(out.Allocate(args.m * out_row_bytes));
  RETURN_IF_CUDA_ERROR(FillRows(x.data, args.m, args.ldx, stream_));
  args.x = x.data;
  args.out = out.data;

  Trial first, trial;
  for (int i = 0; i < entry.choice.candidates; ++i) {
    const cublasLtMatmulAlgo_t& algo = offered[static_cast<size_t>(i)];
    if (entry.pad_rows ? !Takes(handle_, args, kBlockRows, algo)
                       : !TakesAnyRows(handle_, args, algo)) {
      continue;
    }
    if (trial.Run(*this, args, algo) != CUBLAS_STATUS_SUCCESS) continue;
    Choice& choice = entry.choice;
    if (first.bits.empty()) {
      std::swap(first, trial);
      choice.first_ms = choice.chosen_ms = first.ms;
    } else if (trial.bits != first.bits) {
      continue;
    }
    ++choice.same_bits;
    if (choice.same_bits == 1 || trial.ms < choice.chosen_ms) {
      if (choice.same_bits > 1) choice.chosen_ms = trial.ms;
      choice.chosen = i;
      entry.algo = algo;
    }
  }
  return first.bits.empty() ? CUBLAS_STATUS_NOT_SUPPORTED
                            : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t LtMatmul::Submit(const Args& args,
                                const cublasLtMatmulAlgo_t& algo) {
  Problem problem;
  RETURN_IF_CUBLAS_ERROR(problem.Init(args));
  const float one = 1;
  const float beta = args.adds ? 1 : 0;
  return cublasLtMatmul(handle_, &problem.product, &one, args.weight.w,
                        &problem.w, args.x, &problem.x, &beta, args.out,
                        &problem.out, args.out, &problem.out, &algo, workspace_,
                        kWorkspaceBytes, stream_);
}

cublasStatus_t LtMatmul::Run(const Args& args) {
  const auto found =
      entries_.find(Key(args.weight.n, args.weight.k, args.out_type));
  if (found == entries_.end() || args.m < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (args.m == 0) return CUBLAS_STATUS_SUCCESS;
  if (args.adds && args.out_type != LtOut::kF32) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!IsAligned(args.weight.w) || args.weight.ldw % 8 != 0 ||
      !IsAligned(args.x) || args.ldx % 8 != 0 || args.ldx < args.weight.k ||
      args.ldo < args.weight.n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Entry& entry = *found->second;
  const bool aligned =
      IsAligned(args.out) && args.ldo * SizeOf(args.out_type) % kAlignment == 0;
  if (aligned && !entry.pad_rows) return Submit(args, entry.algo);
  if (entry.x.data == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  return RunPadded(args, entry);
}

cublasStatus_t LtMatmul::RunPadded(const Args& args, const Entry& entry) {
  Args block = args;
  block.x = entry.x.data;
  block.m = kBlockRows;
  block.ldx = PadTo8(args.weight.k);
  block.out = entry.out.data;
  block.ldo = PadTo8(args.weight.n);
  const auto size = static_cast<size_t>(SizeOf(args.out_type));
  const size_t x_bytes = static_cast<size_t>(args.weight.k) * 2;
  const size_t out_bytes = static_cast<size_t>(args.weight.n) * size;
  const auto ldx_bytes = static_cast<size_t>(args.ldx) * 2;
  const auto ldo_bytes = static_cast<size_t>(args.ldo) * size;
  RETURN_IF_CUDA_ERROR(cudaMemsetAsync(
      entry.x.data, 0, static_cast<size_t>(kBlockRows * block.ldx) * 2,
      stream_));
  for (int64_t row = 0; row < args.m; row += kBlockRows) {
    const auto rows = static_cast<size_t>(std::min(kBlockRows, args.m - row));
    const auto first = static_cast<size_t>(row);
    RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(
        entry.x.data, static_cast<size_t>(block.ldx) * 2,
        static_cast<const std::byte*>(args.x) + first * ldx_bytes, ldx_bytes,
        x_bytes, rows, cudaMemcpyDeviceToDevice, stream_));
    auto* const out = static_cast<std::byte*>(args.out) + first * ldo_bytes;
    const size_t block_bytes = static_cast<size_t>(block.ldo) * size;
    if (args.adds) {
      RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(
          entry.out.data, block_bytes, out, ldo_bytes, out_bytes, rows,
          cudaMemcpyDeviceToDevice, stream_));
    }
    RETURN_IF_CUBLAS_ERROR(Submit(block, entry.algo));
    RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(out, ldo_bytes, entry.out.data,
                                           block_bytes, out_bytes, rows,
                                           cudaMemcpyDeviceToDevice, stream_));
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace baton::cuda
